"""Batched training is sequential training, up to the order of sums."""

import logging
import random
import threading

import numpy as np
import pytest
import torch
from lightning.pytorch import LightningModule
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from shared.federated import roles, sampling
from shared.federated.algorithms.fedavg import FedAvg
from shared.federated.algorithms.fednova import FedNova
from shared.federated.algorithms.fedprox import FedProx
from shared.federated.algorithms.moon import Moon
from shared.federated.algorithms.scaffold import Scaffold
from shared.federated.client import FederatedClient
from shared.federated.engines.vectorized import Vectorized
from shared.federated.local import LocalTraining

SGD, Adam, AdamW = torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW


def conv(*norms):
    first, second = norms or (nn.Identity(), nn.Identity())
    return (
        nn.Conv2d(2, 4, 3),
        first,
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(4, 6, 3, padding=1),
        second,
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(6, 3),
    )


NETS = {
    "mlp": (nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3)),
    "no bias, tanh": (nn.Linear(5, 8, bias=False), nn.Tanh(), nn.Linear(8, 3)),
    "dropout": (nn.Linear(5, 8), nn.Dropout(0.5), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3)),
    "layer norm": (nn.Linear(5, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 3)),
    "batch norm": (nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)),
    "conv": conv(),
    "conv group norm": conv(nn.GroupNorm(2, 4), nn.GroupNorm(3, 6)),
    "conv batch norm": conv(nn.BatchNorm2d(4), nn.BatchNorm2d(6, affine=False)),
    "conv dropout": (nn.Dropout2d(0.3), *conv(nn.Dropout(0.2), nn.Dropout2d(0.5))),
    "global pool": (
        nn.Conv2d(2, 4, 3, stride=2, groups=2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4, 3),
    ),
    "other operations": (
        nn.ZeroPad2d(1),
        nn.Conv2d(2, 4, 3),
        nn.GELU(),
        nn.Flatten(2),
        nn.Conv1d(4, 3, 2),
        nn.SiLU(),
        nn.Flatten(),
        nn.LazyLinear(3),
    ),
}


@pytest.mark.parametrize("name", NETS)
def test_layers(engines, name):
    images = any(isinstance(m, (nn.Conv2d, nn.Dropout2d)) for m in NETS[name])
    sizes = (24, 18, 24, 40, 10) if "batch norm" in name else engines.sizes  # no batch of one sample
    net = engines.Net(*NETS[name])
    data = engines.images if images else engines.points
    net.double()(data(2).tensors[0])  # lazy layers take their shape
    engines.agree(net, data=data, sizes=sizes)


