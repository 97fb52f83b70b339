"""What this repository can reproduce and has measured, read from recipes, tables and `docs/results`."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

from shared import paths
from shared.reproduction.plan import make_plan
from shared.reproduction.published import count_figures, find_cell, find_table, read_tables
from shared.reproduction.recipe import Recipe, recipes
from shared.reproduction.record import committed_path, read_record
from shared.reproduction.report.view import View, cell_tally, tally
from shared.reproduction.source import source_hash

PROFILES = ("laptop", "paper")


@dataclass(frozen=True)
class Measured:
    """The committed record of a table at one profile, in short."""

    claims: dict[str, str]  # claim id -> verdict
    cells: dict[str, int]  # verdict -> number of cells; empty below the paper profile
    summary: str
    stale: str | None  # why it no longer describes the code; None: it does
    measured: str  # day
    command: str


@dataclass(frozen=True)
class TableStatus:
    """One line of the matrix: a table that has a recipe, published figures, or both."""

    paper: str
    table: str
    title: str
    recipe: bool
    default: bool
    profiles: list[str]
    published: list[str]  # ids in tables.yaml
    figures: int  # published figures in them
    third_party: bool
    laptop: Measured | None
    paper_profile: Measured | None


def collect(papers: Sequence[str] | None = None) -> list[TableStatus]:
    """The matrix, paper by paper: recipes first, then published tables that no recipe refers to."""
    lines = []
    for paper in paths.papers() if papers is None else papers:
        used: set[str] = set()
        for recipe in _recipes(paper):
            lines.append(_with_recipe(recipe))
            used |= set(lines[-1].published)
        lines += [
            _without_recipe(paper, table)
            for table in read_tables(paper)["tables"]
            if str(table["id"]) not in used
        ]
    return lines


def to_json(lines: Sequence[TableStatus]) -> dict[str, Any]:
    """`{"tables": [...]}`, a mapping for each line."""
    return {"tables": [asdict(line) for line in lines]}


def view_of(recipe: Recipe, profile: str) -> View:
    """The committed record of a table as readers see it; one without figures where nothing was measured."""
    path = committed_path(recipe.paper, recipe.table, profile)
    record = read_record(path) if path.is_file() else empty_record(recipe, profile)
    return View.of(record, recipe.at(profile))


def empty_record(recipe: Recipe, profile: str) -> dict[str, Any]:
    """The record of a table of which nothing has run."""
    table = recipe.at(profile)
    cells = []
    for row in table.rows.values():
        for column in table.columns.values():
            published = find_cell(recipe.paper, table.published, row.published, column.published)
            cells.append(
                {"row": row.id, "column": column.id, "mean": None, "std": None, "n": 0}
                | {"unit": column.unit or row.unit or table.unit}
                | {"published": published.value if published else None}
                | {"provenance": published.provenance if published else None, "verdict": None}
            )
    environment = {"command": command(recipe.paper, recipe.table, profile)}
    return {
        "paper": recipe.paper,
        "table": recipe.table,
        "profile": profile,
        "environment": environment,
        "cells": cells,
        "claims": [],
        "runs": [],
    }


def command(paper: str, table: str, profile: str) -> str:
    """What re-runs a table."""
    return shlex.join(["python", "scripts/reproduce.py", paper, table, "--profile", profile])


def stale_reason(record: dict[str, Any], recipe: Recipe) -> str | None:
    """Why a record no longer describes what its command would do today; None if it does."""
    if any(run["status"] == "stale" for run in record["runs"]):
        return "some of its runs were computed with earlier code"
    if record["environment"].get("source") != _source(recipe.paper):
        return "the code has changed"
    seeds = len({run["seed"] for run in record["runs"]})
    planned = make_plan(recipe, record["profile"], seeds or None)
    if {spec.key for spec in planned.runs} != {run["id"].rpartition("-")[0] for run in record["runs"]}:
        return "the configuration has changed"
    if {claim.id for claim in planned.recipe.claims} != {claim["id"] for claim in record["claims"]}:
        return "the claims have changed"
    return None


@cache
def _source(paper: str) -> str:
    return source_hash(paper)


def _recipes(paper: str) -> list[Recipe]:
    """The default table first."""
    if not any((paths.CONFIGS / paper).glob("*.yaml")):
        return []
    return sorted(recipes(paper), key=lambda recipe: (not recipe.default, recipe.table))


def _with_recipe(recipe: Recipe) -> TableStatus:
    profiles = list(recipe.profiles)
    published = list(dict.fromkeys(filter(None, (recipe.at(profile).published for profile in profiles))))
    tables = [find_table(recipe.paper, name) for name in published]
    measured = {profile: _measured(recipe, profile) for profile in PROFILES if profile in profiles}
    return TableStatus(
        paper=recipe.paper,
        table=recipe.table,
        title=recipe.title,
        recipe=True,
        default=recipe.default,
        profiles=profiles,
        published=published,
        figures=sum(map(count_figures, tables)),
        third_party=any(table.get("third_party") for table in tables),
        laptop=measured.get("laptop"),
        paper_profile=measured.get("paper"),
    )


def _without_recipe(paper: str, table: dict[str, Any]) -> TableStatus:
    return TableStatus(
        paper=paper,
        table=str(table["id"]),
        title=str(table.get("about") or table["id"]),
        recipe=False,
        default=False,
        profiles=[],
        published=[str(table["id"])],
        figures=count_figures(table),
        third_party=bool(table.get("third_party")),
        laptop=None,
        paper_profile=None,
    )


def _measured(recipe: Recipe, profile: str) -> Measured | None:
    path = committed_path(recipe.paper, recipe.table, profile)
    if not path.is_file():
        return None
    record = read_record(path)
    cells = [cell["verdict"] for cell in record["cells"] if cell["verdict"] is not None]
    parts = [tally(record["claims"])] if record["claims"] else []
    parts += [f"cells: {cell_tally(record['cells'])}"] if cells else []
    return Measured(
        claims={claim["id"]: claim["verdict"] for claim in record["claims"]},
        cells={verdict: cells.count(verdict) for verdict in dict.fromkeys(cells)},
        summary="; ".join(parts) or "measured",
        stale=stale_reason(record, recipe),
        measured=record["environment"]["finished"][:10],
        command=record["environment"]["command"],
    )
