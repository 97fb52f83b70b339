"""The loop's invariants: what equals what, bit for bit, and what nobody may touch."""

import copy
import itertools
import logging
from pathlib import Path

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import EarlyStopping
from torch import nn
from torch.nn import functional as F

from shared.errors import UserError
from shared.federated import roles, sampling
from shared.federated.aggregate import weighted_mean
from shared.federated.algorithms.fedavg import FedAvg, adam, momentum
from shared.federated.algorithms.fedbn import FedBN
from shared.federated.algorithms.fednova import FedNova
from shared.federated.algorithms.fedprox import FedProx
from shared.federated.algorithms.moon import Moon
from shared.federated.algorithms.scaffold import Scaffold
from shared.federated.client import FederatedClient
from shared.federated.codecs.noise import Clip, Gaussian
from shared.federated.data import ClientData
from shared.federated.local import LocalTraining
from shared.federated.module import FederatedModule
from shared.federated.payload import Payload
from shared.federated.streams import TaskStream


def test_one_client_one_round_is_plain_training(fed):
    data = fed.federation(sizes=(40,), rounds=1)
    module = fed.fit(FedAvg(fed.classifier(norm=True, momentum=0.9)), data)
    plain = fed.classifier(norm=True, momentum=0.9)
    optimizer = plain.configure_optimizers()
    for x, y in data.client(0, 0).loader():
        optimizer.zero_grad()
        F.cross_entropy(plain(x), y).backward()
        optimizer.step()
    assert fed.equal(fed.entries(module), dict(plain.state_dict()))


SAME_AS_FEDAVG = {
    "FedProx mu=0": lambda net, **s: FedProx(net, mu=0.0, **s),
    "MOON mu=0": lambda net, **s: Moon(net, head="net.3", mu=0.0, **s),
    "FedNova, equal steps": FedNova,
    "FedBN without BatchNorm": lambda net, **s: FedBN(net, targets=(), **s),
    "noise 0, clip infinite": lambda net, **s: FedAvg(net, codec=[Clip(float("inf")), Gaussian(0)], **s),
}


@pytest.mark.parametrize("make", SAME_AS_FEDAVG.values(), ids=SAME_AS_FEDAVG)
def test_special_cases_are_fedavg(fed, make):
    settings = {"training": LocalTraining(max_epochs=2)}
    sizes = (24, 17, 24, 23)  # equal steps of 8, unequal weights
    expected = fed.fit(FedAvg(fed.classifier(dropout=0.3), **settings), fed.federation(sizes))
    found = fed.fit(make(fed.classifier(dropout=0.3), **settings), fed.federation(sizes))
    assert fed.equal(fed.entries(found), fed.entries(expected))


def test_first_scaffold_round_is_uniform_fedavg(fed):
    expected = fed.fit(FedAvg(fed.classifier(dropout=0.3), weights=None), fed.federation(rounds=1))
    found = fed.fit(Scaffold(fed.classifier(dropout=0.3)), fed.federation(rounds=1))
    assert fed.equal(fed.entries(found), fed.entries(expected))
    more = fed.federation(rounds=2)
    assert not fed.equal(
        fed.entries(fed.fit(Scaffold(fed.classifier()), more)),
        fed.entries(fed.fit(FedAvg(fed.classifier(), weights=None), fed.federation(rounds=2))),
    )


@pytest.mark.parametrize("kind", [FedProx, Moon])
def test_their_own_term_matters(fed, kind):
    extra = {FedProx: {"mu": 1.0}, Moon: {"mu": 5.0, "head": "net.3"}}[kind]
    plain = fed.fit(FedAvg(fed.classifier()), fed.federation(rounds=2))
    module = fed.fit(kind(fed.classifier(), **extra), fed.federation(rounds=2))
    assert not fed.equal(fed.entries(module), fed.entries(plain))


