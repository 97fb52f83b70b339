"""The report of one table as a self-contained HTML page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shared.reproduction.published import read_tables
from shared.reproduction.report import charts
from shared.reproduction.report.page import details, listing, page, text, verdict
from shared.reproduction.report.view import (
    View,
    cell_tally,
    duration,
    ours_text,
    plain,
    run_cell,
    tally,
)
from shared.reproduction.verdicts import load_function
from shared.training.config import redact

if TYPE_CHECKING:
    from shared.reproduction.results import Results

SHOWN_ENVIRONMENT = {
    "command": "command",
    "started": "started",
    "finished": "finished",
    "python": "Python",
    "platform": "platform",
    "cpu": "processor",
    "cores": "cores",
    "threads": "threads a run",
    "device": "device",
    "commit": "commit",
    "source": "source hash",
}


def to_html(view: View, results: Results) -> str:
    """What is claimed, the verdicts, the table, pictures, and all that is needed to check or repeat it."""
    blocks = [*_head(view), *_notices(view)]
    if view.record["claims"]:
        blocks += [
            "<h2>Claims</h2>",
            '<div class="cards">',
            *(claim_card(view, c) for c in view.record["claims"]),
            "</div>",
        ]
    blocks += ["<h2>Ours beside the published figures</h2>" if view.has_published else "<h2>The table</h2>"]
    blocks += [cells_table(view), *provenance_lines(view)]
    pictures = [*charts.table_charts(view), *_figures(results)]
    if pictures:
        blocks += ["<h2>Pictures</h2>", *pictures]
    blocks += ["<h2>Again</h2>", "<p>Finished runs are kept: this command repeats only what is missing.</p>"]
    blocks += [f"<pre>{text(view.record['environment']['command'])}</pre>"]
    blocks += [_setting(view, results), _environment(view), _runs(view)]
    return page(f"{view.title} · {view.name}", blocks)


def _head(view: View) -> list[str]:
    record = view.record
    paper = read_tables(record["paper"])["paper"]
    over = paper.get("title") or record["paper"]
    venue = f" · {paper['venue']}" if paper.get("venue") else ""
    blocks = [f'<p class="over">{text(over)}{text(venue)}</p>', f"<h1>{text(view.title)}</h1>"]
    if view.recipe and view.recipe.about:
        blocks.append(f'<p class="lead">{text(view.recipe.about.strip())}</p>')
    seeds = f"{len(view.seeds)} seed{'s' if len(view.seeds) != 1 else ''}"
    tags = [
        f"<li>profile {text(record['profile'])}</li>",
        f"<li>{seeds}</li>",
        f"<li>{len(record['runs'])} runs</li>",
    ]
    tags.append(f"<li>{duration(record['environment']['run_seconds'])} of computing</li>")
    tags.append(f"<li>{text(record['environment']['finished'][:10])}</li>")
    if record["claims"]:
        tags.insert(0, f"<li>claims: {text(tally(record['claims']))}</li>")
    if view.at_paper_scale:
        tags.insert(1, f"<li>cells: {text(cell_tally(record['cells']))}</li>")
    return [*blocks, f'<ul class="tags">{"".join(tags)}</ul>']


def _notices(view: View) -> list[str]:
    blocks = []
    if view.unfinished:
        blocks.append(
            f'<p class="notice bad">{len(view.unfinished)} of {len(view.record["runs"])} runs have no result '
            "(listed at the end of this page); the figures stand on the others.</p>"
        )
    if view.stale:
        blocks.append(
            f'<p class="notice">{len(view.stale)} runs were computed with an earlier version of the code; '
            "<code>--rerun-stale</code> computes them again.</p>"
        )
    return blocks


def claim_card(view: View, claim: dict[str, Any]) -> str:
    """One claim: verdict, statement, figures, a picture of the interval, how it was judged."""
    recipe_claim = view.claim(claim["id"])
    strip = ""
    if claim["interval"] and recipe_claim:
        strip = charts.interval_strip(
            claim["estimate"], *claim["interval"], *recipe_claim.condition, claim["verdict"]
        )
    source = f'<p class="soft">Source: {text(recipe_claim.source)}</p>' if recipe_claim else ""
    return (
        f'<article class="card"><p>{verdict(claim["verdict"])}</p><p class="says">{text(claim["says"])}</p>'
        f'<p class="found">{text(view.claim_figures(claim))}</p>{strip}'
        f'<p class="soft">{text(claim.get("note", ""))}</p>{source}</article>'
    )


def cells_table(view: View) -> str:
    """The table, the published figure and the verdict below ours."""
    header = "".join(f"<th>{text(view.column_label(column))}</th>" for column in view.columns)
    lines = [f'<div class="scroll"><table><thead><tr><th></th>{header}</tr></thead><tbody>']
    for row in view.rows:
        cells = "".join(_cell(view, row, column) for column in view.columns)
        lines.append(f"<tr><th>{text(view.row_label(row))}</th>{cells}</tr>")
    caption = view.caption()
    if view.has_published:
        caption += "; the published figure below it"
        caption += "" if view.at_paper_scale else ", measured at another scale and shown for orientation only"
    return "\n".join(
        [*lines, f"</tbody><caption>{text(caption[0].upper() + caption[1:])}.</caption></table></div>"]
    )


def _cell(view: View, row: str, column: str) -> str:
    cell = view.cells.get((row, column))
    if cell is None:
        return "<td></td>"
    content = text(ours_text(cell, view.most))
    if view.has_published:
        content += f'<span class="theirs">{text(view.published_text(cell))}</span>'
    if cell["verdict"] not in (None, "not available"):
        content += f"<div>{verdict(cell['verdict'])}</div>"
    return f"<td>{content}</td>"


def provenance_lines(view: View) -> list[str]:
    """Where the published figures come from."""
    sources = dict.fromkeys(cell["provenance"] for cell in view.record["cells"] if cell["provenance"])
    return [f'<p class="soft">Published figures: {text(source)}.</p>' for source in sources]


def _figures(results: Results) -> list[str]:
    """Pictures of the recipe's figure functions; one that raises is named and stops nothing."""
    blocks: list[str] = []
    for name in results.recipe.figures:
        try:
            with charts.page_style():
                blocks += charts.embed(load_function(name)(results))
        except Exception as error:  # a project's code may raise anything
            blocks.append(
                f'<p class="notice">No picture from <code>{text(name)}</code>: '
                f"{text(type(error).__name__)}: {text(error)}</p>"
            )
    return blocks


