"""SCAFFOLD (Karimireddy et al. 2020, algorithm 1 with option II): control variates against client drift."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from shared.errors import UserError
from shared.federated.aggregate import weighted_mean
from shared.federated.client import FederatedClient
from shared.federated.cohort import Cohort
from shared.federated.data import ClientData
from shared.federated.module import FederatedModule
from shared.federated.payload import Payload


class ScaffoldClient(FederatedClient):
    """For plain SGD: the distance walked gives the mean gradient, x - y = (sum of lr) * gradient."""

    def fit(self, inbox: Payload, state: dict[str, Any], data: ClientData) -> Payload:
        x, c = inbox["model"], inbox["control"]
        own = state.setdefault("control", {name: torch.zeros_like(value) for name, value in c.items()})
        model = self.model(inbox, state)
        report = self.train(model, inbox, state, data)
        if report.optimizer != "SGD":
            raise UserError(
                "SCAFFOLD reads a client's mean gradient from the distance that SGD walked; found "
                f"{report.optimizer}."
            )
        y = self.shared(model)
        new = {name: own[name] - c[name] + (x[name] - y[name].cpu()) / report.lr_sum for name in c}
        state["control"] = new
        delta = {name: new[name] - own[name] for name in c}
        return self.result(model, state, data, report).plus(delta_control=delta)

    def gradient(
        self, grads: dict[str, Tensor], params: dict[str, Tensor], inbox: Payload, state: dict[str, Any]
    ) -> dict[str, Tensor]:
        c, own = inbox["control"], state["control"]
        return {
            name: grad + (c[name] - own[name]).to(grad.device) if name in c else grad
            for name, grad in grads.items()
        }


class Scaffold(FederatedModule):
    """x <- mean_S y_i;  c <- c + |S|/N mean_S (c_i' - c_i). Clients count alike."""

    Client = ScaffoldClient
    server_state = ("control",)

    def __init__(self, client: Any, **settings: Any) -> None:
        super().__init__(client, **settings)
        parameters = dict(self.model.named_parameters())
        self.control = {
            name: torch.zeros_like(value, device="cpu")
            for name, value in self.theta().items()
            if name in parameters and parameters[name].requires_grad
        }

    def broadcast(self) -> Payload:
        return super().broadcast().plus(control=self.control)

    def round(self, cohort: Cohort) -> None:
        expected = {"model": "model", "delta_control": "control"}
        replies = cohort.call("fit", self.broadcast(), expects=expected)
        self.update(weighted_mean(replies, "model", by=None))
        share = len(replies) / len(self.data.training_clients)
        for name, delta in weighted_mean(replies, "delta_control", by=None).items():
            self.control[name] = self.control[name] + share * delta
