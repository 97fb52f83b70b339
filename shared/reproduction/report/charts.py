"""Pictures of a page as inline SVG whose colours follow the page, light or dark."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from shared.errors import UserError
from shared.reproduction.report.page import text

if TYPE_CHECKING:
    from shared.reproduction.recipe import Recipe
    from shared.reproduction.report.view import View

# Stand-ins that matplotlib draws with, replaced by the page's colours in the SVG text.
INK, SOFT, LINE, CARD = "#010203", "#040506", "#070809", "#fafbfc"
SERIES = [f"#0a0b{16 + place:02x}" for place in range(8)]
DASHES = ["-", "--", "-.", ":"]
MARKERS = ["o", "s", "^", "D", "v", "P", "X", "*"]
GLYPHS = "●■▲◆▼✚✖★"  # the same in the legend
PAGE_COLOURS = {
    INK: "var(--ink)",
    SOFT: "var(--soft)",
    LINE: "var(--line)",
    CARD: "var(--card)",
    **{colour: f"var(--s{place})" for place, colour in enumerate(SERIES)},
    "#000000": "var(--ink)",  # what a figure function may ask for by name
    "#ffffff": "var(--card)",
}
STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "paperworks",
    "font.size": 11,
    "font.family": "sans-serif",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": SOFT,
    "axes.labelcolor": INK,
    "axes.titlesize": 12,
    "axes.titleweight": "bold",
    "axes.titlecolor": INK,
    "text.color": INK,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "axes.grid": True,
    "grid.color": LINE,
    "grid.linewidth": 0.8,
    "axes.axisbelow": True,
    "figure.facecolor": CARD,
    "axes.facecolor": CARD,
    "savefig.facecolor": CARD,
    "legend.frameon": False,
    "lines.linewidth": 2,
    "figure.figsize": (8, 4.2),
    "figure.constrained_layout.use": True,
    "axes.prop_cycle": matplotlib.cycler(color=SERIES),
}


@contextmanager
def page_style() -> Iterator[None]:
    """Figures made inside take the page's colours and fonts; all are closed at the end."""
    before = set(plt.get_fignums())
    with plt.rc_context(STYLE):
        try:
            yield
        finally:
            for number in set(plt.get_fignums()) - before:
                plt.close(number)


def to_svg(figure: Figure, label: str = "") -> str:
    """The figure as an `<svg>` element; `label` is read out by screen readers."""
    buffer = io.StringIO()
    figure.savefig(
        buffer, format="svg", metadata={"Date": None, "Creator": None, "Type": None, "Format": None}
    )
    svg = buffer.getvalue()
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    for stand_in, colour in PAGE_COLOURS.items():
        svg = re.sub(re.escape(stand_in) + r"(?![0-9a-fA-F])", colour, svg)
    svg = re.sub(r"font: ([^;\"]*?)'[^;\"]*", r"font: \1system-ui, 'Liberation Sans', sans-serif", svg)
    name = f' role="img" aria-label="{text(label)}"' if label else ""
    return svg.replace("<svg ", f"<svg{name} ", 1)


def embed(made: Any) -> list[str]:
    """HTML of what a figure function returned: a Figure, the path of a picture, or a list of these."""
    if isinstance(made, Sequence) and not isinstance(made, str):
        return [block for item in made for block in embed(item)]
    if isinstance(made, Figure):
        return [f'<figure><div class="plot">{to_svg(made)}</div></figure>']
    path = Path(made)
    kinds = {".png": "png", ".jpg": "jpeg", ".jpeg": "jpeg", ".webp": "webp", ".gif": "gif"}
    if path.suffix.lower() not in kinds:
        raise UserError(f"expected a matplotlib Figure or a picture ({', '.join(kinds)}), found {made!r}.")
    data = base64.b64encode(path.read_bytes()).decode("ascii")
    caption = text(path.stem.replace("_", " "))
    source = f"data:image/{kinds[path.suffix.lower()]};base64,{data}"
    return [f'<figure><img alt="{caption}" src="{source}"><figcaption>{caption}</figcaption></figure>']