OPTIMIZERS = {
    "momentum": lambda p: SGD(p, lr=0.1, momentum=0.9),
    "nesterov": lambda p: SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "dampening": lambda p: SGD(p, lr=0.1, momentum=0.5, dampening=0.3, weight_decay=0.1),
    "maximize": lambda p: SGD(p, lr=0.01, maximize=True),
    "adam": lambda p: Adam(p, lr=0.01, weight_decay=0.1),
    "adamw": lambda p: AdamW(p, lr=0.01, weight_decay=0.1, betas=(0.8, 0.99)),
    "groups": lambda p: (lambda p: SGD([{"params": p[:1], "lr": 0.5}, {"params": p[1:3]}], lr=0.1))(list(p)),
    "step schedule": lambda p: (
        lambda o: ([o], [{"scheduler": torch.optim.lr_scheduler.ExponentialLR(o, 0.8), "interval": "step"}])
    )(SGD(p, lr=0.1)),
    "epoch schedule": lambda p: (lambda o: ([o], [torch.optim.lr_scheduler.StepLR(o, 1, 0.5)]))(
        AdamW(p, lr=0.1)
    ),
    "plateau": lambda p: (
        lambda o: {
            "optimizer": o,
            "lr_scheduler": {
                "scheduler": torch.optim.lr_scheduler.ReduceLROnPlateau(o, patience=0, threshold=10.0),
                "monitor": "train/loss",
            },
        }
    )(SGD(p, lr=0.1)),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("keep", [False, True], ids=["fresh", "kept"])
def test_optimisers_and_schedules(engines, name, keep):
    training = LocalTraining(max_epochs=3, keep_optimizer=keep)
    engines.agree(engines.mlp(optimizer=OPTIMIZERS[name]), training=training, rounds=3)


SETTINGS = {
    "norm clipped": {"gradient_clip_val": 0.3},
    "value clipped": {"gradient_clip_val": 0.02, "gradient_clip_algorithm": "value"},
    "epochs": {"max_epochs": 3},
    "steps": {"max_epochs": 9, "max_steps": 4},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_training_settings(engines, name):
    engines.agree(engines.mlp(), training=LocalTraining(**SETTINGS[name]))


@pytest.mark.parametrize(
    "loading",
    [
        {"drop_last": True},
        {"batch_size": 64},
        {"batch_size": 1},
        {"collate_fn": torch.utils.data.default_collate},
    ],
)
def test_batches(engines, loading):
    """Also full batches, of which no two are alike but those of the clients of one size."""
    engines.agree(engines.mlp(), loading=loading)


class Pulled(FederatedClient):
    """Keeps its last weights; a number that differs between clients is in the state, and nobody reads it."""

    def extra_loss(self, model, batch, inbox, state):
        pull = sum(((p - inbox["model"][name]) ** 2).sum() for name, p in model.named_parameters())
        if "last" in state:
            pull = pull + sum(((p - state["last"][name]) ** 2).sum() for name, p in model.named_parameters())
        return 0.1 * pull + 0.0 * batch[0].sum()

    def result(self, model, state, data, report):
        state["last"] = {name: value.clone() for name, value in self.shared(model).items()}
        state["samples"] = len(data.train)
        return super().result(model, state, data, report)


class Twice(FederatedClient):
    def fit(self, inbox, state, data):
        model = self.model(inbox, state)
        self.train(model, inbox, state, data)
        model.net[0].weight.requires_grad_(False)
        report = self.train(model, inbox, state, data)
        return self.result(model, state, data, report).plus(draw=float(torch.rand(())))


class Own(FedAvg):
    Client = Twice


ALGORITHMS = {
    "fedprox": (FedProx, {"mu": 0.5}),
    "scaffold": (Scaffold, {}),
    "fednova": (FedNova, {}),
    "moon": (Moon, {"mu": 2.0, "head": "net.3"}),
    "extra loss": (type("Pull", (FedAvg,), {"Client": Pulled}), {}),
    "two trainings in one fit": (Own, {}),
}


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("sampled", [False, True], ids=["all", "sampled"])
def test_algorithms(engines, name, sampled):
    """With sampling, clients with and without earlier state meet in one call."""
    algorithm, settings = ALGORITHMS[name]
    loading = {"sampler": sampling.predrawn([[0, 1], [1, 2, 0, 3], [4, 3, 1, 0, 2]])} if sampled else {}
    net = engines.Net(nn.Linear(5, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3))
    engines.agree(net, algorithm=algorithm, loading=loading, rounds=3, **settings)


def test_personal_entries_and_frozen_ones(engines):
    net = engines.Net(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    net.net[0].requires_grad_(False)
    module = engines.agree(
        net, role=roles.by_name(personal=r"net\.1", frozen=r"net\.0"), sizes=(24, 18, 24), buffers="personal"
    )
    assert module.states[1]["personal"]["net.1.num_batches_tracked"] == 6


class Jitters(FederatedClient):
    """Draws before and after training, from every global stream."""

    def fit(self, inbox, state, data):
        model = self.model(inbox, state)
        for _ in range(2):
            with torch.no_grad():
                model.net[0].bias.add_(torch.rand(()) + random.random() + np.random.rand())  # noqa: NPY002
            report = self.train(model, inbox, state, data)
        with torch.no_grad():
            model.net[0].bias.add_(torch.rand(()) + random.random() + np.random.rand())  # noqa: NPY002
        return self.result(model, state, data, report)


class Noisy(Dataset):
    """Draws from the global streams while it is read."""

    def __init__(self, dataset):
        self.dataset = dataset

    def __len__(self):
        return len(self.dataset)

    def __getitem__(self, index):
        x, y = self.dataset[index]
        return {"x": x + torch.randn(5, dtype=x.dtype) + random.random(), "y": y, "name": "sample"}


def test_samples_that_draw_random_numbers(engines):
    class Net(engines.Net):
        def training_step(self, batch, batch_idx):
            return F.cross_entropy(self(batch["x"]), batch["y"])

    net = Net(nn.Linear(5, 8), nn.Dropout(0.5), nn.Linear(8, 3))
    engines.agree(net, data=Noisy(engines.points(115)), client=Jitters, rounds=3)


def test_what_a_client_puts_into_its_module(engines):
    """Attributes: tensors of each client's own, and a list that all have alike."""

    class Client(FederatedClient):
        def fit(self, inbox, state, data):
            model = self.model(inbox, state)
            model.centre = torch.full((3,), float(data.client), dtype=torch.float64)
            model.scales = [1.0, 2.0]
            return self.result(model, state, data, self.train(model, inbox, state, data))

    class Net(engines.Net):
        def training_step(self, batch, batch_idx):
            z = self(batch[0])
            return F.cross_entropy(z, batch[1]) + self.scales[1] * ((z - self.centre) ** 2).mean()

    engines.agree(Net(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3)), client=Client)


def test_downlinks_of_their_own(engines):
    class Pull(FedAvg):
        Client = type(
            "Client",
            (FederatedClient,),
            {"gradient": lambda self, g, p, inbox, state: {n: v + inbox["push"] for n, v in g.items()}},
        )

        def round(self, cohort):
            replies = cohort.call("fit", lambda c: self.broadcast().plus(push=torch.tensor(0.01 * c)))
            self.update({n: replies[0]["model"][n] + replies[-1]["model"][n] for n in self.theta()})

    engines.agree(engines.mlp(), algorithm=Pull)


# What cannot be batched.


def refusing(change, **methods):
    return lambda engines: type("Net", (engines.Net,), methods | change)(
        nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3)
    )


def counting_step(self, batch, batch_idx):
    self.seen = getattr(self, "seen", 0) + 1
    return F.cross_entropy(self(batch[0]), batch[1])


def branching_step(self, batch, batch_idx):
    loss = F.cross_entropy(self(batch[0]), batch[1])
    return loss * 2 if loss > 1 else loss


def drawing_step(self, batch, batch_idx):
    return F.cross_entropy(self(batch[0] + torch.randn_like(batch[0])), batch[1])


def stepping_step(self, batch, batch_idx):
    return F.cross_entropy(self(batch[0]), batch[1]) * (1 + self.global_step)


def inner_counting_step(self, batch, batch_idx):
    """Counts below an attribute, and acts on the count late."""
    self.counts["steps"] += 1
    return F.cross_entropy(self(batch[0]), batch[1]) * (3 if self.counts["steps"] > 2 else 1)


def inner_drawing_step(self, batch, batch_idx):
    sign = 1 if self.draws.random() < 0.5 else -1
    return F.cross_entropy(self(sign * batch[0]), batch[1])


def assigning_step(self, batch, batch_idx):
    self.mean = 0.9 * self.mean + 0.1 * batch[0].mean(0)
    return F.cross_entropy(self(batch[0] - self.mean), batch[1])


def adding_step(self, batch, batch_idx):
    self.total += batch[0].mean()
    return F.cross_entropy(self(batch[0]), batch[1]) * self.total


REFUSALS = {
    "changes Net.seen": {"training_step": counting_step},
    "changes Net.counts.steps": {"training_step": inner_counting_step},
    "changes Net.draws": {"training_step": inner_drawing_step},
    "changes Net._buffers.mean": {"training_step": assigning_step},
    "changes Net.total, which is no": {"training_step": adding_step},
    "data-dependent control flow": {"training_step": branching_step},
    "random": {"training_step": drawing_step},
    "trainer.global_step": {"training_step": stepping_step},
    "on_train_batch_start": {"on_train_batch_start": lambda self, batch, index: None},
    "RMSprop": {"configure_optimizers": lambda self: torch.optim.RMSprop(self.parameters(), lr=0.01)},
    "amsgrad": {"configure_optimizers": lambda self: Adam(self.parameters(), lr=0.01, amsgrad=True)},
}


@pytest.mark.parametrize("reason", REFUSALS)
def test_refusals_train_sequentially_bit_for_bit(engines, reason, caplog):
    net = refusing(REFUSALS[reason])(engines)
    net.counts, net.draws, net.total = {"steps": 0}, random.Random(0), torch.zeros((), dtype=torch.float64)
    net.register_buffer("mean", torch.zeros(5))
    with caplog.at_level(logging.WARNING):
        engines.agree(net, refused=reason, exactly=True, rounds=3, training=LocalTraining(max_epochs=2))
    assert caplog.text.count("one after the other") == 1  # not once a round


def test_a_loss_term_that_writes_to_the_state_is_refused(engines):
    class Noting(FederatedClient):
        def extra_loss(self, model, batch, inbox, state):
            state["steps"] = state.get("steps", 0) + 1
            return 0.01 * model.net[0].weight.square().sum()

    module = engines.agree(engines.mlp(), refused="changes dict.steps", exactly=True, client=Noting)
    assert [module.states[client]["steps"] for client in range(5)] == [6, 6, 6, 10, 4]


def test_random_numbers_of_a_later_step_are_refused(engines):
    def training_step(self, batch, batch_idx):
        loss = F.cross_entropy(self(batch[0]), batch[1])
        return loss * (1 + random.random()) if batch_idx > 0 else loss

    engines.agree(refusing({"training_step": training_step})(engines), refused="random", exactly=True)


def test_a_trained_tensor_that_is_no_parameter_is_refused(engines):
    class Hidden(engines.Net):
        def __init__(self, *layers):
            super().__init__(*layers)
            self.scale = [nn.Parameter(torch.ones(3, dtype=torch.float64))]

        def training_step(self, batch, batch_idx):
            return F.cross_entropy(self(batch[0]) * self.scale[0], batch[1])

        def configure_optimizers(self):
            return torch.optim.SGD([*self.parameters(), *self.scale], lr=0.1)

    net = Hidden(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3))
    engines.agree(net, refused="no parameter of the module", exactly=True)