def _setting(view: View, results: Results) -> str:
    """The configuration all runs share, and what differs from row to row and column to column."""
    configs = {place: flatten(redact(results.config(*place))) for place in results.places}
    keys = sorted(set().union(*configs.values()) - {"seed"})
    same = {key for key in keys if len({repr(config.get(key)) for config in configs.values()}) == 1}
    differing = [key for key in keys if key not in same]
    parts = []
    if differing:
        rows = [
            [
                text(view.row_label(row)),
                text(view.column_label(column)),
                *(f"<code>{text(configs[row, column].get(key, ''))}</code>" for key in differing),
            ]
            for row, column in results.places
        ]
        table = listing(["row", "column", *differing], rows)
        parts.append(details("What differs from cell to cell", table))
    first = next(iter(configs.values()))
    shared = [
        [f"<code>{text(key)}</code>", f"<code>{text(first[key])}</code>"] for key in keys if key in same
    ]
    parts.append(details("What all runs share", listing([], shared)))
    seeds = ", ".join(map(str, view.seeds))
    return "\n".join(
        [
            "<h2>Setting</h2>",
            f"<p>Profile <code>{text(view.record['profile'])}</code>, seeds {seeds}.</p>",
            *parts,
        ]
    )


def _environment(view: View) -> str:
    environment = view.record["environment"]
    rows = [
        [text(label), text(environment[key])]
        for key, label in SHOWN_ENVIRONMENT.items()
        if environment.get(key)
    ]
    if environment.get("uncommitted"):
        rows.append(["code", "changed since that commit"])
    versions = ", ".join(f"{name} {version}" for name, version in environment["versions"].items())
    rows.append(["versions", text(versions)])
    rows.append(["time", f"{duration(environment['seconds'])} for this command"])
    return details("Environment", listing([], rows))


def _runs(view: View) -> str:
    rows = [
        [
            verdict(run["status"]),
            text(run_cell(run)),
            duration(run["seconds"]),
            "reused" if run["reused"] else "",
            f"<code>{text(run['id'])}</code>",
        ]
        for run in view.record["runs"]
    ]
    table = listing(["status", "row/column/seed", "time", "", "run"], rows)
    return details(f"All {len(rows)} runs", table, open_=bool(view.unfinished) and len(rows) <= 40)


def flatten(config: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """`{"optimizer": {"lr": 1e-3}}` -> `{"optimizer.lr": "0.001"}`; floats as short as they can be."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, dict):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = plain(value) if isinstance(value, float) else value
    return flat
