"""The matrix of papers and tables: on a terminal, and as one self-contained page with every cell."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from shared.reproduction.published import read_tables
from shared.reproduction.recipe import load_recipe
from shared.reproduction.report.html import cells_table, claim_card, provenance_lines
from shared.reproduction.report.page import listing, page, text, verdict
from shared.reproduction.report.view import NOTHING
from shared.reproduction.status import Measured, TableStatus, command, view_of


def print_overview(console: Console, lines: Sequence[TableStatus]) -> None:
    """Print the matrix, a line a table."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for name in ("paper", "table", "recipe", "published", "laptop", "paper profile"):
        table.add_column(name, overflow="fold", justify="right" if name == "published" else "left")
    for paper, group in groupby(lines, key=lambda line: line.paper):
        for place, line in enumerate(group):
            table.add_row(
                Text(paper if place == 0 else "", style="bold"),
                Text(line.table + (" (default)" if line.default else "")),
                Text(", ".join(line.profiles) if line.recipe else "no", style="" if line.recipe else "dim"),
                Text(_figures(line), style="" if line.figures else "dim"),
                _measured(line.laptop),
                _measured(line.paper_profile),
            )
    console.print(table)
    if not lines:
        console.print("There is no paper in projects/ yet.")
    if any(line.third_party for line in lines):
        console.print(Text("*: figures of a third-party re-evaluation", style="dim"))


def overview_html(lines: Sequence[TableStatus]) -> str:
    """Every cell with its figure, the published one, the verdict and the command that re-runs it."""
    header = ["paper", "table", "recipe", "published figures", "laptop", "paper profile"]
    blocks = ["<h1>What is reproduced here</h1>"]
    blocks.append(
        '<p class="lead">Each table with what we measured at the laptop profile (embedded real data, minutes '
        "on two cores) and at the paper's own scale, beside the published figures.</p>"
    )
    rows = [
        [
            text(line.paper),
            f'<a href="#{_anchor(line)}">{text(line.table)}</a>' if line.recipe else text(line.table),
            text(", ".join(line.profiles) or "no"),
            text(_figures(line)),
            _measured_html(line.laptop),
            _measured_html(line.paper_profile),
        ]
        for line in lines
    ]
    blocks.append(listing(header, rows))
    if any(line.third_party for line in lines):
        blocks.append('<p class="soft">*: figures of a third-party re-evaluation.</p>')
    for paper, group in groupby((line for line in lines if line.recipe), key=lambda line: line.paper):
        about = read_tables(paper)["paper"]
        venue = f" · {about['venue']}" if about.get("venue") else ""
        blocks.append(f"<h2>{text(paper)}</h2>")
        if about.get("title"):
            blocks.append(f'<p class="over">{text(about["title"])}{text(venue)}</p>')
        for line in group:
            blocks += _table_blocks(line)
    return page("What is reproduced here", blocks)


def _table_blocks(line: TableStatus) -> list[str]:
    recipe = load_recipe(line.paper, line.table)
    blocks = [f'<h3 id="{_anchor(line)}" class="table-title">{text(recipe.title)} ({text(line.table)})</h3>']
    for profile in line.profiles:
        view = view_of(recipe, profile)
        measured = {"laptop": line.laptop, "paper": line.paper_profile}.get(profile)
        state = f"measured {measured.measured}" if measured else "not measured yet"
        blocks.append(f'<p>Profile {text(profile)}: <span class="soft">{state}</span></p>')
        if measured and measured.stale:
            blocks.append(f'<p class="notice">Stale: {text(measured.stale)}.</p>')
        if view.record["claims"]:
            cards = [claim_card(view, claim) for claim in view.record["claims"]]
            blocks += ['<div class="cards">', *cards, "</div><br>"]
        again = measured.command if measured else command(line.paper, line.table, profile)
        blocks += [cells_table(view), *provenance_lines(view), f"<pre>{text(again)}</pre>"]
    return blocks


def _figures(line: TableStatus) -> str:
    return f"{line.figures}{'*' if line.third_party else ''}" if line.figures else NOTHING


def _measured(measured: Measured | None) -> Text:
    if measured is None:
        return Text(NOTHING, style="dim")
    words = Text(measured.summary, style="red" if "fails" in measured.claims.values() else "")
    if measured.stale:
        words.append(f"\nstale: {measured.stale}", style="yellow")
    return words


def _measured_html(measured: Measured | None) -> str:
    if measured is None:
        return NOTHING
    return text(measured.summary) + (f" {verdict('stale')}" if measured.stale else "")


def _anchor(line: TableStatus) -> str:
    return text(f"{line.paper}-{line.table}")
