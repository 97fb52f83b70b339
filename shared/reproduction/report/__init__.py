"""What people look at: the terminal table, Markdown, CSV, LaTeX, JSON, one HTML page, a W&B table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from shared.reproduction.record import write_record
from shared.reproduction.report.terminal import print_report
from shared.reproduction.report.text import to_csv, to_latex, to_markdown
from shared.reproduction.report.view import View
from shared.reproduction.report.wandb_table import log_to_wandb
from shared.reproduction.store import write_text

if TYPE_CHECKING:
    from shared.reproduction.results import Results

__all__ = ["log_to_wandb", "print_report", "write_all"]


def write_all(record: dict[str, Any], results: Results, folder: Path) -> dict[str, Path]:
    """Write every form of the report into `folder`, each file in one step; returns kind -> file.

    The kinds are json, markdown, csv, latex and html. A figure function that raises is named on the page and
    stops nothing.
    """
    from shared.reproduction.report.html import to_html  # imports matplotlib: half a second

    folder.mkdir(parents=True, exist_ok=True)
    view = View.of(record, results.recipe)
    texts = {
        "markdown": (f"{results.table}.md", to_markdown(view)),
        "csv": (f"{results.table}.csv", to_csv(view)),
        "latex": (f"{results.table}.tex", to_latex(view)),
        "html": (f"{results.table}.html", to_html(view, results)),
    }
    files = {"json": folder / f"{results.table}.json"}
    write_record(record, files["json"])
    for kind, (name, text) in texts.items():
        files[kind] = folder / name
        write_text(files[kind], text)
    return files
