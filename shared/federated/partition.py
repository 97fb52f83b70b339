"""Which client has which samples: named, seeded, hashed, saved without pickle."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from shared.errors import UserError
from shared.training.seeding import derive_seed


class Partition:
    """`partition[client]` are the places of that client's samples, (n_i,) int64."""

    def __init__(self, places: Sequence[Any]) -> None:
        self.places = [np.asarray(own, dtype=np.int64) for own in places]

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, client: int) -> np.ndarray:
        return self.places[client]

    @property
    def sizes(self) -> np.ndarray:
        return np.array([len(own) for own in self.places])

    @property
    def hash(self) -> str:
        """16 hex digits that name who has which samples in which order."""
        total = hashlib.sha256()
        for own in self.places:
            total.update(len(own).to_bytes(8, "little") + own.astype("<i8").tobytes())
        return total.hexdigest()[:16]

    def counts(self, labels: Any, classes: int | None = None) -> np.ndarray:
        """Samples of each client and class, (N, C)."""
        values = _labels(labels)
        width = classes or int(values.max()) + 1
        return np.stack([np.bincount(values[own], minlength=width) for own in self.places])

    def split(self, fraction: float, *, seed: int) -> tuple[Partition, Partition]:
        """Two partitions; the second has round(fraction * n_i) of each client's samples, drawn at random."""
        first, second = [], []
        for client, own in enumerate(self.places):
            mixed = _stream(seed, "split", client).permutation(own)
            cut = len(own) - round(fraction * len(own))
            first.append(np.sort(mixed[:cut]))
            second.append(np.sort(mixed[cut:]))
        return Partition(first), Partition(second)

    def save(self, path: Path) -> None:
        """One npz file: all places in a row, the clients' sizes, the hash."""
        with Path(path).open("wb") as file:  # numpy adds ".npz" to the name of a file that it opens itself
            np.savez_compressed(
                file,
                places=np.concatenate([*self.places, np.empty(0, np.int64)]),
                sizes=self.sizes,
                hash=np.array(self.hash),
            )

    @classmethod
    def load(cls, path: Path) -> Partition:
        """Raises UserError: the file is missing, of another kind, or does not have its own hash."""
        try:
            with np.load(path, allow_pickle=False) as file:
                places, sizes, expected = file["places"], file["sizes"], str(file["hash"])
        except (OSError, ValueError, KeyError) as error:
            raise UserError(f"{path} cannot be read as a partition ({error}).") from None
        found = cls(np.split(places, np.cumsum(sizes)[:-1]))
        if found.hash != expected:
            raise UserError(f"{path} has hash {found.hash}, expected {expected}: it was altered.")
        return found


def iid(samples: int, clients: int, *, seed: int) -> Partition:
    """A random deal; sizes differ by one at most."""
    mixed = _stream(seed, "iid").permutation(samples)
    return Partition([np.sort(own) for own in np.array_split(mixed, clients)])


def dirichlet(labels: Any, clients: int, alpha: float, *, seed: int, min_size: int = 0) -> Partition:
    """Per class, shares of the clients from Dir(alpha) (Yurochkin et al. 2019; Li et al. 2022, NIID-Bench).

    Drawn again until every client has `min_size` samples, at most 1,000 times.
    """
    values = _labels(labels)
    _positive(alpha)
    for attempt in range(1000):
        stream = _stream(seed, "dirichlet", attempt)
        own: list[list[np.ndarray]] = [[] for _ in range(clients)]
        for label in np.unique(values):
            members = stream.permutation(np.flatnonzero(values == label))
            cuts = (np.cumsum(stream.dirichlet(np.full(clients, alpha))) * len(members)).astype(int)[:-1]
            for client, part in enumerate(np.split(members, cuts)):
                own[client].append(part)
        partition = Partition([np.sort(np.concatenate(parts)) for parts in own])
        if partition.sizes.min() >= min_size:
            return partition
    raise UserError(
        f"no Dirichlet({alpha}) split of {len(values)} samples gave each of {clients} clients {min_size} "
        "samples in 1,000 draws; lower min_size or the number of clients, or raise alpha."
    )


