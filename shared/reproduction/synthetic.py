"""Results made of given figures, for tests of claim functions, figure functions and reports."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from shared.reproduction.plan import Cell, Plan, RunSpec, run_key
from shared.reproduction.recipe import Claim, Entry, Profile, Recipe
from shared.reproduction.results import Results
from shared.reproduction.store import FINISHED, RunStore

Value = float | Mapping[str, float]


def synthetic_results(
    folder: Path,
    values: Mapping[tuple[str, str], Mapping[int, Value]],
    *,
    profile: str = "laptop",
    claims: Sequence[Claim] = (),
    configs: Mapping[tuple[str, str], Mapping[str, Any]] | None = None,
    histories: Mapping[tuple[str, str, int], Sequence[tuple[int, str, float]]] | None = None,
    rows: Mapping[str, Entry] | None = None,
    columns: Mapping[str, Entry] | None = None,
    missing: Mapping[tuple[str, str, int], str] | None = None,
    **recipe: Any,
) -> Results:
    """Write a run store below `folder` that holds `values` and return its `Results`.

    Args:
        folder: an empty folder, such as pytest's `tmp_path`.
        values: (row, column) -> seed -> the value of the metric "score", or metric -> value.
        claims: the recipe's claims.
        configs: (row, column) -> the configuration that its runs claim to have had.
        histories: (row, column, seed) -> lines (step, metric, value) of the run's history.csv.
        rows, columns: entries in place of the bare ids found in `values`.
        missing: (row, column, seed) -> failed, interrupted or missing, for planned runs without figures.
        **recipe: further fields of the `Recipe` (paper, table, title, metric, unit, published, ...).
    """
    missing = dict(missing or {})
    seeds = tuple(sorted({seed for cell in values.values() for seed in cell} | {key[2] for key in missing}))
    rows = dict(rows or {row: Entry(id=row, label=row) for row, _ in values})
    columns = dict(columns or {column: Entry(id=column, label=column) for _, column in values})
    scale = Profile(name=profile, seeds=seeds)
    given: dict[str, Any] = {"paper": "toy", "table": "main", "title": "Synthetic figures", "metric": "score"}
    table = Recipe(
        path=folder / "recipe.yaml",
        rows=rows,
        columns=columns,
        profiles={profile: scale},
        claims=tuple(claims),
        **(given | recipe),
    )
    store = RunStore(folder / "runs")
    cells, runs = [], []
    for row, column in [(row, column) for row in rows for column in columns]:
        entry = (columns[column], rows[row])
        metric = next((item.metric for item in entry if item.metric), table.metric)
        unit = next((item.unit for item in entry if item.unit is not None), table.unit)
        cell = Cell(row=row, column=column, metric=metric, unit=unit, runs={})
        for seed in seeds:
            key = run_key(table.paper, f"{row}/{column}", seed)
            spec = RunSpec(
                id=f"{key}-0a1b2c3d",
                key=key,
                source="0a1b2c3d" * 8,
                paper=table.paper,
                table=table.table,
                row=row,
                column=column,
                seed=seed,
                config={"seed": seed, **(configs or {}).get((row, column), {})},
            )
            cell.runs[seed] = spec.id
            runs.append(spec)
            value = values.get((row, column), {}).get(seed)
            state = FINISHED if value is not None else missing.get((row, column, seed), "missing")
            if state == "missing":
                continue
            run = store.begin(spec)
            with (run / "history.csv").open("w", newline="") as file:
                lines = (histories or {}).get((row, column, seed), ())
                csv.writer(file).writerows([("step", "name", "value"), *lines])
            metrics = dict(value) if isinstance(value, Mapping) else {metric: value}
            store.end(spec, state, metrics if value is not None else None)
        cells.append(cell)
    plan = Plan(table.paper, table.table, scale, table, seeds, cells, runs)
    return Results(plan, store)
