"""From a recipe to the runs it needs: every cell's resolved configuration, and one run for equal ones."""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

from omegaconf.errors import OmegaConfBaseException

from shared.errors import UserError
from shared.reproduction.recipe import Entry, Profile, Recipe
from shared.reproduction.source import source_hash
from shared.training.config import base_layer, compose, fingerprint, resolved

MOST_SEEDS = 10_000


@dataclass(frozen=True)
class RunSpec:
    """One run, plain data: what a worker process or a cluster job needs to know."""

    id: str  # key and source: names the folder in the store
    key: str  # hash of paper, semantic configuration and seed
    source: str  # hash of the code that the run imports
    paper: str
    table: str
    row: str  # the first cell that uses this run
    column: str
    seed: int
    config: dict[str, Any]  # resolved, seed included

    @property
    def group(self) -> str:
        """How runs of one table are grouped in Weights & Biases."""
        return f"{self.paper}/{self.table}"

    @property
    def name(self) -> str:
        """For people: ``row/column/seed 0``."""
        return f"{self.row}/{self.column}/seed {self.seed}"


@dataclass(frozen=True)
class Cell:
    """One cell of the table, and the runs over which it is averaged."""

    row: str
    column: str
    metric: str
    unit: str
    runs: dict[int, str]  # seed -> run id


@dataclass(frozen=True)
class Plan:
    """All cells of a table at one profile and all runs they need, each run once, seed by seed."""

    paper: str
    table: str
    profile: Profile
    recipe: Recipe  # as the profile sees it
    seeds: tuple[int, ...]
    cells: list[Cell]
    runs: list[RunSpec]
    overrides: tuple[str, ...] = ()

    def cell(self, row: str, column: str) -> Cell:
        """The cell at known `row` and `column`; a `UserError` with the nearest name otherwise."""
        self.recipe.row(row), self.recipe.column(column)
        return next(cell for cell in self.cells if (cell.row, cell.column) == (row, column))


def make_plan(recipe: Recipe, profile: str, seeds: int | None = None, overrides: Sequence[str] = ()) -> Plan:
    """Resolve every cell of `recipe` at `profile`.

    Args:
        recipe: as `load_recipe` gives it.
        profile: one of the recipe's profiles.
        seeds: how many seeds; the profile's list, continued by counting on where it is too short.
        overrides: ``key=value`` of the command line, laid over everything else.
    """
    table = recipe.at(profile)
    scale = recipe.profiles[profile]
    for override in overrides:
        if override.startswith("seed="):
            raise UserError(
                "`seed=` would give every run the same seed; use --seeds N (or train.py for one run)."
            )
    chosen = _seeds(scale.seeds, seeds)
    source = source_hash(recipe.paper)
    schema = config_schema(recipe.paper)
    cells: list[Cell] = []
    runs: dict[tuple[int, str], RunSpec] = {}
    for row in table.rows.values():
        for column in table.columns.values():
            config = _composed(schema, cell_config(table, scale, row, column), overrides)
            cell = Cell(
                row=row.id,
                column=column.id,
                metric=column.metric or row.metric or table.metric,
                unit=next(unit for unit in (column.unit, row.unit, table.unit) if unit is not None),
                runs={},
            )
            mark, plain = fingerprint(config), resolved(config)
            for seed in chosen:
                key = run_key(recipe.paper, mark, seed)
                spec = RunSpec(
                    id=f"{key}-{source[:8]}",
                    key=key,
                    source=source,
                    paper=recipe.paper,
                    table=recipe.table,
                    row=row.id,
                    column=column.id,
                    seed=seed,
                    config=plain | {"seed": seed},
                )
                cell.runs[seed] = runs.setdefault((seed, key), spec).id
            cells.append(cell)
    order = {seed: place for place, seed in enumerate(chosen)}
    return Plan(
        paper=recipe.paper,
        table=recipe.table,
        profile=scale,
        recipe=table,
        seeds=chosen,
        cells=cells,
        runs=sorted(runs.values(), key=lambda spec: order[spec.seed]),  # whole tables seed by seed
        overrides=tuple(overrides),
    )


def cell_config(recipe: Recipe, profile: Profile, row: Entry, column: Entry) -> dict[str, Any]:
    """The configuration of a cell without the command line's: the layers over each other, lowest first."""
    return reduce(_over, [base_layer(), recipe.config, profile.config, row.config, column.config])


def _over(base: dict[str, Any], top: dict[str, Any]) -> dict[str, Any]:
    """`top` over `base`, section by section; plain dicts, since OmegaConf takes 5 ms to merge one layer."""
    merged = dict(base)
    for key, value in top.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = _over(merged[key], value) if both else value
    return merged


def config_schema(paper: str) -> type:
    """The typed configuration `projects.<paper>.config.Config`."""
    return importlib.import_module(f"projects.{paper}.config").Config


def run_key(paper: str, config_fingerprint: str, seed: int) -> str:
    """12 hex digits that stay the same while the code changes."""
    return hashlib.sha256(f"{paper}/{config_fingerprint}/{seed}".encode()).hexdigest()[:12]


def _composed(schema: Any, layer: Mapping[str, Any], overrides: Sequence[str]) -> Any:
    try:
        config = compose(schema, layer, overrides=overrides)
        resolved(config)
    except OmegaConfBaseException as error:
        reason = str(error).splitlines()[0]
        raise UserError(
            f"the configuration cannot be resolved: {reason}. Look at ${{...}} and ??? in it."
        ) from None
    return config


def _seeds(listed: tuple[int, ...], count: int | None) -> tuple[int, ...]:
    if count is None:
        return listed
    if count < 1:
        raise UserError(f"--seeds: expected at least 1, found {count}.")
    if count > MOST_SEEDS:
        raise UserError(f"--seeds: expected at most {MOST_SEEDS}, found {count}.")
    more = range(max(listed) + 1, max(listed) + 1 + max(0, count - len(listed)))
    return (*listed[:count], *more)
