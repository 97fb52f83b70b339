"""FedDyn (Acar et al., ICLR 2021): clients' linear terms make local optima agree with the global one."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from shared.federated.aggregate import weighted_mean
from shared.federated.client import FederatedClient
from shared.federated.cohort import Cohort
from shared.federated.data import ClientData
from shared.federated.module import FederatedModule
from shared.federated.payload import Payload


class DynClient(FederatedClient):
    """Minimise f_i(w) - <g_i, w> + alpha/2 ||w - W_g||^2, then g_i <- g_i - alpha (W_i - W_g)."""

    alpha = 0.1

    def fit(self, inbox: Payload, state: dict[str, Any], data: ClientData) -> Payload:
        model, received = self.model(inbox, state), inbox["model"]
        names = [name for name, _ in model.named_parameters()]
        linear = state.setdefault("linear", {name: torch.zeros_like(received[name]) for name in names})
        report = self.train(model, inbox, state, data)
        reply = self.result(model, state, data, report)
        moved = {name: reply["model"][name].cpu() - received[name] for name in names}
        state["linear"] = {name: linear[name] - self.alpha * moved[name] for name in names}
        return reply

    def gradient(
        self, grads: dict[str, Tensor], params: dict[str, Tensor], inbox: Payload, state: dict[str, Any]
    ) -> dict[str, Tensor]:
        received, linear = inbox["model"], state["linear"]
        return {
            name: grad - linear[name].to(grad) + self.alpha * (params[name] - received[name].to(grad))
            for name, grad in grads.items()
        }


class FedDyn(FederatedModule):
    """h <- h - (alpha / N) sum_i (W_i - W_g);  W_g <- mean_i W_i - h / alpha. N: all clients."""

    Client = DynClient
    server_state = ("linear",)

    def __init__(self, client: Any, *, alpha: float, **settings: Any) -> None:
        super().__init__(client, **settings)
        self.client.alpha = alpha
        self.linear = {name: torch.zeros_like(p.detach()) for name, p in self.model.named_parameters()}

    def round(self, cohort: Cohort) -> None:
        before = {name: value.clone() for name, value in self.theta().items()}
        replies = cohort.call("fit", self.broadcast(), expects="model")
        mean = weighted_mean(replies, "model", by=None)
        share = self.client.alpha * len(replies) / len(self.data.training_clients)
        for name, h in self.linear.items():
            self.linear[name] = h - share * (mean[name].to(h) - before[name].to(h))
        self.load(mean | {n: mean[n].to(h) - h / self.client.alpha for n, h in self.linear.items()})
