"""The figures of a table, read from the run store: what claims, figure functions and reports look at."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from shared.errors import UserError, suggest
from shared.reproduction import statistics
from shared.reproduction.plan import Cell, Plan, RunSpec
from shared.reproduction.published import Published, find_cell
from shared.reproduction.store import RunStore, Stored
from shared.training.tracking import read_history


class Results:
    """All runs of one table at one profile, as the store had them when this object was made.

    `rows` and `columns` are the ids in the recipe's order; a seed is listed where its run has finished (or is
    stale: finished with earlier code). Unknown rows, columns and metrics are UserErrors naming the nearest.
    """

    def __init__(self, plan: Plan, store: RunStore) -> None:
        self.plan = plan
        self.recipe = plan.recipe
        self.paper, self.table, self.profile = plan.paper, plan.table, plan.profile.name
        self.rows = list(plan.recipe.rows)
        self.columns = list(plan.recipe.columns)
        self.store = store
        self.specs: dict[str, RunSpec] = {spec.id: spec for spec in plan.runs}
        self.stored: dict[str, Stored] = {spec.id: store.find(spec) for spec in plan.runs}
        self._cells = {(cell.row, cell.column): cell for cell in plan.cells}
        self._shown = {cell.metric for cell in plan.cells}

    @property
    def places(self) -> list[tuple[str, str]]:
        """(row, column) of every cell, row by row."""
        return list(self._cells)

    def cell(self, row: str, column: str) -> Cell:
        """The planned cell at `row` and `column`."""
        if (row, column) not in self._cells:
            self.recipe.row(row), self.recipe.column(column)
        return self._cells[row, column]

    def per_seed(self, row: str, column: str, metric: str | None = None) -> dict[int, float]:
        """Seed -> value of `metric` (None: the cell's own), for the runs that have ended.

        The recipe's `scale` multiplies the metrics that the table's cells show; any other is as logged.
        Values that are not finite (a diverged run) are kept.
        """
        cell = self.cell(row, column)
        name = metric or cell.metric
        ended = {seed: self.stored[run] for seed, run in cell.runs.items() if self.stored[run].usable}
        scale = self.recipe.scale if name in self._shown else 1.0
        values = {
            seed: scale * stored.metrics[name] for seed, stored in ended.items() if name in stored.metrics
        }
        if ended and not values:
            known = sorted(set().union(*(stored.metrics for stored in ended.values())))
            old = any(stored.state == "stale" for stored in ended.values())
            raise UserError(
                f"the runs of {self.paper}/{self.table} in {row}/{column} logged no metric {name!r}."
                f"{suggest(name, known)} They logged: {', '.join(known) or 'nothing'}."
                + (" Some of them ran with earlier code: try --rerun-stale." if old else "")
                + ("" if old else " Name another metric in the recipe, or compute them again with --rerun.")
            )
        return dict(sorted(values.items()))

    def mean(self, row: str, column: str, metric: str | None = None) -> float | None:
        """Mean over seeds; None where no run has ended or a value is not finite."""
        values = list(self.per_seed(row, column, metric).values())
        return statistics.mean(values) if values and all(map(math.isfinite, values)) else None

    def std(self, row: str, column: str, metric: str | None = None) -> float | None:
        """Sample standard deviation over seeds; None below two seeds or where a value is not finite."""
        values = list(self.per_seed(row, column, metric).values())
        return statistics.std(values) if all(map(math.isfinite, values)) else None

    def published(self, row: str, column: str) -> Published | None:
        """The published figure of the cell; None where the recipe names none."""
        entries = self.recipe.row(row), self.recipe.column(column)
        return find_cell(self.paper, self.recipe.published, entries[0].published, entries[1].published)

    def run(self, row: str, column: str, seed: int) -> Stored:
        """What the store knows of the run of `seed` in a cell."""
        runs = self.cell(row, column).runs
        if seed not in runs:
            raise UserError(
                f"{self.paper}/{self.table} has no seed {seed}; it has {', '.join(map(str, runs))}."
            )
        return self.stored[runs[seed]]

    def run_dir(self, row: str, column: str, seed: int) -> Path:
        """Folder of a run: of the stale one where that is what the figures come from."""
        return self.run(row, column, seed).folder

    def artifacts(self, row: str, column: str, seed: int) -> Path:
        """Folder with the pictures and tables that a run wrote (absent when it wrote none)."""
        return self.run_dir(row, column, seed) / "artifacts"

    def config(self, row: str, column: str, seed: int | None = None) -> dict[str, Any]:
        """Resolved configuration of a cell's run (of its first seed by default), as plain nested dicts."""
        runs = self.cell(row, column).runs
        return self.specs[runs[next(iter(runs)) if seed is None else seed]].config

    def history(self, row: str, column: str, seed: int) -> dict[str, list[tuple[int, float]]]:
        """Everything a run logged: metric -> [(optimiser step, value), ...]; empty where no run is."""
        curves: dict[str, list[tuple[int, float]]] = {}
        for step, name, value in read_history(self.run_dir(row, column, seed) / "history.csv"):
            curves.setdefault(name, []).append((step, value))
        return curves

    def curve(self, row: str, column: str, seed: int, metric: str) -> list[tuple[int, float]]:
        """[(optimiser step, value), ...] of one metric of one run, as it was logged (not scaled)."""
        curves = self.history(row, column, seed)
        if curves and metric not in curves:
            raise UserError(
                f"{self.run_dir(row, column, seed)}: no metric {metric!r} in history.csv."
                f"{suggest(metric, curves)} It has: {', '.join(sorted(curves))}."
            )
        return curves.get(metric, [])