def table_charts(view: View) -> list[str]:
    """The table as pictures, one for each unit: lines over numeric columns, else points with whiskers."""
    if not view.most or view.recipe is None:
        return []
    blocks = []
    for unit, columns in _by_unit(view).items():
        values = _x_values(view.recipe, columns)
        numeric = values is not None and len(columns) > 1
        with page_style():
            figure = _lines(view, columns, values, unit) if numeric else _points(view, columns, unit)
            svg = to_svg(figure, f"{view.title}: mean and standard deviation")
        spread = "bars: one standard deviation over seeds"
        published = _has_published(view, columns)
        caption = f"{view.caption()}; {spread}" if view.most > 1 else view.caption()
        if published and not view.at_paper_scale:
            caption += "; published figures are not drawn, they were measured at another scale"
        blocks.append(
            f'<figure>{_legend(view, published and view.at_paper_scale)}<div class="plot">{svg}</div>'
            f"<figcaption>{text(caption[0].upper() + caption[1:])}.</figcaption></figure>"
        )
    return blocks


def interval_strip(
    estimate: float, low: float, high: float, operator: str, threshold: float, verdict: str
) -> str:
    """A small picture of a claim: interval, estimate, threshold, the side on which it holds."""
    ends = (estimate, low, high, threshold)
    span = max(ends) - min(ends) or max(abs(threshold), 1.0)
    left, right = min(ends) - 0.12 * span, max(ends) + 0.12 * span
    width, height, y = 320, 46, 17

    def x(value: float) -> float:
        return round((value - left) / (right - left) * width, 1)

    good = (x(threshold), width) if operator.startswith(">") else (0, x(threshold))
    colour = {"holds": "var(--good)", "fails": "var(--bad)"}.get(verdict, "var(--unsure)")
    anchor = "start" if x(threshold) < 60 else "end" if x(threshold) > width - 60 else "middle"
    return (
        f'<svg viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="interval {low:.4g} to {high:.4g}, threshold {threshold:g}">'
        f'<rect x="{good[0]}" y="2" width="{good[1] - good[0]:.1f}" height="30" rx="4" '
        'fill="var(--good-bg)"/>'
        f'<line x1="{x(threshold)}" x2="{x(threshold)}" y1="0" y2="33" stroke="var(--soft)" '
        'stroke-width="1.5" stroke-dasharray="3 3"/>'
        f'<line x1="{x(low)}" x2="{x(high)}" y1="{y}" y2="{y}" stroke="{colour}" stroke-width="4" '
        'stroke-linecap="round"/>'
        f'<circle cx="{x(estimate)}" cy="{y}" r="6" fill="{colour}" stroke="var(--card)" stroke-width="2"/>'
        f'<text x="{x(threshold)}" y="44" text-anchor="{anchor}" font-size="12" fill="var(--soft)">'
        f"holds {text(operator)} {threshold:g}</text></svg>"
    )


def _by_unit(view: View) -> dict[str, list[str]]:
    """Columns that can share an axis: those of one unit and one metric of their own."""
    groups: dict[tuple[str, str | None], list[str]] = {}
    for column in view.columns:
        unit = next(
            (cell["unit"] for (_, name), cell in view.cells.items() if name == column and cell["unit"]), ""
        )
        entry = view.recipe.columns.get(column)
        groups.setdefault((unit, entry.metric if entry and not unit else None), []).append(column)
    made: dict[str, list[str]] = {}
    for (unit, metric), columns in groups.items():
        made.setdefault(unit or metric or view.recipe.metric, []).extend(columns)
    return made


def _x_values(recipe: Recipe, columns: list[str]) -> list[float] | None:
    if recipe.plots.get("x") == "categories":
        return None
    values = [recipe.columns[column].value if column in recipe.columns else None for column in columns]
    return values if all(value is not None for value in values) else None


