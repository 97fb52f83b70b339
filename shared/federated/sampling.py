"""Who takes part: pure functions round -> clients, with streams of their own, equal for every algorithm."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from shared.errors import UserError
from shared.training.seeding import derive_seed

Sampler: TypeAlias = Callable[[int], Sequence[int]]


def everyone(clients: Sequence[int]) -> Sampler:
    """All clients, every round."""
    fixed = list(clients)
    return lambda number: fixed


def uniform(
    clients: int | Sequence[int], per_round: int | float, *, seed: int, first_round_all: bool = False
) -> Sampler:
    """`per_round` clients (a fraction when a float: max(1, int(fraction * N))) without replacement.

    Round r is drawn from (seed, "sampler", r) alone, so any round can be drawn first.
    """
    pool = list(range(clients)) if isinstance(clients, int) else list(clients)
    count = max(1, int(per_round * len(pool))) if isinstance(per_round, float) else per_round
    if not 0 < count <= len(pool):
        raise UserError(f"expected 1 to {len(pool)} clients a round, found {count}.")

    def draw(number: int) -> list[int]:
        if first_round_all and number == 0:
            return list(pool)
        return list(_stream(seed, "sampler", number).choice(pool, count, replace=False))

    return draw


def predrawn(cohorts: Sequence[Sequence[int]]) -> Sampler:
    """Cohorts that were drawn (or written down) before; they repeat when they run out."""
    fixed = [list(cohort) for cohort in cohorts]
    if not fixed:
        raise UserError("expected at least one cohort, found none.")
    return lambda number: fixed[number % len(fixed)]


def available(sampler: Sampler, trace: Callable[[int, int], bool]) -> Sampler:
    """Those of the drawn clients for which `trace(client, round)` is true; possibly none."""
    return lambda number: [client for client in sampler(number) if trace(client, number)]


def joining(sampler: Sampler, first_round: dict[int, int]) -> Sampler:
    """Clients that come later: `first_round[client]` is the first they may take part in."""
    return available(sampler, lambda client, number: number >= first_round.get(client, 0))


def dropouts(probability: float, *, seed: int) -> Callable[[int, int], bool]:
    """`FederatedData(dropouts=...)`: each client vanishes with `probability` in each round."""
    return lambda client, number: _stream(seed, "dropout", number, client).random() < probability


def _stream(*parts: object) -> np.random.Generator:
    return np.random.default_rng(derive_seed(*parts))
