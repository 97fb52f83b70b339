"""A federation that trains in milliseconds, for all tests of the loop."""

from types import SimpleNamespace

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from shared.federated.algorithms.scaffold import Scaffold
from shared.federated.data import FederatedData
from shared.federated.module import FederatedModule
from shared.federated.partition import Partition
from shared.federated.sampling import uniform


class Classifier(LightningModule):
    """Written for plain Lightning; knows nothing of federations."""

    def __init__(self, norm: bool = False, dropout: float = 0.0, lr: float = 0.1, momentum: float = 0.0):
        super().__init__()
        middle = [nn.BatchNorm1d(8)] if norm else []
        self.net = nn.Sequential(nn.Linear(5, 8), *middle, nn.ReLU(), nn.Dropout(dropout), nn.Linear(8, 3))
        self.lr, self.momentum = lr, momentum

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.cross_entropy(self(x), y)
        self.log("train/loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("val/acc", (self(x).argmax(1) == y).float().mean())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.lr, momentum=self.momentum)


def samples(count: int = 96) -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(count, 5, generator=generator)
    return TensorDataset(x, x[:, :3].argmax(1))


def federation(sizes=(24, 24, 24, 24), *, rounds=3, batch_size=8, seed=0, dataset=None, **settings):
    """Clients with consecutive samples of `sizes`."""
    dataset = dataset or samples(sum(sizes))
    cuts = torch.arange(sum(sizes)).split(list(sizes))
    partition = Partition([cut.numpy() for cut in cuts])
    return FederatedData(dataset, partition, rounds=rounds, batch_size=batch_size, seed=seed, **settings)


def trainer(**settings):
    defaults = {
        "accelerator": "cpu",
        "devices": 1,
        "max_epochs": 1,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    return Trainer(**(defaults | settings))


def fit(module, data, **settings):
    """Train to the end; returns the module."""
    trainer(**settings).fit(module, datamodule=data)
    return module


def classifier(seed=0, **settings):
    torch.manual_seed(seed)
    return Classifier(**settings)


def entries(module):
    return {name: value.clone() for name, value in module.model.state_dict().items()}


def equal(left, right):
    assert left.keys() == right.keys()
    return [name for name in left if not torch.equal(left[name], right[name])] == []


def shared_cohort():
    """A module and data whose rounds two processes can share: states, dropout, evaluation, a lost client."""
    sizes = (24, 16, 24, 8, 20)
    data = federation(
        sizes,
        sampler=uniform(5, 3, seed=1),
        test=samples(40),
        client_test=(samples(92), federation(sizes).partitions[0]),
        dropouts=lambda client, round: (client, round) == (2, 1),
    )
    return Scaffold(classifier(dropout=0.3), targets=("received",), engine="sequential"), data


@pytest.fixture(autouse=True)
def reference_engine(monkeypatch):
    """These tests compare bit for bit: the engine is the reference unless a test names another."""
    defaults = FederatedModule.__init__.__kwdefaults__
    assert defaults["engine"] == "auto"
    monkeypatch.setitem(defaults, "engine", "sequential")


@pytest.fixture(scope="session")
def fed():
    return SimpleNamespace(
        Classifier=Classifier,
        classifier=classifier,
        samples=samples,
        federation=federation,
        trainer=trainer,
        fit=fit,
        entries=entries,
        equal=equal,
        shared_cohort=shared_cohort,
    )
