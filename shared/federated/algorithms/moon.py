"""MOON (Li et al. 2021): representations near the global model's, far from the client's last one's."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor
from torch.nn import functional as F

from shared.federated.algorithms.fedavg import FedAvg
from shared.federated.client import FederatedClient
from shared.federated.data import ClientData
from shared.federated.payload import Payload


class MoonClient(FederatedClient):
    mu, temperature, head = 1.0, 0.5, ""

    def fit(self, inbox: Payload, state: dict[str, Any], data: ClientData) -> Payload:
        model = self.model(inbox, state)
        anchors = [self.anchor(inbox, state)]
        if "previous" in state:
            anchors.append(self.anchor(Payload(model=state["previous"]), state))
        tap = Tap(model, self.head)
        report = self.train(model, inbox, state, data, extra_loss=partial(self.contrast, tap, anchors))
        state["previous"] = self.shared(model)
        return self.result(model, state, data, report)

    def contrast(
        self, tap: Tap, anchors: list[LightningModule], model: LightningModule, batch: Any, loss: Tensor
    ) -> Tensor:
        """mu * l_con (eq. 3); a client's first round has no previous model and no term."""
        z = tap.value  # (B, d), of the forward pass that gave the loss
        if len(anchors) < 2:
            return loss.new_zeros(())
        with torch.no_grad():
            received, previous = (Tap.of(anchor, self.head, batch) for anchor in anchors)
        near = F.cosine_similarity(z, received) / self.temperature
        far = F.cosine_similarity(z, previous) / self.temperature
        return self.mu * -(near - torch.logaddexp(near, far)).mean()

    def anchor(self, inbox: Payload, state: dict[str, Any]) -> LightningModule:
        return self.model(inbox, state).eval().requires_grad_(False)


class Tap:
    """The representation: what flows into the module `head`, flattened to (B, d)."""

    def __init__(self, model: LightningModule, head: str) -> None:
        self.value: Tensor | None = None
        self.handle = model.get_submodule(head).register_forward_pre_hook(self._catch)

    def _catch(self, module: torch.nn.Module, inputs: tuple[Tensor, ...]) -> None:
        self.value = inputs[0].flatten(1)

    @classmethod
    def of(cls, model: LightningModule, head: str, batch: Any) -> Tensor:
        """The representation of `batch` = (inputs, ...)."""
        tap = cls(model, head)
        try:
            model(batch[0])
        finally:
            tap.handle.remove()
        return tap.value


class Moon(FedAvg):
    """`head`: the submodule whose input is the representation, e.g. "net.4"; the model maps batch[0]."""

    Client = MoonClient

    def __init__(
        self, client: Any, *, head: str, mu: float = 1.0, temperature: float = 0.5, **settings: Any
    ) -> None:
        super().__init__(client, **settings)
        self.model.get_submodule(head)  # a mistyped name fails here
        self.client.head, self.client.mu, self.client.temperature = head, mu, temperature
