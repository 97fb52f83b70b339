"""What users of federated frameworks file as issues, as far as no other test of this folder has it.

README.md beside this file says which test covers which invariant and which complaint.
"""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from lightning.pytorch import Callback
from torch import nn

from shared.errors import UserError
from shared.federated import sampling
from shared.federated.aggregate import weighted_mean
from shared.federated.algorithms.fedavg import FedAvg, adam, momentum
from shared.federated.algorithms.fedbn import FedBN
from shared.federated.algorithms.fednova import FedNova
from shared.federated.algorithms.scaffold import Scaffold, ScaffoldClient
from shared.federated.client import FederatedClient
from shared.federated.errors import ClientError
from shared.federated.local import LocalTraining
from shared.federated.module import FederatedModule
from shared.federated.payload import Payload
from shared.federated.rounds import RoundsFile

FOLDER = Path(__file__).parent


class Seen(FedAvg):
    """FedAvg that keeps the replies of its last round."""

    def round(self, cohort):
        self.replies = cohort.call("fit", self.broadcast(), expects="model")
        self.update(weighted_mean(self.replies, "model", by=self.weights))


def of_norm(name):
    return "running" in name or "num_batches" in name


# 1: buffers of batch normalisation.


def test_fednova_averages_statistics_and_steps_parameters(fed):
    """Its normalised step extrapolates when steps are unequal; a variance must not become negative."""
    sizes = (8, 80, 8)
    seen = fed.fit(Seen(fed.classifier(norm=True, lr=0.5)), fed.federation(sizes, rounds=1))
    nova = fed.fit(FedNova(fed.classifier(norm=True, lr=0.5)), fed.federation(sizes, rounds=1))
    mean, found = weighted_mean(seen.replies, "model"), fed.entries(nova)
    for name, value in found.items():
        if name != "net.0.bias":  # has no gradient, since normalisation follows
            assert torch.equal(value, mean[name]) == of_norm(name), name
        assert value.dtype == mean[name].dtype and value.shape == mean[name].shape
    longer = fed.fit(FedNova(fed.classifier(norm=True, lr=0.5)), fed.federation(sizes, rounds=12))
    assert fed.entries(longer)["net.1.running_var"].min() > 0
    assert all(value.isfinite().all() for value in fed.entries(longer).values())


@pytest.mark.parametrize("optimizer", [momentum(0.5, 0.9), adam(0.1)], ids=["momentum", "adam"])
def test_server_optimisers_step_parameters_and_leave_statistics_averaged(fed, optimizer):
    server = Seen(fed.classifier(norm=True), server_optimizer=optimizer)
    fed.fit(server, fed.federation(rounds=4))
    mean = weighted_mean(server.replies, "model")
    for name, value in fed.entries(server).items():
        if name != "net.0.bias":  # has no gradient, since normalisation follows
            assert torch.equal(value, mean[name]) == of_norm(name), name
        assert value.isfinite().all()
    assert fed.entries(server)["net.1.num_batches_tracked"].shape == ()


def test_every_algorithm_leaves_the_model_whole(fed):
    """No entry of the state dict is forgotten, none changes its type or shape."""
    for make in (FedAvg, Scaffold, FedNova, FedBN):
        net = fed.classifier(norm=True)
        before = {name: (value.dtype, value.shape) for name, value in net.state_dict().items()}
        module = fed.fit(make(net), fed.federation(rounds=2))
        after = {name: (value.dtype, value.shape) for name, value in module.model.state_dict().items()}
        assert after == before
        if make is not FedBN:
            assert int(module.model.net[1].num_batches_tracked) == 6  # 2 rounds of 3 batches


# 2: an algorithm that misses what it needs must not go on as FedAvg.


class Forgetful(ScaffoldClient):
    def fit(self, inbox, state, data):
        reply = super().fit(inbox, state, data)
        return Payload(**{name: value for name, value in reply.entries.items() if name != "delta_control"})


def test_scaffold_without_controls_fails_loudly(fed):
    with pytest.raises(UserError, match="delta_control"):
        fed.fit(Scaffold(Forgetful(fed.classifier())), fed.federation())


# 3: resources.


@pytest.mark.slow
def test_a_thousand_stateful_clients_stay_within_models_states_and_200_mb(fed):
    """SCAFFOLD on the MLP 784-200-10 (159,010 parameters), one sample each."""

    def resident():
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    class Wide(fed.Classifier):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 10))

    dataset = torch.utils.data.TensorDataset(torch.randn(1000, 784), torch.randint(0, 10, (1000,)))
    tens = sampling.predrawn(torch.arange(1000).view(100, 10).tolist())
    data = fed.federation(sizes=(1,) * 1000, rounds=100, dataset=dataset, sampler=tens)
    module = Scaffold(Wide())
    before = resident()
    fed.fit(module, data)
    assert len(module.states) == 1000
    assert resident() - before < 4 * 159_010 * (1000 + 3) + 200e6


# 5: bytes are those of the messages, which may differ from client to client.


class Talkative(FederatedClient):
    def fit(self, inbox, state, data):
        return super().fit(inbox, state, data).plus(extra=torch.zeros(100 * data.client))


