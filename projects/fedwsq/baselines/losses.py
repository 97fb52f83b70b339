"""Baselines that change the local loss: FedLC and FedNTD. Both give way to another term by `extra_loss`."""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import Dataset, Subset

from shared.federated.algorithms.fedavg import FedAvg
from shared.federated.client import FederatedClient
from shared.federated.data import ClientData
from shared.federated.payload import Payload
from shared.federated.settings import labels_of


class CalibratedClient(FederatedClient):
    """Cross entropy of logits_y - tau n_y^(-1/4), n_y the client's samples of class y (FedLC, Zhang et al.
    2022). A class without samples counts as 1e-8 of one."""

    tau = 1.0

    def fit(self, inbox: Payload, state: dict[str, Any], data: ClientData) -> Payload:
        model = self.model(inbox, state)
        labels = torch.as_tensor(labels_of_part(data.train))

        def calibrated(model: LightningModule, batch: Any, loss: Tensor) -> Tensor:
            logits = model(batch[0])
            counts = torch.bincount(labels, minlength=logits.shape[-1]).to(logits)
            margins = self.tau * counts.clamp_min(1e-8) ** -0.25
            return F.cross_entropy(logits - margins, batch[1]) - loss

        report = self.train(model, inbox, state, data, extra_loss=calibrated)
        return self.result(model, state, data, report)


class NotTrueClient(FederatedClient):
    """(1 - weight) CE + weight KL(received || own) over the classes that are not the sample's (FedNTD, Lee et
    al. 2022)."""

    weight, temperature = 0.3, 1.0

    def fit(self, inbox: Payload, state: dict[str, Any], data: ClientData) -> Payload:
        model, teacher = self.model(inbox, state), self.model(inbox, state).eval().requires_grad_(False)

        def distilled(model: LightningModule, batch: Any, loss: Tensor) -> Tensor:
            term = not_true(model(batch[0]), teacher(batch[0]), batch[1], self.temperature)
            return self.weight * (term - loss)

        report = self.train(model, inbox, state, data, extra_loss=distilled)
        return self.result(model, state, data, report)


def not_true(own: Tensor, other: Tensor, labels: Tensor, temperature: float) -> Tensor:
    """T^2 KL(softmax(other / T) || softmax(own / T)) over the C - 1 wrong classes; logits (B, C)."""
    classes = own.shape[-1]
    wrong = (labels[:, None] + torch.arange(1, classes, device=labels.device)) % classes  # (B, C - 1)
    p, q = (F.log_softmax(logits.gather(1, wrong) / temperature, 1) for logits in (other, own))
    return temperature**2 * (p.exp() * (p - q)).sum(1).mean()


class FedLC(FedAvg):
    Client = CalibratedClient

    def __init__(self, client: Any, *, tau: float, **settings: Any) -> None:
        super().__init__(client, weights=None, **settings)
        self.client.tau = tau


class FedNTD(FedAvg):
    Client = NotTrueClient

    def __init__(self, client: Any, *, weight: float, temperature: float, **settings: Any) -> None:
        super().__init__(client, weights=None, **settings)
        self.client.weight, self.client.temperature = weight, temperature


def labels_of_part(dataset: Dataset) -> Any:
    """Labels (n,) of one client's samples."""
    if isinstance(dataset, Subset):
        return labels_of(dataset.dataset)[dataset.indices]
    return labels_of(dataset)
