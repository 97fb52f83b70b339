"""FedAvg (McMahan et al. 2017), and with a server optimiser FedAvgM, FedAdam, ... (Reddi et al. 2021)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.optim import Optimizer

from shared.federated.aggregate import Weights, weighted_mean
from shared.federated.cohort import Cohort
from shared.federated.module import FederatedModule


class FedAvg(FederatedModule):
    """theta <- sum_i (n_i / n) theta_i. `weights` None: the plain mean over clients."""

    def __init__(self, client: Any, *, weights: Weights = "num_samples", **settings: Any) -> None:
        super().__init__(client, **settings)
        self.weights = weights

    def round(self, cohort: Cohort) -> None:
        weight = (self.weights,) if isinstance(self.weights, str) else ()
        replies = cohort.call("fit", self.broadcast(), expects=("model", *weight))
        self.update(weighted_mean(replies, "model", by=self.weights))


def momentum(lr: float = 1.0, momentum: float = 0.9) -> Callable[..., Optimizer]:
    """`FedAvg(..., server_optimizer=momentum())` is FedAvgM (Hsu et al. 2019)."""
    return partial(torch.optim.SGD, lr=lr, momentum=momentum)


def adam(
    lr: float = 0.01, betas: tuple[float, float] = (0.9, 0.99), eps: float = 1e-3
) -> Callable[..., Optimizer]:
    """`FedAvg(..., server_optimizer=adam())` is FedAdam with torch's bias correction, absent in the paper."""
    return partial(torch.optim.Adam, lr=lr, betas=betas, eps=eps)
