"""A record as readers see it: labels for ids, figures with as many digits as their spread supports."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from shared.reproduction.published import find_cell
from shared.reproduction.recipe import Claim, Entry, Recipe

NOTHING = "–"
ROUNDING = 1e-12  # a relative spread below this is that of adding the same numbers in another order


@dataclass(frozen=True)
class View:
    """A record and, where it is at hand, the recipe it came from (as its profile sees it)."""

    record: dict[str, Any]
    recipe: Recipe | None = None
    published_std: dict[tuple[str, str], float] = field(default_factory=dict)

    @classmethod
    def of(cls, record: dict[str, Any], recipe: Recipe) -> View:
        """With labels and the spread of published figures; `recipe` as the record's profile sees it."""
        spread = {}
        for row in recipe.rows.values():
            for column in recipe.columns.values():
                found = find_cell(recipe.paper, recipe.published, row.published, column.published)
                if found is not None and found.std is not None:
                    spread[row.id, column.id] = found.std
        return cls(record, recipe, spread)

    @property
    def name(self) -> str:
        """`paper/table`."""
        return f"{self.record['paper']}/{self.record['table']}"

    @property
    def title(self) -> str:
        return self.recipe.title if self.recipe else self.name

    @property
    def at_paper_scale(self) -> bool:
        return self.record["profile"] == "paper"

    @cached_property
    def rows(self) -> list[str]:
        return list(dict.fromkeys(cell["row"] for cell in self.record["cells"]))

    @cached_property
    def columns(self) -> list[str]:
        return list(dict.fromkeys(cell["column"] for cell in self.record["cells"]))

    @cached_property
    def cells(self) -> dict[tuple[str, str], dict[str, Any]]:
        return {(cell["row"], cell["column"]): cell for cell in self.record["cells"]}

    @cached_property
    def unit(self) -> str | None:
        """The unit of the whole table; None where the cells have several."""
        units = {cell["unit"] or "" for cell in self.record["cells"]}
        return units.pop() if len(units) == 1 else None

    @cached_property
    def seeds(self) -> list[int]:
        return sorted({run["seed"] for run in self.record["runs"]})

    @cached_property
    def most(self) -> int:
        """The largest number of runs behind a cell."""
        return max((cell["n"] for cell in self.record["cells"]), default=0)

    @property
    def has_published(self) -> bool:
        return any(cell["published"] is not None for cell in self.record["cells"])

    @property
    def unfinished(self) -> list[dict[str, Any]]:
        """Runs that failed, were interrupted or never ran."""
        return [run for run in self.record["runs"] if run["status"] not in ("finished", "stale")]

    @property
    def stale(self) -> list[dict[str, Any]]:
        """Runs that were computed with earlier code."""
        return [run for run in self.record["runs"] if run["status"] == "stale"]

    def row_label(self, row: str) -> str:
        return _label(self.recipe.rows if self.recipe else {}, row)

    def column_label(self, column: str) -> str:
        """Label of a column, with its unit where the table has no common one."""
        label = _label(self.recipe.columns if self.recipe else {}, column)
        if self.unit is not None:
            return label
        units = {cell["unit"] or "" for cell in self.record["cells"] if cell["column"] == column}
        unit = units.pop() if len(units) == 1 else ""
        return f"{label} ({unit})" if unit else label

    def caption(self) -> str:
        """What a cell shows, in one line."""
        if not self.most:
            return "no run has finished yet"
        unit = f" in {self.unit}" if self.unit else ""
        many = f"mean ± std over {self.most} seeds" if self.most > 1 else "one seed, no spread"
        return f"{many}{unit}"

    def published_text(self, cell: dict[str, Any]) -> str:
        """The published figure as it was printed, with its spread; `not available` where there is none."""
        if cell["published"] is None:
            return "not available"
        std = self.published_std.get((cell["row"], cell["column"]))
        return f"{cell['published']:.10g}" + (f" ± {std:.10g}" if std is not None else "")

    def claim(self, claim_id: str) -> Claim | None:
        """The recipe's claim of that id."""
        return next((c for c in self.recipe.claims if c.id == claim_id), None) if self.recipe else None

    def claim_figures(self, claim: dict[str, Any]) -> str:
        """`+1.05 [+0.41, +1.69] points`, or why there is none."""
        if claim["estimate"] is None:
            return NOTHING
        unit = getattr(self.claim(claim["id"]), "unit", "")
        return " ".join(filter(None, [estimate_text(claim["estimate"], claim["interval"]), unit]))


