"""The paper's ways of dealing labels to clients, as its code has them; the seeded random streams are ours."""

from __future__ import annotations

from typing import Any

import numpy as np

from shared.errors import UserError
from shared.federated.partition import Partition
from shared.training.seeding import derive_seed

ATTEMPTS = 1000


def label_dirichlet(labels: Any, clients: int, beta: float, *, seed: int, min_size: int = 10) -> Partition:
    """Class by class, shares from Dir(beta) among the clients that have less than N / n samples so far.

    Drawn again until every client has `min_size` samples. The cap, which the `dirichlet` of
    `shared.federated.partition` does not have, keeps sizes near each other.
    """
    values = np.asarray(labels)
    if not beta > 0:
        raise UserError(f"federation.alpha must be positive, found {beta}.")
    for attempt in range(ATTEMPTS):
        stream = np.random.default_rng(derive_seed(seed, "labeldir", attempt))
        own: list[list[int]] = [[] for _ in range(clients)]
        for label in np.unique(values):
            members = stream.permutation(np.flatnonzero(values == label))
            open_to = np.array([len(mine) < len(values) / clients for mine in own])
            shares = stream.dirichlet(np.full(clients, beta)) * open_to
            if shares.sum() <= 0:
                break
            cuts = (np.cumsum(shares / shares.sum()) * len(members)).astype(int)[:-1]
            for mine, part in zip(own, np.split(members, cuts), strict=True):
                mine += part.tolist()
        else:
            partition = Partition([np.sort(mine) for mine in own])
            if partition.sizes.min() >= min_size:
                return partition
    raise UserError(
        f"labeldir: no draw of {ATTEMPTS} gave each of {clients} clients {min_size} of {len(values)} "
        "samples; lower federation.min_size or federation.clients, or raise federation.alpha."
    )


def label_count(labels: Any, clients: int, per_client: int, *, seed: int) -> Partition:
    """Client i takes the `per_client` classes that the fewest before it took (the lower number first).

    The samples of a class are shared out evenly among those that took it, at random.
    """
    values = np.asarray(labels)
    classes = np.unique(values)
    if not 1 <= per_client <= len(classes):
        raise UserError(f"labelcnt: federation.labels_per_client is 1 to {len(classes)}, found {per_client}.")
    taken: list[list[int]] = [[] for _ in classes]
    for client in range(clients):
        counts = [len(holders) for holders in taken]
        for place in np.argsort(counts, kind="stable")[:per_client]:
            taken[place].append(client)
    stream = np.random.default_rng(derive_seed(seed, "labelcnt"))
    own: list[list[np.ndarray]] = [[] for _ in range(clients)]
    for label, holders in zip(classes, taken, strict=True):
        members = stream.permutation(np.flatnonzero(values == label))
        for client, part in zip(holders, np.array_split(members, max(1, len(holders))), strict=False):
            own[client].append(part)
    return Partition([np.sort(np.concatenate(mine)) for mine in own])
