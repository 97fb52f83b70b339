"""Statements about one cell as values, one per seed."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shared.reproduction.results import Results


def metric_of(results: Results, row: str, column: str, metric: str | None = None) -> dict[int, float]:
    """The cell itself, to hold it against a number."""
    return results.per_seed(row, column, metric)
