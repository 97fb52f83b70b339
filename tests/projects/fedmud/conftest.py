"""Small federations on synthetic images, for all tests of this paper."""

from types import SimpleNamespace

import pytest
import torch
from lightning.pytorch import Trainer
from torch import nn
from torch.utils.data import TensorDataset

from projects.fedmud.aad import update
from projects.fedmud.layers import decompose
from projects.fedmud.module import FedMUD
from shared.federated.classifier import ImageClassifier
from shared.federated.data import FederatedData
from shared.federated.local import LocalTraining
from shared.federated.partition import Partition


def network(seed=0):
    """Three convolutions with batch normalisation and a linear layer; the middle two are decomposed."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1, bias=False),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Conv2d(4, 6, 3, padding=1, bias=False),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.Conv2d(6, 5, 3, padding=1, bias=False),
        nn.BatchNorm2d(5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(5 * 9, 3, bias=False),
    )


def images(count, seed=1):
    """Three classes: which third of the picture is bright."""
    stream = torch.Generator().manual_seed(seed)
    y = torch.randint(3, (count,), generator=stream)
    x = torch.randn(count, 1, 6, 6, generator=stream)
    for label in range(3):
        x[y == label, :, 2 * label : 2 * label + 2] += 2
    return TensorDataset(x, y)


def data(sizes=(20, 12, 28, 16), *, rounds=4, **settings):
    places = torch.arange(sum(sizes)).split(list(sizes))
    return FederatedData(
        images(sum(sizes)),
        Partition([own.numpy() for own in places]),
        rounds=rounds,
        test=images(30, seed=2),
        **({"batch_size": 8} | settings),
    )


def form_of(kind="kron", pattern="fab+cfd", magnitude=1.0):
    return lambda rows, columns, ratio: update(rows, columns, ratio, kind, pattern, magnitude)


def mud(kind="kron", pattern="fab+cfd", *, magnitude=1.0, lr=0.1, epochs=2, seed=0, **settings):
    """FedMUD on `network`; the middle layers hold about a fifth of their values."""
    net = decompose(network(seed), form_of(kind, pattern, magnitude), 0.5, base=True)
    training = LocalTraining(max_epochs=epochs)
    settings = {"engine": "sequential"} | settings  # `auto` measures, so two runs may differ in rounding
    return FedMUD(ImageClassifier(net, lr=lr), training=training, seed=seed, **settings)


def trainer(**settings):
    plain = dict.fromkeys(
        ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False
    )
    return Trainer(**({"accelerator": "cpu", "devices": 1, "max_epochs": 1} | plain | settings))


def fit(module, federation, **settings):
    trainer(**settings).fit(module, datamodule=federation)
    return module


@pytest.fixture(scope="session")
def fed():
    return SimpleNamespace(
        network=network, images=images, data=data, form_of=form_of, mud=mud, trainer=trainer, fit=fit
    )
