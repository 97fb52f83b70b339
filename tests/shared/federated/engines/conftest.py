"""Runs of one federation by two engines, in float64: what remains are differences of reassociation."""

import copy
from types import SimpleNamespace

import pytest
import torch
from lightning.pytorch import Callback, LightningModule
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from shared.federated.algorithms.fedavg import FedAvg
from shared.federated.engines.vectorized import Vectorized

SIZES = (24, 17, 24, 40, 10)  # of batches of 8: two clients alike, remainders of 1, 2 and none


class Net(LightningModule):
    """Any layers, any optimiser; logs its loss."""

    def __init__(self, *layers, optimizer=None):
        super().__init__()
        self.net = nn.Sequential(*layers)
        self.optimizer = optimizer or (lambda parameters: torch.optim.SGD(parameters, lr=0.1))

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        loss = F.cross_entropy(self(batch[0]), batch[1])
        self.log("train/loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self):
        return self.optimizer(self.parameters())


class Save(Callback):
    def __init__(self, path, after):
        self.path, self.after = path, after

    def on_train_batch_end(self, trainer, *args):
        if trainer.global_step == self.after:
            trainer.save_checkpoint(self.path)


def mlp(**settings):
    return Net(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3), **settings)


def points(count):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(count, 5, generator=generator, dtype=torch.float64)
    return TensorDataset(x, x[:, :3].argmax(1))


def images(count):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(count, 2, 8, 8, generator=generator, dtype=torch.float64)
    return TensorDataset(x, torch.randint(0, 3, (count,), generator=generator))


@pytest.fixture(scope="session")
def engines(fed):
    def run(
        net,
        engine,
        *,
        algorithm=FedAvg,
        client=None,
        sizes=SIZES,
        data=points,
        loading=None,
        rounds=2,
        save=None,
        resume=None,
        **settings,
    ):
        """The module after `rounds` rounds; `save`: a path and the round after which to write it."""
        dataset = data(sum(sizes)) if callable(data) else data
        federation = fed.federation(sizes, dataset=dataset, rounds=rounds, **(loading or {}))
        net = copy.deepcopy(net).double()
        module = algorithm(net if client is None else client(net), engine=engine, **settings)
        trainer = fed.trainer(callbacks=[Save(*save)] if save else [])
        trainer.fit(module, datamodule=federation, ckpt_path=resume)
        return module

    def agree(net, *, refused=None, exactly=False, lanes=None, **settings):
        """Both engines; the same models, states, bytes and logged means. Returns the vectorized module."""
        engine = Vectorized(lanes)
        left, right = run(net, "sequential", **settings), run(net, engine, **settings)
        for name, value in fed.entries(left).items():
            found = fed.entries(right)[name]
            assert (
                torch.equal(found, value) if exactly else torch.allclose(found, value, rtol=1e-9, atol=1e-11)
            ), name
        expected = {n: v for n, v in left.trainer.callback_metrics.items() if "seconds" not in n}
        assert {n: float(v) for n, v in right.trainer.callback_metrics.items()} == pytest.approx(
            {n: float(v) for n, v in expected.items()}, rel=1e-6
        )
        assert left.ledger.by("client") == right.ledger.by("client")
        assert left.states.clients() == right.states.clients()
        if refused is None:
            assert not engine.reasons and engine.batched
        else:
            assert [reason for reason in engine.reasons if refused in reason] and not engine.batched
        return right

    return SimpleNamespace(Net=Net, mlp=mlp, points=points, images=images, run=run, agree=agree, sizes=SIZES)