def test_fedprox_is_the_loss_term_of_the_paper(fed):
    data = fed.federation(sizes=(32,), rounds=1)
    module = fed.fit(FedProx(fed.classifier(), mu=0.7), data)
    plain = fed.classifier()
    theta, optimizer = copy.deepcopy(plain), plain.configure_optimizers()
    for x, y in data.client(0, 0).loader():
        optimizer.zero_grad()
        distance = sum(
            ((a - b) ** 2).sum() for a, b in zip(plain.parameters(), theta.parameters(), strict=True)
        )
        (F.cross_entropy(plain(x), y) + 0.35 * distance).backward()
        optimizer.step()
    for name, value in plain.state_dict().items():
        assert torch.allclose(module.model.state_dict()[name], value, atol=1e-6), name


def test_full_batches_of_all_clients_are_one_centralised_step(fed):
    module = fed.fit(FedAvg(fed.classifier()), fed.federation(rounds=1, batch_size=24))
    central = fed.classifier()
    x, y = fed.samples(96).tensors
    optimizer = central.configure_optimizers()
    F.cross_entropy(central(x), y).backward()
    optimizer.step()
    for name, value in central.state_dict().items():
        assert torch.allclose(module.model.state_dict()[name], value, atol=1e-6), name


def test_fednova_is_its_formula_for_unequal_steps(fed):
    sizes = (8, 40, 24)
    module = FedNova(fed.classifier(momentum=0.5))
    theta = {name: value.double() for name, value in fed.entries(module).items()}
    fed.fit(module, fed.federation(sizes, rounds=1))
    seen = Seen(fed.classifier(momentum=0.5))
    fed.fit(seen, fed.federation(sizes, rounds=1))
    normalisers = [sum((1 - 0.5 ** (k + 1)) / 0.5 for k in range(n // 8)) for n in sizes]  # written out
    shares = [n / sum(sizes) for n in sizes]
    effective = sum(p * a for p, a in zip(shares, normalisers, strict=True))
    for name, value in theta.items():
        step = sum(
            p * (value - reply["model"][name].double()) / a
            for p, a, reply in zip(shares, normalisers, seen.replies, strict=True)
        )
        assert torch.allclose(module.model.state_dict()[name].double(), value - effective * step, atol=1e-6)


class Seen(FedAvg):
    def round(self, cohort):
        self.replies = cohort.call("fit", Payload(model=self.theta()))


def test_scaffold_controls_average_to_the_servers(fed):
    module = fed.fit(Scaffold(fed.classifier()), fed.federation(sizes=(24, 8, 30, 16), rounds=4))
    for name, control in module.control.items():
        mean = torch.stack([module.states[client]["control"][name] for client in range(4)]).mean(0)
        assert torch.allclose(mean, control, atol=1e-6) and control.abs().max() > 1e-4


def test_absent_clients_keep_their_control(fed):
    """A client's state survives rounds without it, and nobody else touches it."""
    module = Scaffold(fed.classifier())
    cohorts = [[0, 1], [1, 2], [3], [0, 3]]
    digests = []

    class Record(Callback):
        def on_train_batch_end(self, *args):
            digests.append({c: module.states.digest([c]) for c in range(4)})

    data = fed.federation(rounds=4, sampler=sampling.predrawn(cohorts))
    fed.fit(module, data, callbacks=[Record()])
    for before, after, cohort in zip(digests[:-1], digests[1:], cohorts[1:], strict=True):
        for client in range(4):
            assert (before[client] == after[client]) == (client not in cohort), (client, cohort)


def test_lazy_states_are_those_of_participants(fed):
    module = Scaffold(fed.classifier())
    sizes = (4,) * 200
    fed.fit(module, fed.federation(sizes, rounds=3, sampler=sampling.uniform(200, 2, seed=0)))
    assert 2 < len(module.states) <= 6


def test_batch_norm_average_of_identical_clients_is_the_identity(fed):
    """Every entry, buffers included: what PFLlib, FL-bench and FedLab got wrong."""

    class Still(FederatedClient):
        def fit(self, inbox, state, data):
            return Payload(model=self.shared(self.model(inbox, state)), num_samples=len(data.train))

    net = fed.classifier(norm=True)
    net.net[1].running_mean += torch.randn(8)
    net.net[1].num_batches_tracked += 5
    before = {name: value.clone() for name, value in net.state_dict().items()}
    module = fed.fit(FedAvg(Still(net)), fed.federation(sizes=(8, 24, 17, 13)))
    assert fed.equal(fed.entries(module), before)
    assert module.model.net[1].num_batches_tracked.shape == ()


@pytest.mark.parametrize("policy", ["average", "personal", "keep", "recompute"])
def test_buffer_policies(fed, policy):
    net = fed.classifier(norm=True)
    data = fed.federation(sizes=(16, 16), rounds=2, public=fed.samples(40))
    module = fed.fit(FedAvg(net, buffers=policy), data)
    norm = module.model.net[1]
    if policy == "average":
        assert norm.num_batches_tracked == 4 and norm.running_mean.abs().max() > 0  # 2 steps, twice
    if policy in ("personal", "keep"):
        assert norm.num_batches_tracked == 0 and torch.equal(norm.running_mean, torch.zeros(8))
    if policy == "personal":
        held = module.states[1]["personal"]
        assert set(held) == {f"net.1.{n}" for n in ("running_mean", "running_var", "num_batches_tracked")}
        assert held["net.1.num_batches_tracked"] == 4
    if policy == "recompute":
        hidden = module.model.net[0](fed.samples(40).tensors[0])
        assert torch.allclose(norm.running_mean, hidden.mean(0), atol=1e-5)


def test_fedbn_keeps_norms_by_type_and_evaluates_with_them(fed):
    net = fed.classifier(norm=True)  # named net.1, without "bn" in it
    test = fed.samples(96)
    data = fed.federation(rounds=3, client_test=(test, fed.federation().partitions[0]))
    module = FedBN(net)
    trainer = fed.trainer()
    trainer.fit(module, datamodule=data)
    assert torch.equal(module.model.net[1].weight, torch.ones(8))
    assert {n.split(".")[1] for n in module.states[0]["personal"]} == {"1"}
    assert not torch.equal(*(module.states[c]["personal"]["net.1.weight"] for c in (0, 1)))
    assert "model/net.1.weight" not in module.ledger.by("name") and "model/net.0.weight" in module.ledger.by(
        "name"
    )
    assert {"personal/val/acc", "personal/val/acc/clients"} <= set(trainer.callback_metrics)


def test_order_of_clients_does_not_matter(fed):
    results = []
    for order in itertools.islice(itertools.permutations(range(4)), 0, 24, 9):
        data = fed.federation(rounds=2, sampler=sampling.predrawn([order]))
        results.append(fed.entries(fed.fit(Scaffold(fed.classifier(dropout=0.5)), data)))
    assert all(fed.equal(results[0], other) for other in results[1:])


def test_a_clients_result_does_not_depend_on_the_others(fed):
    alone = Seen(fed.classifier(norm=True, dropout=0.5))
    fed.fit(alone, fed.federation(rounds=1, sampler=sampling.predrawn([[2]])))
    among = Seen(fed.classifier(norm=True, dropout=0.5))
    fed.fit(among, fed.federation(rounds=1, sampler=sampling.predrawn([[3, 0, 2]])))
    left, right = alone.replies[0], among.replies[1]
    assert left.client == right.client == 2 and fed.equal(left["model"], right["model"])


def test_all_algorithms_see_the_same_cohorts_and_batches(fed):
    seen = []

    class Spy(fed.Classifier):
        def training_step(self, batch, batch_idx):
            seen[-1].append(batch[0].sum().item())
            return super().training_step(batch, batch_idx)

    for make in (FedAvg, Scaffold, lambda n: FedProx(n, mu=1.0)):
        seen.append([])
        fed.fit(make(Spy(dropout=0.2)), fed.federation(sampler=sampling.uniform(4, 2, seed=5)))
    assert seen[0] == seen[1] == seen[2] and len(seen[0]) == 3 * 2 * 3


def test_vanished_clients_leave_the_aggregate_of_the_survivors(fed):
    lost = {(1, 0), (3, 1)}
    with_losses = fed.federation(rounds=2, dropouts=lambda c, r: (c, r) in lost)
    survivors = fed.federation(rounds=2, sampler=lambda r: [c for c in range(4) if (c, r) not in lost])
    module = fed.fit(FedAvg(fed.classifier()), with_losses)
    expected = fed.fit(FedAvg(fed.classifier()), survivors)
    assert fed.equal(fed.entries(module), fed.entries(expected))
    assert module.ledger.total(direction="down", client=1, round=0) > 0
    assert module.ledger.total(direction="up", client=1, round=0) == 0


@pytest.mark.parametrize("kept", [False, True])
def test_state_of_a_vanished_client_is_rolled_back_or_kept(fed, kept):
    data = fed.federation(rounds=1, dropouts=lambda c, r: c == 1, keep_dropout_state=kept)
    module = fed.fit(Scaffold(fed.classifier()), data)
    assert module.states.clients() == ([0, 1, 2, 3] if kept else [0, 2, 3])


def test_a_round_without_answers_leaves_the_model_and_is_counted(fed, caplog):
    for data in (
        fed.federation(rounds=2, sampler=lambda r: []),
        fed.federation(rounds=2, dropouts=lambda c, r: True),
    ):
        module = FedAvg(fed.classifier())
        before = fed.entries(module)
        with caplog.at_level(logging.WARNING):
            fed.fit(module, data)
        assert "The model stays" in caplog.text and fed.equal(fed.entries(module), before)
        assert module.trainer.global_step == 2


def test_rounds_are_counted_logged_and_stopped_by_the_trainer(fed):
    data = fed.federation(rounds=50)
    module = fed.fit(FedAvg(fed.classifier()), data, max_steps=4, max_epochs=-1)
    assert module.trainer.global_step == 4
    metrics = module.trainer.callback_metrics
    assert metrics["round/participants"] == 4 and 0 < metrics["train/loss"] < 2
    assert metrics["total/up_bytes"] == module.ledger.total(direction="up")
    assert metrics["round/down_bytes"] == module.ledger.total(direction="down", round=3)


def test_several_epochs_go_on_counting_rounds(fed):
    drawn = []
    data = fed.federation(rounds=2, sampler=lambda r: drawn.append(r) or [0])
    module = fed.fit(FedAvg(fed.classifier()), data, max_epochs=3)
    assert drawn == [0, 1, 2, 3, 4, 5] and module.trainer.global_step == 6


def test_validation_every_k_rounds(fed):
    seen = []

    class Watched(FedAvg):
        def on_validation_epoch_end(self):
            super().on_validation_epoch_end()
            seen.append(self.trainer.global_step)

    fed.fit(Watched(fed.classifier()), fed.federation(rounds=6, test=fed.samples(30)), val_check_interval=2)
    assert seen == [0, 2, 4, 6]  # 0 is Lightning's check before training


@pytest.mark.parametrize("optimizer", [momentum(0.7, 0.9), adam(0.1)])
def test_server_optimisers_follow_torch_on_the_pseudo_gradient(fed, optimizer):
    module = FedAvg(fed.classifier(), server_optimizer=optimizer)
    fed.fit(module, fed.federation(rounds=3))
    assert module.trainer.global_step == 3  # one counted step a round, whatever steps inside
    reference = Seen(fed.classifier())
    parameters = list(reference.model.parameters())
    by_hand = optimizer(parameters)

    class Step(FedAvg):
        def round(self, cohort):
            mean = weighted_mean(cohort.call("fit", Payload(model=self.theta())), "model")
            for name, p in self.model.named_parameters():
                p.grad = p.detach() - mean[name]
            by_hand.step()

    reference = Step(reference.client)
    fed.fit(reference, fed.federation(rounds=3))
    assert fed.equal(fed.entries(module), fed.entries(reference))


def test_server_sgd_with_rate_one_is_the_mean_and_clipping_bounds_it(fed):
    exact = fed.entries(fed.fit(FedAvg(fed.classifier()), fed.federation(rounds=1)))
    start = {name: value.clone() for name, value in fed.classifier().state_dict().items()}
    stepped = fed.fit(FedAvg(fed.classifier(), server_optimizer=momentum(1.0, 0.0)), fed.federation(rounds=1))
    for name, value in fed.entries(stepped).items():
        assert torch.allclose(value, exact[name], atol=1e-6)
    clipped = fed.fit(FedAvg(fed.classifier(), server_clip=0.01), fed.federation(rounds=1))
    moved = torch.cat([(fed.entries(clipped)[name] - start[name]).flatten() for name in start])
    assert moved.norm().item() == pytest.approx(0.01, rel=1e-3)


def test_groups_of_one_are_the_plain_algorithm(fed):
    class Grouped(FedAvg):
        def round(self, cohort):
            for _, members in cohort.grouped(lambda client: "all"):
                super().round(members)

    plain = fed.fit(FedAvg(fed.classifier()), fed.federation())
    assert fed.equal(fed.entries(fed.fit(Grouped(fed.classifier()), fed.federation())), fed.entries(plain))


def test_groups_hold_models_of_their_own(fed):
    class Clustered(FederatedModule):
        server_state = ("models",)

        def __init__(self, client):
            super().__init__(client)
            self.models = {g: {n: v.clone() for n, v in self.theta().items()} for g in (0, 1)}

        def round(self, cohort):
            for group, members in cohort.grouped(lambda client: client % 2):
                replies = members.call("fit", Payload(model=self.models[group]))
                self.models[group] = weighted_mean(replies, "model")

    module = fed.fit(Clustered(fed.classifier()), fed.federation())
    odd = fed.fit(FedAvg(fed.classifier()), fed.federation(sampler=sampling.predrawn([[1, 3]])))
    assert fed.equal(module.models[1], fed.entries(odd)) and not fed.equal(module.models[0], module.models[1])


def test_a_stream_of_one_task_is_the_plain_algorithm(fed):
    plain = fed.fit(FedAvg(fed.classifier()), fed.federation())
    stream = fed.federation(stream=TaskStream(tasks=1, rounds_per_task=3))
    assert fed.equal(fed.entries(fed.fit(FedAvg(fed.classifier()), stream)), fed.entries(plain))


def test_stages_positions_and_client_specific_downlinks(fed):
    seen = []

    class Telling(FederatedClient):
        def tell(self, inbox, state, data: ClientData):
            return Payload(got=inbox["own"], task=data.task, position=data.position)

    class Streamed(FederatedModule):
        def round(self, cohort):
            replies = cohort.call("tell", lambda client: Payload(own=10 * client))
            told = [(r.client, r["got"], r["task"], r["position"]) for r in replies]
            seen.append((cohort.stage, cohort.starts_stage, cohort.ends_stage, *told))

    stream = TaskStream(2, 2, order=lambda client, stage, position: 100 * stage + position)
    data = fed.federation(rounds=4, stream=stream, sampler=sampling.predrawn([[3, 1]]))
    fed.fit(Streamed(Telling(fed.classifier())), data)
    assert seen[0] == (0, True, False, (1, 10, 1, 1), (3, 30, 0, 0))
    assert seen[3] == (1, False, True, (1, 10, 101, 1), (3, 30, 100, 0))


def test_set_up_phases_several_trips_and_declining_clients(fed):
    class Chatty(FederatedClient):
        def prepare(self, inbox, state, data):
            state["cache"] = torch.full((2,), float(data.client))
            return None

        def summarise(self, inbox, state, data):
            return None if data.client == 2 else Payload(mean=state["cache"])

        def mix(self, inbox, state, data):
            return Payload(mixed=inbox["mean"] + state["cache"])

    class TwoTrips(FederatedModule):
        def round(self, cohort):
            if cohort.round == 0:
                cohort.everyone.call("prepare", Payload(), phase="setup")
            means = cohort.call("summarise", Payload())
            mean = weighted_mean(means, "mean", by=None)
            mixed = cohort.call("mix", Payload(mean=mean))
            self.result = {r.client: r["mixed"][0].item() for r in mixed}

    data = fed.federation(rounds=2, sampler=sampling.predrawn([[0, 2, 3]]))
    module = fed.fit(TwoTrips(Chatty(fed.classifier())), data)
    assert module.states.clients() == [0, 1, 2, 3]
    assert module.result == {0: 1.5, 2: 3.5, 3: 4.5}
    assert set(module.ledger.by("phase")) == {"setup", "summarise", "mix"}
    assert set(module.ledger.by("client", phase="setup", direction="up")) == set()
    assert set(module.ledger.by("client", phase="summarise", direction="up")) == {0, 3}


def test_partial_payloads_leave_other_entries_alone(fed):
    class HeadOnly(FederatedClient):
        def shared(self, model):
            kept = super().shared(model)
            return {name: value for name, value in kept.items() if name.startswith("net.3")}

    module = FedAvg(HeadOnly(fed.classifier()))
    before = fed.entries(module)
    fed.fit(module, fed.federation())
    after = fed.entries(module)
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == {"net.3.weight", "net.3.bias"}


def test_frozen_entries_exist_once_and_never_travel(fed):
    net = fed.classifier()
    net.net[0].requires_grad_(False)
    client = FederatedClient(net, role=roles.trainable_only)
    copy_ = client.model(Payload(), {})
    assert copy_.net[0].weight.data_ptr() == net.net[0].weight.data_ptr()
    assert copy_.net[3].weight.data_ptr() != net.net[3].weight.data_ptr()
    module = fed.fit(FedAvg(client), fed.federation(rounds=1))
    assert "model/net.0.weight" not in module.ledger.by("name")


def test_any_module_federates_in_mixed_precision_of_the_trainer(fed):
    outside = fed.fit(FedAvg(fed.classifier()), fed.federation(), precision="bf16-mixed")
    inside = FedAvg(fed.classifier(), training=LocalTraining(precision="bf16-mixed"))
    fed.fit(inside, fed.federation())
    assert fed.equal(fed.entries(outside), fed.entries(inside))
    plain = fed.fit(FedAvg(fed.classifier()), fed.federation())
    assert not fed.equal(fed.entries(outside), fed.entries(plain))
    with pytest.raises(UserError, match="no loss to scale"):
        fed.classifier()
        module = FedAvg(fed.classifier())
        module._trainer = type("T", (), {"precision": "16-mixed"})()
        module.on_fit_start()


def test_early_stopping_works_on_rounds(fed):
    data = fed.federation(rounds=40, test=fed.samples(96))
    stop = EarlyStopping("val/acc", mode="max", patience=1, min_delta=1.0)
    module = fed.fit(FedAvg(fed.classifier()), data, val_check_interval=2, callbacks=[stop])
    assert module.trainer.global_step < 40


def test_learning_rates_follow_the_rounds(fed):
    rates = []

    class Watching(FederatedClient):
        def result(self, model, state, data, report):
            rates.append(report.lr)
            return super().result(model, state, data, report)

    module = FedAvg(Watching(fed.classifier(lr=0.4)), lr_schedule=lambda number: 0.5**number)
    fed.fit(module, fed.federation(sizes=(8,), rounds=3))
    assert rates == pytest.approx([0.4, 0.2, 0.1])
    kept = LocalTraining(keep_optimizer=True)
    with pytest.raises(UserError, match="excludes lr_schedule"):
        FedAvg(fed.classifier(), training=kept, lr_schedule=lambda number: 1.0)


def test_memory_is_that_of_the_states_and_a_few_models(fed):
    """200 stateful clients of an MLP with 159,010 parameters, one sample each."""

    def resident():
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    class Wide(fed.Classifier):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 10))

    dataset = torch.utils.data.TensorDataset(torch.randn(200, 784), torch.randint(0, 10, (200,)))
    tens = sampling.predrawn(torch.arange(200).view(20, 10).tolist())
    data = fed.federation(sizes=(1,) * 200, rounds=20, dataset=dataset, sampler=tens)
    module = Scaffold(Wide())
    before = resident()
    fed.fit(module, data)
    states = 4 * 159_010 * len(module.states)
    assert len(module.states) == 200
    assert resident() - before < states + 200e6
