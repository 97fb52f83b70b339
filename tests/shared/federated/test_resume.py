"""Stopped at any round and resumed equals uninterrupted, bit for bit; another run's checkpoint is refused."""

import json

import pytest
import torch

from shared.errors import UserError
from shared.federated import partition, roles
from shared.federated.algorithms.fedavg import FedAvg, momentum
from shared.federated.algorithms.fedbn import FedBN
from shared.federated.algorithms.moon import Moon
from shared.federated.algorithms.scaffold import Scaffold
from shared.federated.codecs.delta import Delta
from shared.federated.codecs.feedback import ErrorFeedback
from shared.federated.codecs.quantise import Uniform
from shared.federated.codecs.sparse import TopK
from shared.federated.data import FederatedData
from shared.federated.local import LocalTraining
from shared.federated.sampling import predrawn, uniform
from shared.training.config import BaseConfig, compose
from shared.training.experiment import Experiment, Interrupted, run_experiment

ROUNDS = 5


def make(fed, algorithm, split=0, **data):
    def build(config):
        train = fed.samples(96)
        own = partition.dirichlet(train.tensors[1], 6, 1.0, seed=split, min_size=4)
        rounds = FederatedData(
            train,
            own,
            rounds=ROUNDS,
            sampler=uniform(6, 3, seed=config.seed),
            batch_size=8,
            drop_last=True,
            test=fed.samples(50),
            client_test=(fed.samples(96), own),
            seed=config.seed,
            **data,
        )
        return Experiment(algorithm(), rounds)

    return build


def algorithms(fed):
    net = lambda: fed.classifier(norm=True, dropout=0.3, momentum=0.5)  # noqa: E731
    lossy = [Delta(), ErrorFeedback(TopK(0.3)), Uniform(6)]
    kept = LocalTraining(keep_optimizer=True)
    return {
        "scaffold": lambda: Scaffold(fed.classifier(dropout=0.3), codec=lossy),
        "momentum": lambda: FedAvg(net(), server_optimizer=momentum(), training=kept, targets=("after_fit",)),
        "moon": lambda: Moon(net(), head="net.4", buffers="personal", codec=Uniform(8)),
        "fedbn": lambda: FedBN(net(), targets=("personal", "received")),
    }


def settings(*overrides):
    plain = {"max_epochs": 1, "accelerator": "cpu", "val_check_interval": 2}
    return compose(
        BaseConfig,
        {"trainer": plain, "wandb": {"mode": "disabled"}},
        overrides=["runtime.keep_checkpoint=true", *overrides],
    )


def run(build, folder, stop_after=None, config=None):
    calls = iter(range(10_000))
    stop = (lambda: False) if stop_after is None else (lambda: next(calls) >= stop_after)
    return run_experiment(build, config or settings(), folder, group="g", name="n", stop=stop)


def checkpoint(folder):
    return torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)


def flat(tree, prefix=""):
    if isinstance(tree, dict):
        return {k: v for key, value in tree.items() for k, v in flat(value, f"{prefix}/{key}").items()}
    if isinstance(tree, (list, tuple)):
        return flat(dict(enumerate(tree)), prefix)
    return {prefix: tree}


def same(left, right):
    left, right = flat(left), flat(right)
    assert left.keys() == right.keys()
    for name, value in left.items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(value, right[name]), name
        else:
            assert value == right[name], name


@pytest.mark.parametrize("which", ["scaffold", "momentum", "moon", "fedbn"])
def test_resumed_at_any_round_equals_uninterrupted(fed, tmp_path, which):
    build = make(fed, algorithms(fed)[which])
    straight = run(build, tmp_path / "straight")
    for stop_after in range(ROUNDS) if which == "scaffold" else (2,):
        folder = tmp_path / str(stop_after)
        with pytest.raises(Interrupted):
            run(build, folder, stop_after)
        torch.rand(17)  # the state of the process must not matter
        assert run(build, folder) == straight
        for part in ("state_dict", "federated", "optimizer_states"):
            same(checkpoint(folder)[part], checkpoint(tmp_path / "straight")[part])
    saved = checkpoint(tmp_path / "straight")["federated"]
    assert saved["states"] if which != "momentum" else saved["states"][max(saved["states"])]["optimizer"]


def test_killed_between_checkpoints_repeats_rounds_and_rewrites_their_rows(fed, tmp_path):
    build = make(fed, algorithms(fed)["scaffold"])

    class Killed(BaseException):
        pass

    calls = iter(range(100))

    def kill():
        if next(calls) == 4:
            raise Killed

    config = settings("runtime.checkpoint_every_n_steps=3")
    with pytest.raises(Killed):
        run_experiment(build, config, tmp_path / "killed", group="g", name="n", stop=kill)
    assert checkpoint(tmp_path / "killed")["global_step"] == 3
    assert run(build, tmp_path / "killed", config=config) == run(build, tmp_path / "straight")
    rows = [
        json.loads(line) for line in (tmp_path / "killed/artifacts/rounds.jsonl").read_text().splitlines()
    ]
    assert [row["round"] for row in rows] == list(range(ROUNDS))
    assert rows[0]["participants"] == sorted(rows[0]["clients"]) and rows[0]["seconds"]["clients"] > 0


