"""How much a quantiser loses of real local updates, at equal bits, outside any feedback on training."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from projects.fedwsq.baselines.fedhq import relative_error
from projects.fedwsq.baselines.quantizers import quantizer
from projects.fedwsq.danuq import dequantise, quantise, quantised_names
from projects.fedwsq.levels import DANUQ, KINDS, PUBLISHED, danuq_table
from projects.fedwsq.methods import common_settings
from shared.federated.aggregate import weighted_mean
from shared.federated.algorithms.fedavg import FedAvg
from shared.federated.codecs import Context
from shared.federated.cohort import Cohort
from shared.training.logging import record
from shared.training.seeding import generator

BITS = (1, 2, 4)


class UpdateError(FedAvg):
    """FedAvg at full precision (with `network.ws`: FedWS); the updates of its last round are quantised aside.

    Writes for each quantiser and number of bits the mean over clients and quantised tensors of
    ||Q(D) - D||^2 / ||D||^2:

    - `error/danuq_4`: the scale is the tensor's own deviation;   `error/danuq_lloyd_4`: exact levels;
    - `error/danuq_shared_4`: the scale that a server would have by its moving average from `initial_scale`;
    - `error/uniform_4`, `error/nf_4`, `error/fp_4`, `error/qsgd_4` (random: one draw).

    `error/kurtosis` is the mean excess kurtosis of the tensors, 0 for a normal one.
    """

    server_state = ("scales",)

    def __init__(self, local: Any, config: Any) -> None:
        super().__init__(local, weights=None, **common_settings(config))
        self.rounds, self.beta = config.federation.rounds, config.quantizer.beta
        start = torch.tensor(config.quantizer.initial_scale)
        self.scales = dict.fromkeys(quantised_names(self.model), start)

    def round(self, cohort: Cohort) -> None:
        theta = {name: value.clone() for name, value in self.theta().items()}
        replies = cohort.call("fit", self.broadcast(), expects="model")
        updates = [
            {name: reply["model"][name] - theta[name].cpu() for name in self.scales} for reply in replies
        ]
        if cohort.round == self.rounds - 1:
            record(self, errors(updates, self.scales, generator(self.seed, "update error")))
        for name, scale in self.scales.items():
            deviation = torch.stack([update[name].std() for update in updates]).mean()
            self.scales[name] = (1 - self.beta) * scale + self.beta * deviation
        self.update(weighted_mean(replies, "model", by=None))


def errors(
    updates: list[dict[str, Tensor]], shared: dict[str, Tensor], stream: torch.Generator
) -> dict[str, float]:
    """The metrics of `UpdateError` for clients' updates by name and the server's scales."""
    found: dict[str, list[float]] = {}
    for update in updates:
        for name, d in update.items():
            z = (d - d.mean()) / d.std().clamp_min(1e-30)
            found.setdefault("error/kurtosis", []).append(float(z.pow(4).mean()) - 3)
            for label, restored in _restored(d, shared[name], stream):
                found.setdefault(f"error/{label}", []).append(relative_error(d, restored))
    return {label: sum(values) / len(values) for label, values in found.items()}


def _restored(d: Tensor, shared: Tensor, stream: torch.Generator) -> Any:
    """(name of the quantiser and bits, the update after it)."""
    for bits in BITS:
        for which in DANUQ:
            table = danuq_table(bits, which)
            label = f"danuq_{bits}" if which == "published" else f"danuq_{which}_{bits}"
            yield label, dequantise(quantise(d, d.std(), table), d.std(), table)
        table = danuq_table(bits)
        yield f"danuq_shared_{bits}", dequantise(quantise(d, shared, table), shared, table)
        for kind, tables in {**KINDS, "qsgd": PUBLISHED}.items():
            if bits in tables:
                codec = quantizer(kind, bits)
                parts, info = codec.encode("", d, Context(generator=stream))
                yield f"{kind}_{bits}", codec.decode("", parts, info, Context())
