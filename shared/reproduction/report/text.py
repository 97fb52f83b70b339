"""The report as Markdown, CSV and LaTeX."""

from __future__ import annotations

import csv
import io
import re
from typing import Any

from shared.reproduction.report.view import NOTHING, View, ours_text, run_cell

CELL_FIELDS = ("row", "column", "mean", "std", "n", "unit", "published", "provenance", "verdict")


def to_markdown(view: View) -> str:
    """Table, claims and what is missing, under one heading."""
    record = view.record
    parts = [f"# {view.title}", f"`{view.name}`, profile `{record['profile']}`", markdown_table(view)]
    if record["claims"]:
        parts.append(markdown_claims(view))
    if view.unfinished:
        lines = [f"- {run['status']}: {run_cell(run)}" for run in view.unfinished]
        parts.append("\n".join(["Runs without a result:", "", *lines]))
    if view.stale:
        parts.append(f"{len(view.stale)} runs are stale (computed with earlier code).")
    parts.append(f"Again: `{record['environment']['command']}`")
    return "\n\n".join(parts) + "\n"


def markdown_table(view: View) -> str:
    """Ours, with the published figure in italics where there is one, and a caption."""
    header = ["", *(view.column_label(column) for column in view.columns)]
    lines = [_markdown_row(header), _markdown_row(["---", *["---:"] * len(view.columns)])]
    for row in view.rows:
        cells = [_markdown_cell(view, view.cells.get((row, column))) for column in view.columns]
        lines.append(_markdown_row([view.row_label(row), *cells]))
    caption = view.caption()
    if view.has_published:
        caption += "; *published figure* below" + ("" if view.at_paper_scale else ", at another scale")
    return "\n".join([*lines, "", caption[0].upper() + caption[1:] + "."])


def markdown_claims(view: View) -> str:
    """The claims as a table: what is said, what was found, the verdict."""
    lines = [_markdown_row(["claim", "found", "verdict"]), _markdown_row(["---", "---", "---"])]
    for claim in view.record["claims"]:
        found = view.claim_figures(claim)
        note = claim.get("note", "")
        lines.append(_markdown_row([claim["says"], f"{found} ({note})" if note else found, claim["verdict"]]))
    return "\n".join(lines)


def to_csv(view: View) -> str:
    """One line a cell, full precision."""
    text = io.StringIO()
    writer = csv.DictWriter(text, CELL_FIELDS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(view.record["cells"])
    return text.getvalue()


def to_latex(view: View) -> str:
    r"""A `table` environment for `\usepackage{booktabs}`; published figures in small print below ours."""
    columns = "".join("r" for _ in view.columns)
    lines = [
        "% needs \\usepackage{booktabs}",
        "\\begin{table}",
        "  \\centering",
        f"  \\caption{{{_tex(view.title)}. {_tex(_sentence(view))}}}",
        f"  \\label{{tab:{re.sub(r'[^a-z0-9]+', '-', view.name.lower())}}}",
        f"  \\begin{{tabular}}{{l{columns}}}",
        "    \\toprule",
        "    " + _tex_row(["", *(_tex(view.column_label(column)) for column in view.columns)]),
        "    \\midrule",
    ]
    for row in view.rows:
        cells = [view.cells.get((row, column)) for column in view.columns]
        ours = [_tex(ours_text(cell, view.most, pm="±")) if cell else "" for cell in cells]
        lines.append(f"    {_tex_row([_tex(view.row_label(row)), *ours])}")
        if view.has_published:
            theirs = [f"\\small {_published_tex(view, cell)}" if cell else "" for cell in cells]
            lines.append("    " + _tex_row([r"\quad\small published", *theirs]))
    lines += ["    \\bottomrule", "  \\end{tabular}", "\\end{table}"]
    return "\n".join(lines) + "\n"


def _sentence(view: View) -> str:
    caption = view.caption()
    return f"{caption[0].upper()}{caption[1:]} (profile {view.record['profile']})."


def _published_tex(view: View, cell: dict[str, Any]) -> str:
    text = _tex(view.published_text(cell))
    return text if cell["verdict"] in (None, "not available") else f"{text} ({cell['verdict']})"


def _markdown_cell(view: View, cell: dict[str, Any] | None) -> str:
    if cell is None:
        return ""
    text = ours_text(cell, view.most)
    if view.has_published:
        text += f"<br>*{view.published_text(cell)}*"
    if cell["verdict"] not in (None, "not available"):
        text += f"<br>{cell['verdict']}"
    return text


def _markdown_row(cells: list[str]) -> str:
    escaped = [cell.replace("|", "\\|").replace("\n", " ") for cell in cells]
    return f"| {' | '.join(escaped)} |"


TEX = {
    **{char: f"\\{char}" for char in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    NOTHING: "--",
    "<": "$<$",
    ">": "$>$",
    "≥": r"$\ge$",
    "≤": r"$\le$",
    "−": "$-$",
    "×": r"$\times$",
    "…": r"\dots{}",
}


def _tex(text: str) -> str:
    return "".join(TEX.get(char, char) for char in text)


def _tex_row(cells: list[str]) -> str:
    return " & ".join(cells) + r" \\"
