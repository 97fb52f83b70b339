"""FedHM: the server keeps dense weights and sends their truncated SVD; clients train the factors.

After Yao et al. 2021. Each round: W is cut to rank r, clients train L R, the server averages the products
(not the factors) and that mean is the new W. It is W, not its truncation, that is evaluated.
"""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor

from projects.fedmud.layers import decomposed_layers
from shared.federated.aggregate import weighted_mean
from shared.federated.cohort import Cohort
from shared.federated.module import FederatedModule
from shared.federated.payload import Reply


def truncated(weight: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """Factors (p, r) and (r, q) of the best approximation of `weight` (p, q), the singular values shared."""
    u, s, vt = torch.linalg.svd(weight, full_matrices=False)
    root = s[:rank].sqrt()
    return u[:, :rank] * root, root[:, None] * vt[:rank]


class FedHM(FederatedModule):
    """`client` has layers of `LowRank` weights; `dense` is the same network without, the server's own."""

    def __init__(self, client: Any, *, dense: LightningModule, **settings: Any) -> None:
        super().__init__(client, **settings)
        self.forms = {name: layer.form for name, layer in decomposed_layers(self.client.module)}
        self.model = dense

    def theta(self) -> dict[str, Tensor]:
        """What clients receive: every decomposed weight as its two factors."""
        entries = {name: value.detach() for name, value in self.model.state_dict(keep_vars=True).items()}
        for name, form in self.forms.items():
            weight = entries.pop(f"{name}.weight").view(form.rows, form.columns)
            entries[f"{name}.left"], entries[f"{name}.right"] = truncated(weight, form.product.rank)
        return entries

    def round(self, cohort: Cohort) -> None:
        replies = cohort.call("fit", self.broadcast(), expects="model")
        restored = [
            Reply(reply.client, reply.plus(model=self.multiplied(reply["model"]))) for reply in replies
        ]
        self.update(weighted_mean(restored, "model", by="num_steps"))

    def multiplied(self, entries: dict[str, Tensor]) -> dict[str, Tensor]:
        """A client's entries with every pair of factors as the weight that they make."""
        shapes = {name: value.shape for name, value in self.model.state_dict().items()}
        found = dict(entries)
        for name, form in self.forms.items():
            factors = {own: found.pop(f"{name}.{own}") for own in form.trained}
            found[f"{name}.weight"] = form(factors).reshape(shapes[f"{name}.weight"])
        return found