def ours_text(cell: dict[str, Any], most: int, pm: str = " ± ") -> str:
    """Our figure of a cell: `84.6 ± 1.1`, with `(n=3)` where other cells have more runs."""
    if cell["mean"] is None:
        return "not finite" if cell["n"] else NOTHING
    text = with_spread(cell["mean"], cell["std"], pm)
    return f"{text} (n={cell['n']})" if cell["n"] < most else text


def with_spread(value: float, std: float | None, pm: str = " ± ") -> str:
    """`value ± std`; the spread's first two digits decide how many are shown, rounding errors not."""
    if std is not None and std <= ROUNDING * abs(value):
        std = 0.0
    if std is None or std == 0:
        return plain(value) + (f"{pm}0" if std == 0 else "")
    places = decimals(std)
    return f"{value:.{places}f}{pm}{std:.{places}f}" if places <= 6 else f"{value:.3g}{pm}{std:.1e}"


def estimate_text(estimate: float, interval: list[float] | None) -> str:
    """`+1.05 [+0.41, +1.69]`; signs are written where one of the figures is negative."""
    if interval is None or interval[0] == interval[1]:
        return plain(estimate) + (f" [{plain(interval[0])}, {plain(interval[1])}]" if interval else "")
    places = decimals((interval[1] - interval[0]) / 2)
    sign = "+" if min(estimate, *interval) < 0 else ""
    style = f"{sign}.{places}f" if places <= 6 else f"{sign}.2e"
    return f"{estimate:{style}} [{interval[0]:{style}}, {interval[1]:{style}}]"


def plain(value: float) -> str:
    """A figure of unknown precision: four significant digits, no exponent where it can be helped."""
    if value == 0 or 1e-4 <= abs(value) < 1e6:
        places = max(0, 3 - math.floor(math.log10(abs(value)))) if value else 0
        text = f"{value:.{min(places, 6)}f}"
        return text.rstrip("0").rstrip(".") if "." in text else text
    return f"{value:.3g}"


def decimals(spread: float) -> int:
    """Decimal places that show two significant digits of `spread`."""
    return max(0, 1 - math.floor(math.log10(spread))) if spread > 0 else 4


def duration(seconds: float | None) -> str:
    """`42 s`, `3 min 20 s`, `2 h 5 min`."""
    if seconds is None:
        return NOTHING
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s" if seconds >= 10 else f"{seconds:.1f} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def tally(claims: list[dict[str, Any]]) -> str:
    """`3 hold, 1 fails, 2 inconclusive`; what there is none of is left out."""
    counts = {
        verdict: sum(c["verdict"] == verdict for c in claims)
        for verdict in ("holds", "fails", "inconclusive")
    }
    words = {
        "holds": "hold" if counts["holds"] != 1 else "holds",
        "fails": "fail" if counts["fails"] != 1 else "fails",
        "inconclusive": "inconclusive",
    }
    return ", ".join(f"{count} {words[verdict]}" for verdict, count in counts.items() if count) or "no claims"


def cell_tally(cells: list[dict[str, Any]]) -> str:
    """`12 match, 3 close, 1 off` of the verdicts on cells; empty where none was judged."""
    order = ("match", "close", "off", "not judged", "not available", "not run")
    counts = [(verdict, sum(cell["verdict"] == verdict for cell in cells)) for verdict in order]
    return ", ".join(f"{count} {verdict}" for verdict, count in counts if count)


def run_cell(run: dict[str, Any]) -> str:
    """`row/column/seed 0`."""
    return f"{run['row']}/{run['column']}/seed {run['seed']}"


def _label(entries: dict[str, Entry], name: str) -> str:
    return entries[name].label or name if name in entries else name
