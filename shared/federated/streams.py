"""Tasks that arrive over time, and the accuracy matrix that judges them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class TaskStream:
    """Stage s lasts `rounds_per_task` rounds; in it client i works on task s, or on `order(i, s, position)`.

    Args:
        order: (client, stage, position in the round's list) -> task, for orders that differ between clients.
    """

    tasks: int
    rounds_per_task: int
    order: Callable[[int, int, int], int] | None = None

    def stage(self, round: int) -> int:
        return min(round // self.rounds_per_task, self.tasks - 1)

    def task(self, client: int, round: int, position: int = 0) -> int:
        stage = self.stage(round)
        return stage if self.order is None else self.order(client, stage, position)

    def starts(self, round: int) -> bool:
        """Whether `round` is the first of its stage."""
        return round == 0 or self.stage(round) != self.stage(round - 1)

    def ends(self, round: int) -> bool:
        """Whether `round` is the last of its stage; the last stage has a planned end too."""
        return self.stage(round + 1) != self.stage(round) or round + 1 == self.tasks * self.rounds_per_task


@dataclass
class AccuracyMatrix:
    """A[t, s]: accuracy on task s after stage t (s <= t). Rows are added in order."""

    rows: list[list[float]] = field(default_factory=list)

    def add(self, accuracies: Sequence[float]) -> None:
        self.rows.append([float(value) for value in accuracies])

    @property
    def average(self) -> float:
        """Mean over the tasks seen, after the last stage."""
        return float(np.mean(self.rows[-1]))

    @property
    def forgetting(self) -> float:
        """Mean over old tasks of (best accuracy before the last stage - the last); 0 with one task."""
        last = self.rows[-1]
        drops = [max(row[s] for row in self.rows[s:-1]) - last[s] for s in range(len(last) - 1)]
        return float(np.mean(drops)) if drops else 0.0

    def tensor(self) -> Tensor:
        """(T, T), NaN where a task was not seen yet."""
        size = len(self.rows)
        matrix = torch.full((size, size), float("nan"))
        for t, row in enumerate(self.rows):
            matrix[t, : len(row)] = torch.tensor(row)
        return matrix
