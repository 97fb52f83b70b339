"""From the config to a federation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lightning.pytorch import LightningModule

from projects.fedwsq.baselines.fedacg import FedACG
from projects.fedwsq.baselines.feddyn import FedDyn
from projects.fedwsq.baselines.fedhq import FedHQ
from projects.fedwsq.baselines.losses import FedLC, FedNTD
from projects.fedwsq.baselines.quantizers import quantizer
from projects.fedwsq.config import METHODS, QUANTIZERS
from projects.fedwsq.danuq import pattern, quantised_names
from projects.fedwsq.module import FedWSQ, LocalClassifier, rate_exponent
from shared.errors import UserError, suggest
from shared.federated.algorithms.fedavg import FedAvg, adam, momentum
from shared.federated.algorithms.fedprox import FedProx
from shared.federated.codecs.delta import Delta
from shared.federated.local import LocalTraining
from shared.federated.module import FederatedModule


def classifier(net: Any, settings: Any) -> LocalClassifier:
    """`net` with the local optimiser of an `OptimizerConfig`."""
    return LocalClassifier(net, lr=settings.lr, weight_decay=settings.weight_decay, decay=settings.decay)


def federate(local: LightningModule, config: Any) -> FederatedModule:
    """The federation of `local` by `config.method` with `config.quantizer`; clients count alike.

    Raises:
        UserError: no such method or quantiser, or two that do not go together.
    """
    method, q, s = config.method, config.quantizer, config.settings
    for value, known, key in ((method, METHODS, "method"), (q.name, QUANTIZERS, "quantizer.name")):
        if value not in known:
            raise UserError(f"{key} takes {', '.join(known)}; found '{value}'.{suggest(value, known)}")
    common = common_settings(config)
    if q.name == "danuq":
        if method != "fedavg":
            raise UserError(f"danuq moves its scales with FedAvg's round; found method={method}.")
        return FedWSQ(
            local,
            bits=q.bits,
            levels=q.levels,
            allocation=q.allocation,
            beta=q.beta,
            initial_scale=q.initial_scale,
            warm_start=q.warm_start,
            **common,
        )
    if method == "fedhq":
        if q.name == "none":
            raise UserError("fedhq weighs clients by the error of a quantiser: set quantizer.name.")
        return FedHQ(local, quantizer_name=q.name, bits=q.bits, **common)
    if q.name != "none":
        only = pattern(quantised_names(local))
        common["codec"] = [Delta(only), quantizer(q.name, q.bits, only)]
    if method == "fedavg":
        return FedAvg(local, weights=None, **common)
    if method == "fedprox":
        return FedProx(local, mu=s.mu, weights=None, **common)
    if method == "fedavgm":
        return FedAvg(local, weights=None, server_optimizer=momentum(1.0, s.server_momentum), **common)
    if method == "fedadam":
        step = adam(s.server_lr, (s.beta1, s.beta2), s.tau)
        return FedAvg(local, weights=None, server_optimizer=step, **common)
    if method == "feddyn":
        return FedDyn(local, alpha=s.alpha, **common)
    if method == "fedlc":
        return FedLC(local, tau=s.calibration, **common)
    if method == "fedntd":
        return FedNTD(local, weight=s.not_true, temperature=s.temperature, **common)
    return FedACG(local, acceleration=s.acceleration, mu=s.mu, **common)


def common_settings(config: Any) -> dict[str, Any]:
    """What all methods share: local training, rates over the rounds, engine, seed."""
    return {
        "training": LocalTraining(
            max_epochs=config.federation.local_epochs,
            gradient_clip_val=config.optimizer.clip,
            precision=config.optimizer.precision,
        ),
        "lr_schedule": rate_schedule(config.optimizer.decay, config.federation.rounds),
        "engine": config.federation.engine,
        "seed": config.seed,
    }


def rate_schedule(decay: float, rounds: int) -> Callable[[int], float]:
    """round -> factor on the clients' rates."""
    return lambda number: decay ** rate_exponent(number, rounds)
