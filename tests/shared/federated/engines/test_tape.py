"""A step is played only where playing it is what running it would be."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from shared.federated.algorithms.fedprox import FedProx
from shared.federated.algorithms.scaffold import Scaffold
from shared.federated.client import FederatedClient
from shared.federated.engines.vectorized import Vectorized, training
from shared.federated.engines.vectorized.tape import Repeated, reads_index

LONG = (80, 80, 80)  # ten batches each


def repeat(function, times=4):
    """Outputs of the calls with fresh inputs, how often `function` ran, and the Repeated."""
    repeated, ran = Repeated(), []

    def run(x, w):
        ran.append(1)
        return function(x, w)

    outputs = []
    for number in range(times):
        x, w = torch.arange(3.0) + number, torch.ones(3)
        outputs.append((repeated.run(lambda x=x, w=w: run(x, w), [x, w]), w))
    return outputs, len(ran), repeated


def test_two_equal_steps_are_played_from_then_on():
    def step(x, w):
        x = x.requires_grad_()
        loss = (torch.cat([x, x * 2]) * w.repeat(2)).pow(2).sum()
        (gradient,) = torch.autograd.grad(loss, x)
        w.sub_(gradient, alpha=0.1)
        return [gradient, None, loss.detach()]

    outputs, ran, repeated = repeat(step)
    assert ran == 2 and repeated.tape is not None
    for number, ((gradient, nothing, loss), w) in enumerate(outputs):
        (expected, _, total), changed = step(torch.arange(3.0) + number, w := torch.ones(3)), w
        assert torch.equal(gradient, expected) and torch.equal(loss, total) and nothing is None
    assert torch.equal(outputs[3][1], changed)


def test_an_in_place_change_of_an_input_is_played():
    outputs, ran, _ = repeat(lambda x, w: [w.mul_(x)])
    assert ran == 2
    assert [w.tolist() for _, w in outputs] == [[n, n + 1, n + 2] for n in range(4)]


COUNTER = iter(range(100))
KEPT = list(torch.ones(100, 3).unbind())
DEPENDENT = {
    "called in different ways": lambda x, w: [x * next(COUNTER)],
    "another one in each step": lambda x, w: [x + KEPT[next(COUNTER)]],
    "comes from elsewhere": lambda x, w: [x + torch.tensor(float(next(COUNTER)))],
    "different operations": lambda x, w: [x + 1 if next(COUNTER) % 2 else (x + 1) * 2],
    "gives a value to Python": lambda x, w: [x * x.sum().item()],
}


@pytest.mark.parametrize("reason", DEPENDENT)
def test_what_depends_on_more_is_never_played(reason):
    _, ran, repeated = repeat(DEPENDENT[reason])
    assert ran == 4 and reason in repeated.reason


def test_foreign_tensors_are_read_where_they_are():
    """One that changes in place is seen; a literal is the same literal."""
    kept = torch.zeros(3)
    outputs, ran, _ = repeat(lambda x, w: [kept.add_(1) * torch.tensor(2.0)])
    assert ran == 2 and outputs[3][0][0].tolist() == [8.0] * 3


def test_a_literal_that_is_changed_starts_anew_in_each_step():
    def step(x, w):
        factor = torch.tensor([1.0, 0.5, 0.25])
        factor *= 0.5
        return [x * factor]

    outputs, ran, _ = repeat(step)
    assert ran == 2
    assert [output[0].tolist() for output, _ in outputs] == [
        [0.5 * n, 0.25 * (n + 1), 0.125 * (n + 2)] for n in range(4)
    ]


def test_who_reads_the_batch_index():
    class Own(nn.Module):
        def plain(self, batch, batch_idx):
            return batch

        def closed(self, batch, index):
            return [index for _ in batch]

        def passed(self, batch, batch_idx):
            return self.plain(batch, batch_idx)

        def wrapped(self, *args):
            return args

    own = Own()
    assert [reads_index(m) for m in (own.plain, own.closed, own.passed, own.wrapped)] == [
        False,
        True,
        True,
        True,
    ]


@pytest.fixture
def played(monkeypatch):
    """Steps that were run, and those that were played, by all federations of a test."""
    counts = {"run": 0, "played": 0}

    class Counted(Repeated):
        def run(self, function, inputs):
            counts["played" if self.tape is not None else "run"] += 1
            return super().run(function, inputs)

    monkeypatch.setattr(training, "Repeated", Counted)
    return counts


LAYERS = {
    "mlp": lambda: (nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3)),
    "dropout": lambda: (nn.Linear(5, 8), nn.Dropout(0.5), nn.ReLU(), nn.Linear(8, 3)),
    "batch norm": lambda: (nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)),
    "layer norm": lambda: (nn.Linear(5, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 3)),
}
IMAGES = {
    "conv": lambda: (nn.Conv2d(2, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 3)),
    "conv norms": lambda: (
        *(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout2d(0.3), nn.Conv2d(4, 4, 3)),
        *(nn.GroupNorm(2, 4), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)),
    ),
}


@pytest.mark.parametrize("name", [*LAYERS, *IMAGES])
def test_played_training_is_sequential_training(engines, played, name):
    layers = {**LAYERS, **IMAGES}[name]()
    data = engines.images if name in IMAGES else engines.points
    engines.agree(engines.Net(*layers), data=data, sizes=LONG)
    draws = any(isinstance(layer, (nn.Dropout, nn.Dropout2d)) for layer in layers)
    first, second = 2, 2 if draws else 1  # in the second round one step shows that all is as before
    assert played == {"run": first + second, "played": 20 - first - second}


@pytest.mark.parametrize("algorithm, settings", [(FedProx, {"mu": 0.5}), (Scaffold, {})])
def test_played_hooks(engines, played, algorithm, settings):
    """Their tensors are others in every round."""
    engines.agree(engines.mlp(), algorithm=algorithm, sizes=LONG, rounds=3, **settings)
    assert played["played"] == 3 * 8


def optimizers():
    schedule = torch.optim.lr_scheduler
    late = lambda p: (  # noqa: E731 - the rate changes after the tape was made
        lambda o: ([o], [{"scheduler": schedule.MultiStepLR(o, [5, 7], 0.1), "interval": "step"}])
    )(torch.optim.SGD(p, lr=0.2))
    return {
        "adam": lambda p: torch.optim.Adam(p, lr=0.01),
        "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
        "late": late,
    }


@pytest.mark.parametrize("name", optimizers())
def test_played_with_optimisers_that_change(engines, played, name):
    engines.agree(engines.mlp(optimizer=optimizers()[name]), sizes=LONG)
    assert played["played"] >= 4


def by_index(self, batch, batch_idx):
    return F.cross_entropy(self(batch[0]), batch[1]) * (3.0 if batch_idx == 6 else 1.0)


def by_step(self, batch, batch_idx):
    return F.cross_entropy(self(batch[0]), batch[1]) * (3.0 if self.global_step == 6 else 1.0)


def by_log(self, batch, batch_idx):
    loss = F.cross_entropy(self(batch[0]), batch[1])
    self.log("train/rate", 0.5)
    return loss


def by_own_optimizer(self, batch, batch_idx):
    return F.cross_entropy(self(batch[0]), batch[1]) * self.own[0].param_groups[0]["lr"]


def keeping_its_optimizer(self):
    self.own = [torch.optim.Adam(self.parameters(), lr=0.1)]
    schedule = torch.optim.lr_scheduler.MultiStepLR(self.own[0], [5], 0.1)
    return self.own, [{"scheduler": schedule, "interval": "step"}]


def test_a_step_that_reads_its_optimizer_is_run(engines, played):
    methods = {"training_step": by_own_optimizer, "configure_optimizers": keeping_its_optimizer}
    net = type("Net", (engines.Net,), methods)(*LAYERS["mlp"]())
    engines.run(net, "vectorized", sizes=LONG)
    assert played["played"] == 0


def test_old_tapes_are_forgotten(engines, played, monkeypatch):
    monkeypatch.setattr(training, "TAPES", 3)

    class Falling(engines.Net):
        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1 / (1 + float(self.round)))

    class Client(FederatedClient):
        def fit(self, inbox, state, data):
            state["round"] = state.get("round", 0) + 1
            return super().fit(inbox, state, data)

        def model(self, inbox, state):
            model = super().model(inbox, state)
            model.round = state["round"]
            return model

    module = engines.run(Falling(*LAYERS["mlp"]()), Vectorized(), client=Client, sizes=LONG, rounds=6)
    assert played["played"] == 6 * 8 and len(module.engine._tapes) == 3


@pytest.mark.parametrize("step", [by_index, by_step, by_log])
def test_steps_that_may_change_later_are_run(engines, played, step):
    net = type("Net", (engines.Net,), {"training_step": step})(*LAYERS["mlp"]())
    engines.agree(net, sizes=LONG)
    assert played["played"] == 0


def test_a_loss_term_that_counts_is_run(engines, played):
    class Counting(FederatedClient):
        def extra_loss(self, model, batch, inbox, state):
            weight = next(inbox.entries.setdefault("steps", iter(range(10**6))))
            return 1e-9 * weight * model.net[0].weight.sum()

    engines.run(engines.mlp(), "vectorized", client=Counting, sizes=LONG)
    assert played["played"] == 0


def test_python_randomness_in_a_step_is_refused(engines, played):
    import random

    def step(self, batch, batch_idx):
        return F.cross_entropy(self(batch[0]), batch[1]) * (1 + random.random())

    net = type("Net", (engines.Net,), {"training_step": step})(*LAYERS["mlp"]())
    engines.agree(net, sizes=LONG, refused="random numbers", exactly=True)
