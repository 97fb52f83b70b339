"""The default engine measures once, leaves no trace of that, and keeps its choice when a run is resumed."""

import logging

import pytest
import torch
from torch import nn

from shared.federated import engines as ways
from shared.federated.algorithms.fedavg import FedAvg
from shared.federated.algorithms.scaffold import Scaffold
from shared.federated.codecs.feedback import ErrorFeedback
from shared.federated.codecs.sparse import TopK
from shared.federated.engines.auto import Auto
from shared.federated.engines.vectorized import Vectorized


@pytest.fixture
def faster(monkeypatch):
    """Trials run as always; who wins is given."""

    def win(name):
        measure = Auto._seconds

        def seconds(self, engine, tasks, node, steps):
            measure(self, engine, tasks, node, steps)
            return 1.0 if engine is getattr(self, name) else 2.0

        monkeypatch.setattr(Auto, "_seconds", seconds)

    return win


@pytest.mark.parametrize("name", ["sequential", "vectorized"])
def test_the_trial_leaves_no_trace(engines, fed, faster, name):
    """Parameters, client states, ledger, metrics and global streams are those of the engine alone."""
    faster(name)
    net = engines.Net(nn.Linear(5, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3))
    settings = {"algorithm": Scaffold, "codec": ErrorFeedback(TopK(0.3)), "targets": ("received",)}
    loading = {"client_test": (engines.points(115), fed.federation(engines.sizes).partitions[0])}
    found = []
    for engine in (name, Auto()):
        torch.manual_seed(5)
        module = engines.run(net, engine, loading=loading, **settings)
        found.append((module, torch.rand(2)))
    (alone, left), (chosen, right) = found
    assert chosen.engine.choices == {"fit": name, "evaluate_received": "sequential"}
    assert torch.equal(left, right) and fed.equal(fed.entries(alone), fed.entries(chosen))
    assert alone.states.digest() == chosen.states.digest()
    assert alone.ledger.state_dict() == chosen.ledger.state_dict()
    assert alone.trainer.callback_metrics == chosen.trainer.callback_metrics


def test_the_choice_survives_a_checkpoint(engines, fed, faster, tmp_path, monkeypatch):
    faster("vectorized")
    net = engines.Net(nn.Linear(5, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3))
    whole = engines.run(net, "auto", rounds=4, save=(tmp_path / "half.ckpt", 2))
    monkeypatch.setattr(Auto, "_seconds", lambda *args: pytest.fail("measured again"))
    resumed = engines.run(net, "auto", rounds=4, resume=tmp_path / "half.ckpt")
    assert resumed.engine.choices == {"fit": "vectorized"}
    assert fed.equal(fed.entries(whole), fed.entries(resumed))


def test_what_cannot_be_batched_is_not_measured(engines, caplog):
    net = engines.mlp(optimizer=lambda parameters: torch.optim.RMSprop(parameters))
    with caplog.at_level(logging.INFO):
        module = engines.run(net, "auto")
    assert module.engine.choices == {"fit": "sequential"}
    assert "the optimiser is RMSprop" in caplog.text and "nothing there can be batched" in caplog.text


def test_the_cost_of_all_steps_decides(engines, monkeypatch):
    """Few steps are faster one client after the other, many are not; neither is seen in what is measured."""

    def seconds(self, engine, tasks, node, steps):
        measure(self, engine, tasks, node, steps)
        return 2.0 + 0.1 * steps if engine is self.vectorized else 0.2 * steps

    measure = Auto._seconds
    monkeypatch.setattr(Auto, "_seconds", seconds)
    chosen = [engines.run(engines.mlp(), "auto", sizes=(8 * steps,) * 3, rounds=1) for steps in (12, 30)]
    assert [module.engine.choices["fit"] for module in chosen] == ["sequential", "vectorized"]


def test_a_real_trial_chooses_one_and_says_so(engines, caplog):
    with caplog.at_level(logging.INFO):
        module = engines.run(engines.mlp(), "auto")
    choice = module.engine.choices["fit"]
    assert f"engine of fit: {choice} (5 clients" in caplog.text


def test_one_client_needs_no_choice(engines):
    assert engines.run(engines.mlp(), "auto", sizes=(24,)).engine.choices == {}


def test_engines_by_name():
    assert isinstance(ways.make("auto"), Auto) and isinstance(ways.make("vectorized"), Vectorized)


def test_another_engine_takes_over_a_checkpoint(engines, tmp_path):
    engines.run(engines.mlp(), "auto", rounds=4, save=(tmp_path / "half.ckpt", 2))
    second = engines.run(engines.mlp(), "sequential", rounds=4, resume=tmp_path / "half.ckpt")
    assert second.trainer.global_step == 4 and type(second) is FedAvg
