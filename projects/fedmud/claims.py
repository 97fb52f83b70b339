"""Statements of the paper as paired values, one per seed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.errors import UserError
from shared.reproduction.statistics import mean, paired_differences

if TYPE_CHECKING:
    from shared.reproduction.results import Results

PerSeed = dict[int, float]


def margin_over_best(
    results: Results, row: str, others: list[str], columns: list[str] | None = None, metric: str | None = None
) -> PerSeed:
    """`row` minus the best of `others`, the one with the highest mean over seeds and columns.

    That one is chosen from the values that it is then compared by, which is to the disadvantage of `row`.

    Args:
        columns: the values are means over these; default: all.

    Raises:
        UserError: no run of `others` has ended.
    """
    chosen = columns or results.columns
    values = {name: _over_columns(results, name, chosen, metric) for name in [row, *others]}
    means = {name: mean(list(values[name].values())) for name in others if values[name]}
    if not means:
        raise UserError(f"no run of {', '.join(others)} has ended yet.")
    return paired_differences(values[row], values[max(means, key=lambda name: means[name])])


def _over_columns(results: Results, row: str, columns: list[str], metric: str | None) -> PerSeed:
    found = [results.per_seed(row, column, metric) for column in columns]
    seeds = set.intersection(*map(set, found))
    return {seed: mean([values[seed] for values in found]) for seed in sorted(seeds)}
