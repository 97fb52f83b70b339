"""FedACG (Kim et al., CVPR 2024): the server's momentum looks ahead, clients stay near what they received."""

from __future__ import annotations

from typing import Any

import torch

from shared.federated.aggregate import weighted_mean
from shared.federated.algorithms.fedprox import FedProx
from shared.federated.cohort import Cohort
from shared.federated.payload import Payload


class FedACG(FedProx):
    """Send W + lambda m; the clients' prox term pulls there;  m <- lambda m + mean_i delta_i;  W <- W + m.

    delta_i is what a client moved away from what it received.
    """

    server_state = ("momentum",)

    def __init__(self, client: Any, *, acceleration: float, mu: float, **settings: Any) -> None:
        super().__init__(client, mu=mu, weights=None, **settings)
        self.acceleration = acceleration
        trained = {name for name, _ in self.model.named_parameters()}
        self.momentum = {n: torch.zeros_like(v) for n, v in self.theta().items() if n in trained}

    def ahead(self) -> dict[str, torch.Tensor]:
        theta = self.theta()
        return theta | {n: theta[n] + self.acceleration * m.to(theta[n]) for n, m in self.momentum.items()}

    def broadcast(self) -> Payload:
        return super().broadcast().plus(model=self.ahead())

    def round(self, cohort: Cohort) -> None:
        sent, theta = self.ahead(), self.theta()
        replies = cohort.call("fit", self.broadcast(), expects="model")
        mean = weighted_mean(replies, "model", by=None)
        for name, m in self.momentum.items():
            self.momentum[name] = self.acceleration * m + (mean[name].to(m) - sent[name].to(m))
        self.load(mean | {n: theta[n] + m.to(theta[n]) for n, m in self.momentum.items()})