def test_what_a_step_logs_of_a_parameter_is_its_value_in_that_step(engines):
    def training_step(self, batch, batch_idx):
        self.log("train/weight", self.net[0].weight[0, 0])
        self.log("train/bias", self.net[2].bias.sum())
        return F.cross_entropy(self(batch[0]), batch[1])

    engines.agree(refusing({"training_step": training_step})(engines))


def test_batches_that_hold_more_than_tensors(engines):
    """Arrays that differ somewhere deep, and objects of which nothing is known."""

    class Note:
        def __init__(self, value):
            self.value = value

        def __repr__(self):
            return "Note"

    def collate(samples):
        x, y = (torch.stack([sample[i] for sample in samples]) for i in (0, 1))
        deep = np.zeros((40, 200))
        deep[20, 100] = float(x[0, 0])
        return x, y, deep, Note(float(x.mean()))

    def training_step(self, batch, batch_idx):
        x, y, deep, note = batch
        return F.cross_entropy(self(x), y) * (2 + float(deep.sum()) + note.value)

    net = refusing({"training_step": training_step})(engines)
    engines.agree(net, loading={"collate_fn": collate})


def test_a_late_refusal_starts_all_over(engines):
    """The second epoch reads a value; what the first one did is forgotten, draws included."""

    class Late(engines.Net):
        def training_step(self, batch, batch_idx):
            loss = F.cross_entropy(self(batch[0]), batch[1])
            return loss * loss.item() if self.current_epoch == 1 else loss

    net = Late(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3))
    training = LocalTraining(max_epochs=2, keep_optimizer=True)
    engines.agree(net, refused="item", exactly=True, sizes=(24, 24, 24), rounds=3, training=training)