def test_spilled_states_give_the_same_checkpoint(fed, tmp_path):
    run(make(fed, lambda: Scaffold(fed.classifier())), tmp_path / "a")
    run(make(fed, lambda: Scaffold(fed.classifier(), spill=tmp_path / "states")), tmp_path / "b")
    same(checkpoint(tmp_path / "a")["federated"], checkpoint(tmp_path / "b")["federated"])
    assert any((tmp_path / "states").iterdir())


def test_another_partition_algorithm_or_codec_is_refused_with_the_difference(fed, tmp_path):
    with pytest.raises(Interrupted):
        run(make(fed, lambda: FedAvg(fed.classifier())), tmp_path, stop_after=2)
    with pytest.raises(
        UserError, match=r"cannot be resumed.*partition: \w{16} in the checkpoint, \w{16} here"
    ):
        run(make(fed, lambda: FedAvg(fed.classifier()), split=1), tmp_path)
    with pytest.raises(UserError, match=r"algorithm: .*FedAvg in the checkpoint, .*Scaffold here"):
        run(make(fed, lambda: Scaffold(fed.classifier())), tmp_path)
    with pytest.raises(UserError, match=r"codec: .*Uniform\(bits=4"):
        run(make(fed, lambda: FedAvg(fed.classifier(), codec=Uniform(4))), tmp_path)


@pytest.mark.parametrize("differs", ["training", "seed", "rounds"])
def test_other_local_training_seed_or_length_is_refused(fed, tmp_path, differs):
    def build(changed):
        def made(config):
            settings = {"training": LocalTraining(max_epochs=2 if changed == "training" else 1)}
            settings["seed"] = 5 if changed == "seed" else 0
            data = fed.federation(rounds=4 if changed == "rounds" else 3)
            return Experiment(FedAvg(fed.classifier(), **settings), data)

        return made

    with pytest.raises(Interrupted):
        run(build(None), tmp_path, stop_after=2)
    with pytest.raises(UserError, match=rf"cannot be resumed.*{differs}: "):
        run(build(differs), tmp_path)


def test_initial_values_that_stay_at_clients_come_from_the_checkpoint(fed, tmp_path):
    """A second process may initialise its module otherwise: clients that have not trained must not see it."""

    def build(seed):
        def made(config):
            data = fed.federation(rounds=4, sampler=predrawn([[0], [0], [1], [2]]))
            return Experiment(FedAvg(fed.classifier(seed), role=roles.by_name(personal=r"^net\.3")), data)

        return made

    straight = run(build(0), tmp_path / "straight")
    with pytest.raises(Interrupted):
        run(build(0), tmp_path / "resumed", stop_after=2)
    assert run(build(1), tmp_path / "resumed") == straight
    for part in ("state_dict", "federated"):
        same(checkpoint(tmp_path / "resumed")[part], checkpoint(tmp_path / "straight")[part])


def test_traffic_of_evaluation_inside_a_round_is_not_told_twice_after_resuming(fed, tmp_path):
    class Validating(FedAvg):
        def round(self, cohort):
            super().round(cohort)
            cohort.call("evaluate", self.broadcast(), save_state=False)

    def build(config):
        data = fed.federation(rounds=4, client_test=(fed.samples(96), fed.federation().partitions[0]))
        built.append(Validating(fed.classifier()))
        return Experiment(built[-1], data)

    built = []
    run(build, tmp_path / "straight")
    with pytest.raises(Interrupted):
        run(build, tmp_path / "resumed", stop_after=2)
    run(build, tmp_path / "resumed")
    assert built[0].traffic == built[-1].traffic and built[0].traffic["down"] > 0


def test_a_finished_checkpoint_says_so(fed, tmp_path, caplog):
    first = fed.trainer()
    first.fit(FedAvg(fed.classifier()), datamodule=fed.federation())
    first.save_checkpoint(tmp_path / "done.ckpt")
    fed.trainer().fit(FedAvg(fed.classifier()), datamodule=fed.federation(), ckpt_path=tmp_path / "done.ckpt")
    assert "all 3 rounds are done" in caplog.text


def test_evaluation_leaves_no_trace(fed, tmp_path):
    quiet = lambda: Scaffold(fed.classifier(dropout=0.3))  # noqa: E731
    watched = lambda: Scaffold(fed.classifier(dropout=0.3), targets=("received", "after_fit"))  # noqa: E731
    run(make(fed, quiet), tmp_path / "a", config=settings("trainer.val_check_interval=5"))
    metrics = run(make(fed, watched), tmp_path / "b", config=settings("trainer.val_check_interval=1"))
    for part in ("state_dict", "optimizer_states"):
        same(checkpoint(tmp_path / "a")[part], checkpoint(tmp_path / "b")[part])
    same(checkpoint(tmp_path / "a")["federated"]["states"], checkpoint(tmp_path / "b")["federated"]["states"])
    assert metrics.keys() >= {
        "val/acc",
        "test/acc",
        "received/val/acc",
        "after_fit/val/acc/clients",
        "test/received/val/acc",
    }
