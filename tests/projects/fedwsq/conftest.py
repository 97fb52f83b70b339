"""Small federations on made-up images, for all tests of this paper."""

from types import SimpleNamespace

import pytest
import torch
from lightning.pytorch import Trainer
from torch.utils.data import TensorDataset

from projects.fedwsq.methods import federate
from projects.fedwsq.module import FedWSQ, LocalClassifier
from projects.fedwsq.networks import ConvNet
from projects.fedwsq.weight_standardization import standardize_all
from shared.federated.data import FederatedData
from shared.federated.local import LocalTraining
from shared.federated.partition import Partition
from shared.training.config import compose


def net(ws=True, seed=0, classes=3):
    """Convolutions of 4, 6 and 10 channels; the last two are quantised (216 and 540 values)."""
    torch.manual_seed(seed)
    made = ConvNet(1, classes, (4, 6, 10), (1, 2, 1), 2)
    return standardize_all(made, 1e-3) if ws else made


def images(count, seed=1):
    """Three classes: which third of the picture is bright."""
    stream = torch.Generator().manual_seed(seed)
    y = torch.randint(3, (count,), generator=stream)
    x = torch.randn(count, 1, 6, 6, generator=stream)
    for label in range(3):
        x[y == label, :, 2 * label : 2 * label + 2] += 2
    return TensorDataset(x, y)


def data(sizes=(12, 12, 12, 12), *, rounds=3, **settings):
    places = torch.arange(sum(sizes)).split(list(sizes))
    return FederatedData(
        images(sum(sizes)),
        Partition([own.numpy() for own in places]),
        rounds=rounds,
        test=images(30, seed=2),
        **({"batch_size": 4} | settings),
    )


def local(ws=True, seed=0, **settings):
    return LocalClassifier(net(ws, seed), **({"lr": 0.1, "weight_decay": 1e-3, "decay": 0.998} | settings))


def wsq(ws=True, **settings):
    training = LocalTraining(max_epochs=2, gradient_clip_val=10.0)
    return FedWSQ(local(ws), training=training, **({"engine": "sequential"} | settings))


def made(*overrides, ws=True):
    """The federation that `federate` makes of a config."""
    from projects.fedwsq.config import Config

    layer = {"federation": {"rounds": 3, "local_epochs": 2, "engine": "sequential"}}
    return federate(local(ws), compose(Config, layer, overrides=list(overrides)))


def trainer(**settings):
    plain = dict.fromkeys(
        ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False
    )
    return Trainer(**({"accelerator": "cpu", "devices": 1, "max_epochs": 1} | plain | settings))


def fit(module, federation, **settings):
    trainer(**settings).fit(module, datamodule=federation)
    return module


def entries(module):
    return {name: value.clone() for name, value in module.model.state_dict().items()}


@pytest.fixture(scope="session")
def fed():
    return SimpleNamespace(
        net=net,
        images=images,
        data=data,
        local=local,
        wsq=wsq,
        made=made,
        trainer=trainer,
        fit=fit,
        entries=entries,
    )
