"""One self-contained HTML page: style inline, nothing fetched, light and dark, readable on a phone."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any


def page(title: str, body: Iterable[str]) -> str:
    """A whole document around the blocks of `body`."""
    style = (Path(__file__).parent / "style.css").read_text(encoding="utf-8")
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<link rel="icon" href="data:,">',  # else browsers ask for /favicon.ico
            f"<title>{text(title)}</title>",
            f"<style>\n{style}</style>",
            "</head>",
            "<body>",
            "<main>",
            *body,
            "</main>",
            "</body>",
            "</html>",
            "",
        ]
    )


def text(content: Any) -> str:
    """Escaped for element content and attributes."""
    return html.escape(str(content))


def verdict(word: str) -> str:
    """The coloured word of a verdict or a run's status."""
    return f'<span class="verdict {text(word.split()[0])}">{text(word)}</span>'


def listing(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A plain table of escaped HTML cells; the last column may wrap."""
    lines = ['<div class="scroll"><table class="list">']
    if header:
        lines.append(f"<thead><tr>{''.join(f'<th>{text(name)}</th>' for name in header)}</tr></thead>")
    lines.append("<tbody>")
    for row in rows:
        *cells, last = row
        lines.append(f'<tr>{"".join(f"<td>{cell}</td>" for cell in cells)}<td class="wide">{last}</td></tr>')
    return "\n".join([*lines, "</tbody></table></div>"])


def details(summary: str, content: str, *, open_: bool = False) -> str:
    """A block that opens on a click."""
    return f"<details{' open' if open_ else ''}><summary>{text(summary)}</summary>\n{content}\n</details>"