def _lines(view: View, columns: list[str], values: list[float], unit: str) -> Figure:
    figure, axes = plt.subplots()
    order = sorted(range(len(columns)), key=values.__getitem__)
    spread = max(values) - min(values)
    for place, row in enumerate(view.rows):
        cells = [
            (values[at], view.cells[row, columns[at]]) for at in order if (row, columns[at]) in view.cells
        ]
        ours = [(x, cell) for x, cell in cells if cell["mean"] is not None]
        shift = (place - (len(view.rows) - 1) / 2) * 0.012  # whiskers beside each other, not on top
        log = view.recipe.plots.get("x", "linear") == "log"
        xs = [x * 10 ** (shift * 2) if log else x + shift * spread for x, _ in ours]
        _series(axes, xs, [cell for _, cell in ours], place, line=DASHES[place // len(SERIES) % len(DASHES)])
        theirs = [(x, cell["published"]) for x, cell in cells if cell["published"] is not None]
        if theirs and view.at_paper_scale:
            axes.plot(
                *zip(*theirs, strict=True), color=SERIES[place % len(SERIES)], linestyle=":", linewidth=1.5
            )
    if view.recipe.plots.get("x") == "log":
        axes.set_xscale("log")
        axes.minorticks_off()
    if len(values) <= 8:
        axes.set_xticks(sorted(values), [view.column_label(columns[at]) for at in order])
    else:
        step = -(-len(order) // 7)
        axes.set_xticks(
            [values[at] for at in order[::step]], [view.column_label(columns[at]) for at in order[::step]]
        )
    axes.set_ylabel(unit)
    axes.set_xlabel(view.recipe.plots.get("xlabel", ""))
    return figure


def _points(view: View, columns: list[str], unit: str) -> Figure:
    """Categories side by side; the axis need not start at zero, so points and not bars."""
    figure, axes = plt.subplots()
    room = 0.7 / max(1, len(view.rows))
    for place, row in enumerate(view.rows):
        cells = [(at, view.cells.get((row, column))) for at, column in enumerate(columns)]
        shift = (place - (len(view.rows) - 1) / 2) * room
        ours = [(at + shift, cell) for at, cell in cells if cell and cell["mean"] is not None]
        _series(axes, [x for x, _ in ours], [cell for _, cell in ours], place, line="none")
        theirs = [
            (at + shift, cell["published"]) for at, cell in cells if cell and cell["published"] is not None
        ]
        if theirs and view.at_paper_scale:
            axes.scatter(
                *zip(*theirs, strict=True), marker="_", s=220, linewidths=2, color=SERIES[place % len(SERIES)]
            )
    labels = [view.column_label(column) for column in columns]
    crowded = max(map(len, labels)) * len(labels) > 80
    axes.set_xticks(
        range(len(columns)), labels, rotation=30 if crowded else 0, ha="right" if crowded else "center"
    )
    axes.set_xlim(-0.6, len(columns) - 0.4)
    axes.grid(False, axis="x")
    axes.set_ylabel(unit)
    return figure


def _series(axes: Any, xs: list[float], cells: list[dict[str, Any]], place: int, line: str) -> None:
    axes.errorbar(
        xs,
        [cell["mean"] for cell in cells],
        yerr=[cell["std"] or 0.0 for cell in cells],
        color=SERIES[place % len(SERIES)],
        linestyle=line,
        marker=MARKERS[place % len(MARKERS)],
        markersize=6,
        elinewidth=1.3,
        capsize=2.5,
    )


def _has_published(view: View, columns: list[str]) -> bool:
    return any(cell["published"] is not None for (_, name), cell in view.cells.items() if name in columns)


def _legend(view: View, published: bool) -> str:
    items = [
        f'<li><b style="color: var(--s{place % len(SERIES)})">{GLYPHS[place % len(GLYPHS)]}</b> '
        f"{text(view.row_label(row))}</li>"
        for place, row in enumerate(view.rows)
    ]
    if published:
        items.append('<li class="soft"><b>··· –</b> published</li>')
    return f'<ul class="legend">{"".join(items)}</ul>'
