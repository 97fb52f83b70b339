"""FedWSQ: local training of standardised convolutions, updates quantised by DANUQ, scales that follow."""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor

from projects.fedwsq.danuq import DANUQ, allocated_bits, check_allocation, pattern, quantised_names
from shared.errors import UserError
from shared.federated.aggregate import weighted_mean
from shared.federated.classifier import ImageClassifier
from shared.federated.client import FederatedClient
from shared.federated.cohort import Cohort
from shared.federated.data import ClientData
from shared.federated.module import FederatedModule
from shared.federated.payload import Payload


class LocalClassifier(ImageClassifier):
    """SGD whose rate falls by the factor `decay` at the end of every local epoch."""

    def __init__(self, net: torch.nn.Module, *, decay: float = 1.0, **settings: Any) -> None:
        super().__init__(net, **settings)
        self.decay = decay

    def configure_optimizers(self) -> dict[str, Any]:
        optimizer = super().configure_optimizers()
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, self.decay)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "epoch"}}


def rate_exponent(round: int, rounds: int) -> int:
    """The power of the decay in `round`: 1,000 rounds are the reference, fewer take larger steps."""
    return round * (1000 // rounds) if rounds <= 1000 else round // (rounds // 1000)


class WSQClient(FederatedClient):
    """Local training, then the deviation of each layer's update; the codec quantises the update itself."""

    bits, allocation, seed = 4, "none", 0

    def fit(self, inbox: Payload, state: dict[str, Any], data: ClientData) -> Payload:
        model = self.model(inbox, state)  # W_i = W_g
        report = self.train(model, inbox, state, data)
        reply = self.result(model, state, data, report)
        updates = {name: reply["model"][name].cpu() - inbox["model"][name] for name in inbox["scales"]}
        if self.allocation != "none":
            state["bits"] = allocated_bits(
                self.allocation, self.bits, seed=self.seed, client=data.client, round=data.round
            )
        return reply.plus(scales={name: update.std() for name, update in updates.items()})  # s_i


class FedWSQ(FederatedModule):
    """W_g <- W_g + mean_i s_g Q_B((W_i - W_g) / s_g);  s_g <- (1 - beta) s_g + beta mean_i s_i.

    Layer by layer; clients count alike. Only uplinks are quantised. s_g starts at 1e-3 whatever the size of
    updates, so the first ones saturate until s_g has caught up, in about 1 / beta rounds.

    Args:
        client: a classifier; with standardised convolutions FedWSQ, with plain ones FedAvg + DANUQ.
        bits, levels: of the codes (`levels.danuq_table`).
        allocation: "none", or clients draw 1, 2 or 4 bits: "fixed" once (FBA), "dynamic" every round (DBA).
        warm_start: take s_g = mean_i s_i after the first round (not in the paper).
    """

    Client = WSQClient
    server_state = ("scales",)

    def __init__(
        self,
        client: LightningModule | FederatedClient,
        *,
        bits: int = 4,
        levels: str = "published",
        allocation: str = "none",
        beta: float = 0.1,
        initial_scale: float = 1e-3,
        warm_start: bool = False,
        **settings: Any,
    ) -> None:
        module = client.module if isinstance(client, FederatedClient) else client
        names = quantised_names(module)
        if not names:
            raise UserError(f"{type(module).__name__} has no convolution beside its first to quantise.")
        if not 0 < beta <= 1 or not initial_scale > 0:
            raise UserError(
                f"quantizer.beta lies in (0, 1] and initial_scale above 0; found {beta}, {initial_scale}."
            )
        check_allocation(allocation)
        super().__init__(client, codec=DANUQ(bits, levels=levels, only=pattern(names)), **settings)
        self.client.bits, self.client.allocation, self.client.seed = bits, allocation, self.seed
        self.beta, self.warm_start = beta, warm_start
        self.scales = {name: torch.tensor(initial_scale) for name in names}  # s_g

    def broadcast(self) -> Payload:
        return super().broadcast().plus(scales=self.scales)

    def round(self, cohort: Cohort) -> None:
        replies = cohort.call("fit", self.broadcast(), expects=("model", "scales"))
        self.update(weighted_mean(replies, "model", by=None))
        self.follow(weighted_mean(replies, "scales", by=None), first=cohort.round == 0)

    def follow(self, deviations: dict[str, Tensor], *, first: bool = False) -> None:
        """Move s_g towards the mean of this round's s_i."""
        ratios = [self.scales[name] / s.clamp_min(1e-12) for name, s in deviations.items()]
        self.log("scales/ratio", torch.stack(ratios).mean(), on_step=True, on_epoch=False, batch_size=1)
        beta = 1.0 if first and self.warm_start else self.beta
        for name, s in deviations.items():
            self.scales[name] = (1 - beta) * self.scales[name] + beta * s
