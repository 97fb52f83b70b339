"""FedBN (Li et al. 2021): batch normalisation stays with the client, weights and statistics."""

from __future__ import annotations

from typing import Any

from shared.federated import roles
from shared.federated.algorithms.fedavg import FedAvg


class FedBN(FedAvg):
    """FedAvg over everything else. Its models are personal: judge it by `targets=("personal",)`."""

    def __init__(self, client: Any, *, targets: tuple[str, ...] = ("personal",), **settings: Any) -> None:
        super().__init__(client, role=roles.personal_norms, targets=targets, **settings)