def balanced_dirichlet(labels: Any, clients: int, alpha: float, *, seed: int) -> Partition:
    """Equal sizes; each client's class mix is from Dir(alpha) (Acar et al. 2021, FedDyn).

    Clients take turns in a random order, one sample each, of a class drawn from their mix among the classes
    that are left. Sizes are floor(n / N); the remainder is unused.
    """
    values = _labels(labels)
    _positive(alpha)
    stream = _stream(seed, "balanced_dirichlet")
    pools = [list(stream.permutation(np.flatnonzero(values == label))) for label in np.unique(values)]
    mixes = stream.dirichlet(np.full(len(pools), alpha), size=clients)  # (N, C)
    left = np.array([len(pool) for pool in pools])
    own: list[list[int]] = [[] for _ in range(clients)]
    for _ in range(len(values) // clients):
        for client in stream.permutation(clients):
            weights = mixes[client] * (left > 0)
            if weights.sum() <= 0:
                weights = (left > 0).astype(float)
            label = int(np.searchsorted(np.cumsum(weights), stream.random() * weights.sum(), side="right"))
            label = min(label, len(pools) - 1)
            own[client].append(pools[label].pop())
            left[label] -= 1
    return Partition([np.sort(taken) for taken in own])


def shards(labels: Any, clients: int, per_client: int, *, seed: int) -> Partition:
    """Samples sorted by label, cut into N * per_client shards, dealt at random (McMahan et al. 2017)."""
    values = _labels(labels)
    count = clients * per_client
    if count > len(values):
        raise UserError(f"{count} shards need as many samples; there are {len(values)}.")
    cut = np.array_split(np.argsort(values, kind="stable"), count)
    dealt = _stream(seed, "shards").permutation(count).reshape(clients, per_client)
    return Partition([np.sort(np.concatenate([cut[shard] for shard in own])) for own in dealt])


def classes_per_client(labels: Any, clients: int, per_client: int, *, seed: int) -> Partition:
    """Every client has exactly `per_client` classes; a class is shared out evenly among those that have it.

    Classes are dealt in shuffled rounds, so that each class has N * per_client / C holders, one more or less.
    With N * per_client = C the clients' classes are disjoint.
    """
    values = _labels(labels)
    names = np.unique(values)
    if not 1 <= per_client <= len(names):
        raise UserError(f"expected 1 to {len(names)} classes a client, found {per_client}.")
    stream = _stream(seed, "classes")
    holders: dict[int, list[int]] = {int(name): [] for name in names}
    for client in stream.permutation(clients):
        ties = stream.permutation(len(names))
        order = sorted(range(len(names)), key=lambda i: (len(holders[int(names[i])]), ties[i]))
        for i in order[:per_client]:
            holders[int(names[i])].append(int(client))
    own: list[list[np.ndarray]] = [[] for _ in range(clients)]
    for name, sharing in holders.items():
        if sharing:
            members = stream.permutation(np.flatnonzero(values == name))
            for client, part in zip(sharing, np.array_split(members, len(sharing)), strict=True):
                own[client].append(part)
    return Partition([np.sort(np.concatenate(parts)) for parts in own])


def quantity_skew(samples: int, clients: int, alpha: float, *, seed: int, min_size: int = 1) -> Partition:
    """Sizes from Dir(alpha) over clients, labels IID; every client has `min_size` at least."""
    _positive(alpha)
    if min_size * clients > samples:
        raise UserError(f"{clients} clients of {min_size} samples need more than {samples} samples.")
    stream = _stream(seed, "quantity")
    spare = samples - min_size * clients
    bounds = (np.cumsum(stream.dirichlet(np.full(clients, alpha))) * spare).round().astype(int)
    sizes = np.diff(np.concatenate([[0], bounds[:-1], [spare]])) + min_size
    mixed = stream.permutation(samples)
    return Partition([np.sort(own) for own in np.split(mixed, np.cumsum(sizes)[:-1])])


def by_key(keys: Any) -> Partition:
    """One client for each distinct key, in ascending order of keys: domain = client, user = client."""
    _, inverse = np.unique(np.asarray(keys), return_inverse=True)
    return Partition([np.flatnonzero(inverse == client) for client in range(inverse.max() + 1)])


def within(groups: Partition, labels: Any, clients: int, alpha: float, *, seed: int) -> Partition:
    """Each group (a domain) split among `clients` clients by `dirichlet`: domain x label skew."""
    values = _labels(labels)
    found = []
    for number, own in enumerate(groups.places):
        inner = dirichlet(values[own], clients, alpha, seed=derive_seed(seed, "within", number))
        found += [own[places] for places in inner.places]
    return Partition(found)


def _labels(labels: Any) -> np.ndarray:
    values = labels.cpu().numpy() if isinstance(labels, Tensor) else np.asarray(labels)
    if values.ndim != 1:
        raise UserError(f"expected one label a sample, found an array of shape {values.shape}.")
    return values.astype(np.int64)


def _positive(alpha: float) -> None:
    if not alpha > 0:
        raise UserError(f"a Dirichlet concentration must be positive, found {alpha}.")


def _stream(*parts: object) -> np.random.Generator:
    return np.random.default_rng(derive_seed(*parts))
