"""From a config to an experiment: the network of its method, the server, the data, what is logged."""

from __future__ import annotations

from functools import partial
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from torch import nn

from projects.fedmud import aad, networks
from projects.fedmud.config import METHODS, TASKS
from projects.fedmud.data import federation
from projects.fedmud.fedhm import FedHM
from projects.fedmud.fedlmt import LowRank
from projects.fedmud.fedpara import Hadamard
from projects.fedmud.layers import decompose, restart, trained_values
from projects.fedmud.module import FedMUD
from shared.data.images import ImageSet
from shared.errors import UserError, suggest
from shared.federated.algorithms.fedavg import FedAvg
from shared.federated.classifier import ImageClassifier
from shared.federated.local import LocalTraining
from shared.federated.module import FederatedModule
from shared.federated.settings import experiment
from shared.training.experiment import Experiment
from shared.training.logging import record

BY_BATCHES = "num_steps"  # clients weigh by their number of batches, as in the official code


def build(config: Any) -> Experiment:
    """The experiment of `config`.

    Raises:
        UserError: a value that the config's comments do not allow.
    """
    if config.task not in TASKS:
        raise UserError(f"task takes {', '.join(TASKS)}; found {config.task!r}.{suggest(config.task, TASKS)}")
    data, images = federation(config)
    if config.task == "approximation":
        from projects.fedmud.approximation import ApproximationError

        module: FederatedModule = ApproximationError(
            classifier(dense_network(config, images), config),
            ratio=config.method.ratio,
            weights=BY_BATCHES,
            **settings(config),
        )
    else:
        module = server(config, images)
    built = experiment(module, data, config, scale=100)
    built.callbacks.append(Compression(dense_network(config, images)))
    return built


def server(config: Any, images: ImageSet) -> FederatedModule:
    """The federated algorithm of `config.method` on a network for `images`."""
    method, network = config.method, dense_network(config, images)
    if method.name == "fedavg":
        return FedAvg(classifier(network, config), weights=BY_BATCHES, **settings(config))
    if method.name == "fedmud":
        form = partial(
            aad.update,
            kind=method.kind,
            pattern=method.pattern,
            magnitude=method.magnitude,
            law=method.law,
        )
        decompose(network, form, method.ratio, base=True)
        return FedMUD(classifier(network, config), reset_every=method.reset_every, **settings(config))
    std = networks.weight_std(config.network)
    low_rank, hadamard = partial(LowRank.of_ratio, std=std), partial(Hadamard.of_ratio, std=std)
    forms = {"fedlmt": low_rank, "fedhm": low_rank, "fedpara": hadamard}
    if method.name not in forms:
        raise UserError(
            f"method.name takes {', '.join(METHODS)}; found {method.name!r}.{suggest(method.name, METHODS)}"
        )
    decompose(network, forms[method.name], method.ratio, base=False)
    restart(network, config.seed)
    client = classifier(network, config)
    if method.name == "fedhm":
        dense = classifier(dense_network(config, images), config)
        return FedHM(client, dense=dense, **settings(config))
    return FedAvg(client, weights=BY_BATCHES, **settings(config))


def dense_network(config: Any, images: ImageSet) -> nn.Module:
    """The network with the weights that all methods of a seed start from."""
    _, channels, size, _ = images.images.shape
    return networks.make(config.network, channels, size, images.classes, config.seed)


def classifier(network: nn.Module, config: Any) -> LightningModule:
    return ImageClassifier(network, lr=config.lr)


def settings(config: Any) -> dict[str, Any]:
    """What every server takes."""
    training = LocalTraining(max_epochs=config.federation.local_epochs)
    return {"training": training, "engine": config.federation.engine, "seed": config.seed}


class Compression(Callback):
    """Logs `compression/ratio`, trained values of a client over those of the dense network, and both."""

    def __init__(self, dense: nn.Module) -> None:
        self.total = trained_values(dense)

    def on_validation_end(self, trainer: Trainer, module: LightningModule) -> None:
        if trainer.state.fn == "fit":
            trained = trained_values(module.client.module)
            record(
                module,
                {
                    "compression/ratio": trained / self.total,
                    "compression/trained": trained,
                    "compression/total": self.total,
                },
            )