def test_every_message_is_counted_by_its_own_size(fed):
    class Unequal(FederatedModule):
        def round(self, cohort):
            own = lambda client: self.broadcast().plus(letter=torch.zeros(10 * client))  # noqa: E731
            self.update(weighted_mean(cohort.call("fit", own), "model"))

    ledger = fed.fit(Unequal(Talkative(fed.classifier())), fed.federation(rounds=2)).ledger
    for client in range(4):
        assert ledger.total(client=client, direction="up", name="extra") == 2 * 400 * client
        assert ledger.total(client=client, direction="down", name="letter") == 2 * 40 * client
    by_client = ledger.by("client")
    assert sum(by_client.values()) == ledger.total() and len(set(by_client.values())) == 4


# 8: training again and again.


def test_clients_train_in_every_round(fed):
    """A Trainer that is fitted repeatedly stops silently at its first limit; local training does not."""

    class Notes(FederatedClient):
        def fit(self, inbox, state, data):
            before = {name: value.clone() for name, value in inbox["model"].items()}
            reply = super().fit(inbox, state, data)
            moved = max(float((reply["model"][name] - before[name]).abs().max()) for name in before)
            notes.append((data.round, reply["num_steps"], moved > 0))
            return reply

    notes = []
    client = Notes(fed.classifier(), training=LocalTraining(max_epochs=2))
    fed.fit(FedAvg(client), fed.federation(rounds=4))
    assert [steps for _, steps, _ in notes] == [6] * 16 and all(moved for *_, moved in notes)
    assert sorted({number for number, *_ in notes}) == [0, 1, 2, 3]


# 9: clients that come later, and clients that nobody knows.


def test_clients_join_while_a_run_goes_on(fed):
    everyone = sampling.everyone(range(4))
    data = fed.federation(rounds=4, sampler=sampling.joining(everyone, {3: 2}))
    seen = []

    class Watch(Callback):
        def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
            seen.append(module.states.clients())

    module = Scaffold(fed.classifier())
    fed.trainer(callbacks=[Watch()]).fit(module, datamodule=data)
    assert [3 in clients for clients in seen] == [False, False, True, True]


# 10: what the clients did is in the log.


def test_rates_and_steps_are_logged(fed, tmp_path):
    module = FedAvg(fed.classifier(lr=0.4), lr_schedule=lambda number: 0.5**number)
    module.artifacts = tmp_path
    sizes = (8, 40)
    fed.fit(module, fed.federation(sizes, rounds=3))
    rows = RoundsFile(tmp_path / "rounds.jsonl").rows()
    assert [row["client/lr"] for row in rows] == pytest.approx([0.4, 0.2, 0.1])
    assert rows[0]["client/num_steps"] == pytest.approx((1 * 8 + 5 * 40) / 48)  # weighted by samples


# Bad input: by policy named and fatal (tested in test_rounds.py), or named and left out.


@pytest.mark.parametrize(
    ("sizes", "norm", "reason"),
    [((8, 0, 8), False, "no training sample"), ((8, 1, 8), True, "one sample met batch normalisation")],
)
def test_unusable_clients_can_be_left_out(fed, caplog, sizes, norm, reason):
    module = FedAvg(fed.classifier(norm=norm), on_bad_reply="exclude")
    fed.fit(module, fed.federation(sizes))
    others = fed.federation(sizes, sampler=sampling.predrawn([[0, 2]]))
    expected = fed.fit(FedAvg(fed.classifier(norm=norm)), others)
    assert fed.equal(fed.entries(module), fed.entries(expected))
    assert "client 1 is left out of round 0" in caplog.text and reason in caplog.text


def test_a_round_of_unusable_clients_leaves_the_model(fed, caplog):
    module = FedAvg(fed.classifier(), on_bad_reply="exclude")
    before = fed.entries(module)
    fed.fit(module, fed.federation(sizes=(0, 0), rounds=2, dataset=fed.samples(4)))
    assert fed.equal(fed.entries(module), before) and "The model stays." in caplog.text


def test_a_damaged_broadcast_names_its_client(fed):
    class Cutting:
        def run(self, tasks, node):
            cut = replace(tasks[2], message=tasks[2].message[:-7])
            return [node.run(cut if task is tasks[2] else task) for task in tasks]

    with pytest.raises(ClientError, match="client 2, round 0: .*truncated or altered"):
        fed.fit(FedAvg(fed.classifier(), engine=Cutting()), fed.federation())


def test_a_damaged_reply_can_be_left_out(fed, caplog):
    class Cutting:
        def run(self, tasks, node):
            outcomes = [node.run(task) for task in tasks]
            outcomes[2].message = outcomes[2].message[:-7]
            return outcomes

    module = fed.fit(
        FedAvg(fed.classifier(), engine=Cutting(), on_bad_reply="exclude"), fed.federation(rounds=1)
    )
    others = fed.federation(rounds=1, sampler=sampling.predrawn([[0, 1, 3]]))
    assert fed.equal(fed.entries(module), fed.entries(fed.fit(FedAvg(fed.classifier()), others)))
    assert "client 2 is left out of round 0" in caplog.text


def test_the_readme_names_tests_that_exist():
    named = re.findall(r"`(test_\w+\.py)::(test_\w+)`", (FOLDER / "README.md").read_text())
    held = {path.name: path.read_text() for path in FOLDER.rglob("test_*.py")}
    assert len(named) > 40
    lacking = [f"{file}::{test}" for file, test in named if file in held and f"def {test}(" not in held[file]]
    assert lacking == []
