"""FedMUD: what is decomposed, sent and averaged is the update, and it is merged into the weights (MUD).

Nobody sends the weight W of a decomposed layer in a round. Every client starts with the same W, and each
merge adds to it what all can have: the averaged factors, and the frozen ones from their seed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from projects.fedmud.layers import Decomposed, decomposed_layers, merge, restart
from shared.errors import UserError
from shared.federated.aggregate import weighted_mean
from shared.federated.client import FederatedClient
from shared.federated.cohort import Cohort
from shared.federated.data import ClientData
from shared.federated.module import FederatedModule
from shared.federated.payload import Payload, Reply
from shared.training.seeding import derive_seed

Entries = Mapping[str, Tensor]


def role(name: str, owner: nn.Module, entry: Tensor) -> str:
    """Trained factors, dense layers and normalisation travel; W and frozen factors stay with the client."""
    stays = isinstance(owner, Decomposed) and not isinstance(entry, nn.Parameter)
    return "personal" if stays else "shared"


class MudClient(FederatedClient):
    """Its state holds W and the number of merges that went into it."""

    def fit(self, inbox: Payload, state: dict[str, Any], data: ClientData) -> Payload:
        model = self.model(inbox, state)
        self.synchronise(model, inbox, state)
        report = self.train(model, inbox, state, data)
        return self.result(model, state, data, report)

    def synchronise(self, model: nn.Module, inbox: Payload, state: dict[str, Any]) -> None:
        """Bring W to where the server's is, and the factors to where this round starts.

        What may be in the message: `base` (W itself), `missed` (merges since this client last took part, it
        skips those that it has), `next_seed` (a push: the received factors are merged, new ones begin).
        """
        held, received = int(state.get("merges", 0)), trained_factors(model, inbox["model"])
        set_entries(model, inbox.get("base", {}))
        if "missed" in inbox:
            missed = inbox["missed"]
            for place, seed in enumerate(missed["seeds"].tolist()):
                if missed["first"] + place >= held:
                    factors = {name: stacked[place] for name, stacked in missed["factors"].items()}
                    merge_factors(model, seed, factors)
        if "next_seed" in inbox:
            merge_factors(model, inbox["seed"], received)
            restart(model, inbox["next_seed"])
        else:
            restart(model, inbox["seed"])
            set_entries(model, received)
        state["merges"] = inbox["merges"] + ("next_seed" in inbox)


class FedMUD(FederatedModule):
    """Federated learning of decomposed updates.

    Args:
        client: a module with `Decomposed` layers that have a base weight.
        reset_every: s, rounds between merges.

    Logs `aggregation_error`: ||mean_i Delta(f_i) - Delta(mean_i f_i)|| / ||mean_i Delta(f_i)|| over clients,
    mean over the rounds so far; 0 but for rounding where the update is linear in what is trained.
    """

    Client = MudClient
    server_state = ("merges", "history", "merges_of", "errors")

    def __init__(self, client: Any, *, reset_every: int = 1, **settings: Any) -> None:
        if reset_every < 1:
            raise UserError(f"method.reset_every is a number of rounds from 1 on, found {reset_every}.")
        if settings.get("targets"):
            raise UserError(
                "FedMUD is judged by the server's model: what clients are sent for evaluation lacks W. "
                "Leave `targets` empty."
            )
        super().__init__(client, role=role, **settings)
        self.reset_every = reset_every
        self.merges = 0  # that went into W
        self.history: list[dict[str, Any]] = []  # the last of them: their seeds and averaged factors
        self.merges_of: dict[int, int] = {}  # client -> merges in its W when it last answered
        self.errors: list[float] = []
        restart(self.model, self.factor_seed(0))

    def round(self, cohort: Cohort) -> None:
        push = cohort.round > 0 and cohort.round % self.reset_every == 0
        replies = cohort.call("fit", lambda client: self.message(client, push), expects="model")
        if push:
            self.push()
        self.merges_of |= {reply.client: self.merges for reply in replies}
        mean = weighted_mean(replies, "model", by="num_steps")
        self.note_aggregation_error(replies, mean)
        self.update(mean)

    def message(self, client: int, push: bool) -> Payload:
        """The averaged factors and what is dense; the seeds; and what this client missed of W."""
        seed = self.factor_seed(self.merges)
        message = self.broadcast().plus(seed=seed, merges=self.merges)
        if push:
            message = message.plus(next_seed=self.factor_seed(self.merges + 1))
        missed = self.merges - self.merges_of.get(client, 0)
        if missed == 0:
            return message
        if missed > len(self.history):
            return message.plus(base=base_weights(self.model))
        factors = [entry["factors"] for entry in self.history[-missed:]]
        return message.plus(
            missed={
                "first": self.merges - missed,
                "seeds": torch.tensor([entry["seed"] for entry in self.history[-missed:]]),
                "factors": {name: torch.stack([own[name] for own in factors]) for name in factors[0]},
            }
        )

    def push(self) -> None:
        """What every client of this round did: W <- W + Delta(averaged factors), then new factors."""
        factors = trained_factors(self.model, self.theta())
        self.history.append(
            {
                "seed": self.factor_seed(self.merges),
                "factors": {name: value.clone() for name, value in factors.items()},
            }
        )
        self.history = self.history[-self.worth_sending(factors) :]
        merge(self.model)
        self.merges += 1
        restart(self.model, self.factor_seed(self.merges))

    def worth_sending(self, factors: Entries) -> int:
        """So many merges cost fewer bytes than W itself; what is older is answered with W."""
        base = sum(value.nbytes for value in base_weights(self.model).values())
        return max(1, math.ceil(base / (sum(value.nbytes for value in factors.values()) + 8)) - 1)

    def factor_seed(self, merges: int) -> int:
        """Of the factors that begin after so many merges."""
        return derive_seed(self.seed, "factors", merges)

    def note_aggregation_error(self, replies: Sequence[Reply], mean: Entries) -> None:
        weights = torch.tensor([reply["num_steps"] for reply in replies], dtype=torch.float64)
        weights /= weights.sum()
        apart = size = 0.0
        with torch.no_grad():
            for name, layer in decomposed_layers(self.model):
                deltas = [delta_of(name, layer, reply["model"]).double() for reply in replies]
                right = sum(weight * delta for weight, delta in zip(weights, deltas, strict=True))
                apart += float((right - delta_of(name, layer, mean)).square().sum())
                size += float(right.square().sum())
        self.errors.append(math.sqrt(apart / size) if size else 0.0)
        average = torch.tensor(sum(self.errors) / len(self.errors), dtype=torch.float64)
        self.log("aggregation_error", average, on_step=True, on_epoch=False, batch_size=1)


def merge_factors(model: nn.Module, seed: int, factors: Entries) -> None:
    """W <- W + Delta(factors, and the frozen ones of `seed`)."""
    restart(model, seed)
    set_entries(model, factors)
    merge(model)


def trained_factors(model: nn.Module, entries: Entries) -> dict[str, Tensor]:
    """Those of `entries` that are factors of a decomposed layer."""
    names = {f"{name}.{own}" for name, layer in decomposed_layers(model) for own in layer.form.trained}
    return {name: value for name, value in entries.items() if name in names}


def base_weights(model: nn.Module) -> dict[str, Tensor]:
    return {f"{name}.weight": layer.weight for name, layer in decomposed_layers(model)}


def delta_of(name: str, layer: Decomposed, entries: Entries) -> Tensor:
    """Delta (p, q) of `layer` with its trained factors from `entries`."""
    trained = {own: entries[f"{name}.{own}"] for own in layer.form.trained}
    return layer.form(layer.factors() | trained)


@torch.no_grad()
def set_entries(model: nn.Module, entries: Entries) -> None:
    held = model.state_dict(keep_vars=True)
    for name, value in entries.items():
        held[name].copy_(value)
