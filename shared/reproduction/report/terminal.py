"""The report on a terminal, with rich: readable at 80 columns however wide the table is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from shared.reproduction.report.view import View, duration, ours_text, run_cell, tally

if TYPE_CHECKING:
    from shared.reproduction.results import Results

MARKS = {"holds": ("✔", "bold green"), "fails": ("✘", "bold red"), "inconclusive": ("?", "bold yellow")}
CELL_STYLES = {"match": "green", "close": "yellow", "off": "red"}
GAP = 2  # between columns
LISTED = 12  # runs named before "and N more"


def print_report(console: Console, record: dict[str, Any], results: Results) -> None:
    """Print table, claims, failed and stale runs of `record`."""
    view = View.of(record, results.recipe)
    console.print()
    console.print(Rule(Text(f"{view.title}  ({view.name}, {record['profile']})", style="bold"), style="dim"))
    for table in _tables(view, console.width):
        console.print()
        console.print(table)
    console.print()
    console.print(Text(_legend(view), style="dim"))
    if record["claims"]:
        console.print(Text(f"\nClaims: {tally(record['claims'])}", style="bold"))
        for claim in record["claims"]:
            console.print(_claim(view, claim))
    _print_runs(console, view, results)


def _tables(view: View, width: int) -> list[Table]:
    """The table, cut into as many blocks of columns as the width asks for; row labels are repeated."""
    bodies = {column: [_cell(view, row, column) for row in view.rows] for column in view.columns}
    labels = {column: view.column_label(column) for column in view.columns}
    rows = [view.row_label(row) for row in view.rows]
    first = min(max(map(len, rows)), max(16, width // 3))
    widths = {
        column: max(*(len(word) for word in labels[column].split()), *map(_width, bodies[column])) + GAP
        for column in view.columns
    }
    blocks: list[list[str]] = [[]]
    for column in view.columns:
        if blocks[-1] and first + sum(widths[name] for name in blocks[-1]) + widths[column] > width:
            blocks.append([])
        blocks[-1].append(column)
    stacked = any("\n" in cell.plain for column in bodies.values() for cell in column)
    made = []
    for block in blocks:
        table = Table(
            box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), leading=stacked
        )
        table.add_column("", style="bold", max_width=first, overflow="fold")
        for column in block:
            table.add_column(labels[column], justify="right", overflow="fold", min_width=widths[column] - GAP)
        for place, label in enumerate(rows):
            table.add_row(label, *(bodies[column][place] for column in block))
        made.append(table)
    return made


def _cell(view: View, row: str, column: str) -> Text:
    """Our figure, below it the published one, the verdict, and how many runs if fewer than elsewhere."""
    cell = view.cells.get((row, column))
    if cell is None:
        return Text("")
    text = Text(ours_text(cell, cell["n"], pm="±"))
    if view.has_published:
        text.append(f"\n{view.published_text(cell).replace(' ± ', '±')}", style="dim")
    if cell["verdict"] not in (None, "not available"):
        text.append(f"\n{cell['verdict']}", style=CELL_STYLES.get(cell["verdict"], "dim"))
    if 0 < cell["n"] < view.most:
        text.append(f"\nn={cell['n']}", style="yellow")
    return text


def _width(text: Text) -> int:
    return max(len(line) for line in text.plain.splitlines() or [""])


def _legend(view: View) -> str:
    text = view.caption()
    if view.has_published and view.at_paper_scale:
        text += "; below it the published figure and the verdict"
    elif view.has_published:
        text += "; below it the published figure, at another scale: for orientation, not for comparison"
    return text[0].upper() + text[1:] + "."


def _claim(view: View, claim: dict[str, Any]) -> Padding:
    mark, style = MARKS[claim["verdict"]]
    text = Text()
    text.append(f"{mark} {claim['verdict']}", style=style)
    text.append(f"  {claim['says']}\n")
    text.append(view.claim_figures(claim), style="bold")
    text.append(f"  {claim.get('note', '')}", style="dim")
    return Padding(text, (0, 0, 0, 2), expand=False)


def _print_runs(console: Console, view: View, results: Results) -> None:
    runs, seconds = view.record["runs"], view.record["environment"]["run_seconds"]
    reused = sum(run["reused"] for run in runs)
    console.print(
        Text(f"\n{len(runs)} runs, {reused} of them reused; {duration(seconds)} of computing.", style="dim")
    )
    folders = {stored.folder.name: stored for stored in results.stored.values()}
    for run in view.unfinished[:LISTED]:
        text = Text("  ")
        text.append(run["status"], style="bold red")
        text.append(f"  {run_cell(run)}")
        stored = folders.get(run["id"])
        if stored is not None and stored.log.exists():
            text.append(f"  log: {stored.log}", style="dim")
        console.print(text, soft_wrap=True)
        if stored is not None and stored.status.get("error"):
            console.print(Text(f"    {str(stored.status['error']).splitlines()[-1]}", style="dim"))
    if len(view.unfinished) > LISTED:
        console.print(f"  … and {len(view.unfinished) - LISTED} more")
    if view.stale:
        console.print(
            Text(
                f"  {len(view.stale)} runs are stale: computed with earlier code. "
                "--rerun-stale computes them again.",
                style="yellow",
            )
        )
