"""Statements of the paper as paired values, one per seed."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shared.reproduction.results import Results

PerSeed = dict[int, float]


def source_loses_more(
    results: Results, row: str, reference: str = "none", source: str = "source", target: str = "target"
) -> PerSeed:
    """What `row` loses against `reference` on the source, less what it loses on the target.

    Args:
        source, target: columns.
    """
    cells = [results.per_seed(arm, column) for column in (source, target) for arm in (reference, row)]
    seeds = sorted(set.intersection(*map(set, cells)))
    source_before, source_after, target_before, target_after = cells
    return {
        seed: (source_before[seed] - source_after[seed]) - (target_before[seed] - target_after[seed])
        for seed in seeds
    }


def phenomenon(results: Results, arm: str, pieces: str, whole: str = "p_1") -> PerSeed:
    """`source_loses_more` where rows are domains and columns numbers of pieces.

    Args:
        pieces, whole: columns, with broken and with whole images.
    """
    before, after = (
        [results.per_seed(f"{arm}_{domain}", column) for domain in ("source", "target")]
        for column in (whole, pieces)
    )
    seeds = sorted(set.intersection(*map(set, [*before, *after])))
    lost = [{seed: b[seed] - a[seed] for seed in seeds} for b, a in zip(before, after, strict=True)]
    return {seed: lost[0][seed] - lost[1][seed] for seed in seeds}
