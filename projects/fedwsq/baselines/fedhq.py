"""FedHQ+ (Chen et al. 2021, as in the official code): clients weigh less the more their quantiser errs."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from projects.fedwsq.baselines.quantizers import quantizer
from projects.fedwsq.danuq import quantised_names
from shared.federated.aggregate import weighted_mean
from shared.federated.client import FederatedClient
from shared.federated.codecs import Codec, Context
from shared.federated.cohort import Cohort
from shared.federated.data import ClientData
from shared.federated.module import FederatedModule
from shared.federated.payload import Payload


class HQClient(FederatedClient):
    """The client quantises itself, because it alone can measure the error."""

    quantizer: Codec

    def fit(self, inbox: Payload, state: dict[str, Any], data: ClientData) -> Payload:
        model = self.model(inbox, state)
        report = self.train(model, inbox, state, data)
        reply = self.result(model, state, data, report)
        context = Context(generator=data.generator("quantise"))
        kept, parts, errors = dict(reply["model"]), {}, []
        for name in quantised_names(model):
            update = kept.pop(name).cpu() - inbox["model"][name]
            parts[name], info = self.quantizer.encode(name, update, context)
            errors.append(relative_error(update, self.quantizer.decode(name, parts[name], info, context)))
        return reply.plus(model=kept, codes=parts, error=max(errors))  # q_i


class FedHQ(FederatedModule):
    """W_g <- W_g + sum_i a_i Q(W_i - W_g), a_i proportional to 1 / (1 + q_i)."""

    Client = HQClient

    def __init__(self, client: Any, *, quantizer_name: str, bits: int, **settings: Any) -> None:
        super().__init__(client, **settings)
        self.client.quantizer = quantizer(quantizer_name, bits)

    def round(self, cohort: Cohort) -> None:
        theta = self.theta()
        replies = cohort.call("fit", self.broadcast(), expects="model")
        weights = {reply.client: 1 / (1 + reply["error"]) for reply in replies}
        for reply in replies:
            decoded = {name: self._decoded(name, parts) for name, parts in reply["codes"].items()}
            reply.entries["updates"] = decoded
        mean = weighted_mean(replies, "model", by=weights)
        for name, update in weighted_mean(replies, "updates", by=weights).items():
            mean[name] = theta[name] + update.to(theta[name])
        self.update(mean)

    def _decoded(self, name: str, parts: dict[str, Tensor]) -> Tensor:
        info = {"shape": list(self.theta()[name].shape)}
        return self.client.quantizer.decode(name, parts, info, Context())


def relative_error(update: Tensor, restored: Tensor) -> float:
    """||Q(D) - D||^2 / ||D||^2; 0 for an update that is zero and stays so."""
    error, size = float((restored - update).square().sum()), float(update.square().sum())
    return error / size if size > 0 else float(error > 0)