@pytest.mark.parametrize(
    "settings", [{"accumulate_grad_batches": 2}, {"precision": "bf16-mixed"}], ids=["accumulated", "mixed"]
)
def test_refused_settings(engines, settings):
    reason = "accumulated" if "accumulate_grad_batches" in settings else "mixed"
    engines.agree(engines.mlp(), refused=reason, exactly=True, training=LocalTraining(**settings))


def test_manual_optimisation_is_refused(engines):
    def training_step(self, batch, batch_idx):
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(F.cross_entropy(self(batch[0]), batch[1]))
        optimizer.step()

    net = refusing({"training_step": training_step})(engines)
    net.automatic_optimization = False
    engines.agree(net, refused="manual", exactly=True)


def test_state_that_differs_in_a_value_is_refused_only_when_read(engines):
    class Client(Pulled):
        def extra_loss(self, model, batch, inbox, state):
            return super().extra_loss(model, batch, inbox, state) * state.get("samples", 1)

    engine = Vectorized()
    engines.run(engines.mlp(), engine, client=Client)
    assert any("samples" in reason for reason in engine.reasons)


# Groups, order, failures.


def test_more_clients_than_train_at_once(engines):
    engines.agree(engines.mlp(), lanes=2)


def test_the_order_of_a_cohort_changes_no_bit(engines, fed):
    net = engines.mlp()
    found = [
        fed.entries(engines.run(net, "vectorized", loading={"sampler": sampling.predrawn([order] * 2)}))
        for order in ([0, 1, 2, 3, 4], [3, 0, 4, 2, 1])
    ]
    assert fed.equal(*found)


