"""From `config.method` to a federation; the algorithms themselves are in `shared.federated.algorithms`."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor, nn

from projects.fl_classics.config import METHODS
from shared.errors import UserError, suggest
from shared.federated.algorithms.fedavg import FedAvg, adam, momentum
from shared.federated.algorithms.fedbn import FedBN
from shared.federated.algorithms.fednova import FedNova
from shared.federated.algorithms.fedprox import FedProx
from shared.federated.algorithms.moon import Moon
from shared.federated.algorithms.scaffold import Scaffold
from shared.federated.cohort import Cohort
from shared.federated.local import LocalTraining
from shared.federated.module import FederatedModule
from shared.federated.payload import Payload
from shared.training.logging import record


def federate(classifier: LightningModule, config: Any) -> FederatedModule:
    """The federation of `classifier` by `config.method`.

    Raises:
        UserError: no such method, or client settings that the method is not defined for.
    """
    method, settings = config.method, config.settings
    if method not in METHODS:
        raise UserError(f"method takes {', '.join(METHODS)}; found '{method}'.{suggest(method, METHODS)}")
    if method == "scaffold" and config.optimizer.momentum:
        raise UserError("scaffold is defined for SGD without momentum: set optimizer.momentum=0.")
    common = {
        "training": LocalTraining(max_epochs=config.federation.local_epochs),
        "targets": ("personal",) if config.federation.client_test else (),
        "engine": config.federation.engine,
        "seed": config.seed,
    }
    if method == "fedavgm":
        step = momentum(settings.server_lr, settings.server_momentum)
        return FedAvg(classifier, server_optimizer=step, **common)
    if method == "fedadam":
        step = adam(settings.server_lr, (settings.server_momentum, settings.beta2), settings.epsilon)
        return FedAvg(classifier, server_optimizer=step, **common)
    if method == "fedprox":
        return FedProx(classifier, mu=settings.mu, **common)
    if method == "moon":
        return Moon(classifier, head="net.head", mu=settings.mu, temperature=settings.temperature, **common)
    plain = {"fedavg": FedAvg, "scaffold": Scaffold, "fednova": FedNova, "fedbn": FedBN, "local": Local}
    return plain[method](classifier, **common)


def own(name: str, module: nn.Module, entry: Tensor) -> str:
    return "personal"


class Local(FederatedModule):
    """No communication: the clients of a round go on training their own models; the server's stays."""

    def __init__(self, client: Any, **settings: Any) -> None:
        super().__init__(client, role=own, **settings)

    def round(self, cohort: Cohort) -> None:
        cohort.call("fit", Payload())


class TuneAtTheEnd(Callback):
    """The final test also measures every client's model after one more local fit: `tuned/accuracy`, %."""

    def on_test_start(self, trainer: Trainer, module: LightningModule) -> None:
        module.targets = (*module.targets, "after_fit")

    def on_test_end(self, trainer: Trainer, module: LightningModule) -> None:
        measured = trainer.callback_metrics["test/after_fit/val/accuracy"]
        record(module, {"tuned/accuracy": 100 * float(measured)})
