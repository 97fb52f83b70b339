"""FedNova (Wang et al. 2020): clients that take more steps do not pull harder."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import LightningModule

from shared.errors import UserError
from shared.federated.aggregate import total, weighted_mean
from shared.federated.client import FederatedClient
from shared.federated.cohort import Cohort
from shared.federated.data import ClientData
from shared.federated.local import Report
from shared.federated.module import FederatedModule
from shared.federated.payload import Payload


class NovaClient(FederatedClient):
    def result(
        self, model: LightningModule, state: dict[str, Any], data: ClientData, report: Report
    ) -> Payload:
        payload = super().result(model, state, data, report)
        if report.optimizer != "SGD":
            raise UserError(f"FedNova is defined for SGD with or without momentum; found {report.optimizer}.")
        return payload.plus(normaliser=normaliser(report.steps, report.momentum))


def normaliser(steps: int, momentum: float = 0.0) -> float:
    """a_i = ||a||_1 of the accumulated gradient weights: tau for SGD, longer with momentum (section 4.1)."""
    if momentum == 0:
        return float(steps)
    return (steps - momentum * (1 - momentum**steps) / (1 - momentum)) / (1 - momentum)


class FedNova(FederatedModule):
    """theta <- theta - tau_eff sum_i p_i (theta - theta_i) / a_i, p_i = n_i / n, tau_eff = sum_i p_i a_i.

    Written as a mean: theta_i weighs n_i tau_eff / a_i, and theta itself what is missing to n. With equal a_i
    these are n_i and 0 exactly, and FedNova is FedAvg bit for bit. Buffers are averaged by samples: theta's
    weight is negative for unequal a_i, and a variance must not be.
    """

    Client = NovaClient

    def round(self, cohort: Cohort) -> None:
        replies = cohort.call("fit", self.broadcast(), expects=("model", "num_samples", "normaliser"))
        n = total(replies, "num_samples")
        walked = sum(reply["num_samples"] * reply["normaliser"] for reply in replies)  # n * tau_eff
        weights = {r.client: r["num_samples"] * (walked / (n * r["normaliser"])) for r in replies}
        stays = n - sum(weights.values())
        moved = weighted_mean(replies, "model", by=weights, also=(self.theta(), stays))
        mean = weighted_mean(replies, "model", by="num_samples")
        parameters = {name for name, _ in self.model.named_parameters()}
        self.update({name: moved[name] if name in parameters else mean[name] for name in mean})
