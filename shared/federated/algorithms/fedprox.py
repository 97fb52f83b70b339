"""FedProx (Li et al. 2020): local loss + mu/2 ||w - theta||^2."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from shared.federated.algorithms.fedavg import FedAvg
from shared.federated.client import FederatedClient
from shared.federated.payload import Payload


class ProxClient(FederatedClient):
    mu = 0.0

    def gradient(
        self, grads: dict[str, Tensor], params: dict[str, Tensor], inbox: Payload, state: dict[str, Any]
    ) -> dict[str, Tensor]:
        """The proximal term by its gradient mu (w - theta), so manual optimisation has it too."""
        theta = inbox["model"]
        return {
            name: grad + self.mu * (params[name] - theta[name].to(grad.device)) if name in theta else grad
            for name, grad in grads.items()
        }


class FedProx(FedAvg):
    Client = ProxClient

    def __init__(self, client: Any, *, mu: float, **settings: Any) -> None:
        super().__init__(client, **settings)
        self.client.mu = mu