def test_a_failing_client_ends_the_call_and_all_its_threads(engines):
    class Client(FederatedClient):
        def fit(self, inbox, state, data):
            model = self.model(inbox, state)
            report = self.train(model, inbox, state, data)
            if data.client == 2:
                raise RuntimeError("broken disk")
            self.train(model, inbox, state, data)
            return self.result(model, state, data, report)

    before = threading.active_count()
    with pytest.raises(RuntimeError, match="broken disk") as caught:
        engines.run(engines.mlp(), "vectorized", client=Client)
    assert "client 2" in "".join(caught.value.__notes__)
    assert threading.active_count() == before


def test_a_client_that_cannot_train_is_left_out(engines, caplog):
    """No sample; and one sample in batch normalisation, which only the sequential way can name."""
    engines.run(engines.mlp(), "vectorized", sizes=(24, 0, 16), on_bad_reply="exclude")
    assert "client 1 is left out of round 0: it has no training sample" in caplog.text
    net = engines.Net(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    engines.run(net, "vectorized", sizes=(24, 9, 16), on_bad_reply="exclude")
    assert "client 1 is left out of round 0: a batch of one sample" in caplog.text


def test_global_streams_are_left_alone(engines):
    net, after = engines.Net(nn.Linear(5, 8), nn.Dropout(0.5), nn.Linear(8, 3)), []
    for engine in ("sequential", "vectorized"):
        torch.manual_seed(3)
        engines.run(net, engine)
        after.append(torch.rand(2))
    assert torch.equal(*after)


class Regular(LightningModule):
    """Uses its weight beside the layer: where that can be seen, and hidden in a list."""

    def __init__(self, hidden):
        super().__init__()
        self.first, self.last, self.hidden = nn.Linear(5, 8), nn.Linear(8, 3, bias=False), hidden

    def training_step(self, batch, batch_idx):
        loss = F.cross_entropy(self.last(self.first(batch[0]).tanh()), batch[1])
        weight = self.last.weight
        square = torch.einsum("oi,oi->oi", [weight, weight]) if self.hidden else weight**2
        return loss + 0.1 * square.sum()

    def configure_optimizers(self):
        return SGD(self.parameters(), lr=0.1, weight_decay=0.01)


@pytest.mark.parametrize("hidden", [False, True])
def test_weights_that_are_used_elsewhere_too(engines, hidden):
    engines.agree(Regular(hidden))


def test_tied_layers(engines):
    layer = nn.Linear(5, 5)
    engines.agree(engines.Net(layer, nn.Tanh(), layer, nn.Linear(5, 3)))
