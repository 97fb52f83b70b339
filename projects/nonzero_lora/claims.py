"""Statements of the paper as paired values, one per seed. Learning rates are the columns' `value`s."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from shared.errors import UserError
from shared.reproduction.statistics import mean, paired_differences

if TYPE_CHECKING:
    from shared.reproduction.results import Results

PerSeed = dict[int, float]


def best_column(results: Results, row: str, metric: str | None = None) -> str:
    """The learning rate at which `row` has its best mean; the first of equals.

    Raises:
        UserError: no run of that row has ended.
    """
    means = {column: results.mean(row, column, metric) for column in results.columns}
    means = {column: value for column, value in means.items() if value is not None}
    if not means:
        raise UserError(f"no run of row '{row}' has ended yet.")
    sign = 1 if results.recipe.higher_is_better else -1
    return max(means, key=lambda column: sign * means[column])


def columns_below_best(results: Results, row: str, decades: list[float]) -> list[str]:
    """Columns whose rate lies `decades` = [nearest, furthest] powers of ten below the best one of `row`."""
    rates = {column: results.recipe.columns[column].value for column in results.columns}
    best = rates[best_column(results, row)]
    nearest, furthest = decades
    return [
        column
        for column, rate in rates.items()
        if nearest - 0.05 <= math.log10(best / rate) <= furthest + 0.05  # 1e-3 to 3e-3 is 0.48 decades
    ]


def advantage_below_best(
    results: Results, row: str, reference: str, decades: list[float], metric: str | None = None
) -> PerSeed:
    """`row` minus `reference`, mean over the rates `decades` below the best rate of `reference`."""
    columns = columns_below_best(results, reference, decades)
    if not columns:
        best = best_column(results, reference)
        raise UserError(
            f"the grid has no rate {decades} decades below the best one of '{reference}' ({best})."
        )
    return _mean_over([_difference(results, row, reference, column, metric) for column in columns])


def advantage_at_best(results: Results, row: str, reference: str, metric: str | None = None) -> PerSeed:
    """`row` minus `reference` at the best rate of `reference`."""
    return _difference(results, row, reference, best_column(results, reference), metric)


def worst_difference(results: Results, row: str, reference: str, metric: str | None = None) -> PerSeed:
    """`row` minus `reference` at the column where the mean of that difference is smallest.

    The column is chosen from the values it is then judged by, which makes the figure too low on average:
    conservative for a claim that `row` loses little.
    """
    found = [_difference(results, row, reference, column, metric) for column in results.columns]
    found = [values for values in found if values]
    if not found:
        raise UserError(f"no seed has runs of both '{row}' and '{reference}' yet.")
    return min(found, key=lambda values: mean(list(values.values())))


def additivity_error(
    results: Results, both: str, parts: list[str], column: str, metric: str | None = None
) -> PerSeed:
    """|gain(both) - sum of gains(parts)| / sum of |gains(parts)|: 0 when the gains add up.

    The denominator takes absolute values because a first step may raise the held-out loss: then gains of
    opposite sign would leave a sum near zero.
    """
    whole = results.per_seed(both, column, metric)
    gains = [results.per_seed(part, column, metric) for part in parts]
    seeds = set(whole).intersection(*gains)
    return {
        seed: abs(whole[seed] - math.fsum(gain[seed] for gain in gains))
        / math.fsum(abs(gain[seed]) for gain in gains)
        for seed in sorted(seeds)
    }


def _difference(results: Results, row: str, reference: str, column: str, metric: str | None) -> PerSeed:
    return paired_differences(
        results.per_seed(row, column, metric), results.per_seed(reference, column, metric)
    )


def _mean_over(values: list[PerSeed]) -> PerSeed:
    seeds = set.intersection(*map(set, values))
    return {seed: mean([value[seed] for value in values]) for seed in sorted(seeds)}
