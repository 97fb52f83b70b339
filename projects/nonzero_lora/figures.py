"""Pictures of the HTML report: accuracy over rates, the first steps, the scaling lines."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from shared.reproduction.results import Results

STYLES = {"init_a": "-o", "init_b": "--s", "init_ab": "-.^", "init_ab_reset": ":v"}


def learning_rates(results: Results) -> Figure:
    """Mean over seeds against the learning rate; bands of one standard deviation."""
    figure, axes = _panel(results.recipe.title)
    for row in results.rows:
        points = [
            (results.recipe.columns[column].value, list(results.per_seed(row, column).values()))
            for column in results.columns
        ]
        _curve(axes, results, row, [(x, values) for x, values in points if values])
    axes.set(xscale="log", xlabel="learning rate", ylabel=f"test accuracy ({results.recipe.unit})")
    _legend(axes)
    return figure


def first_steps(results: Results) -> Figure:
    """Decrease of the held-out loss after the first steps, at the smallest rate of the table."""
    figure, axes = _panel("Held-out loss gained since the start")
    column = min(results.columns, key=lambda name: _rate(results, name))
    for row in results.rows:
        gains: dict[int, list[float]] = {}
        for seed in results.per_seed(row, column):
            for name, points in results.history(row, column, seed).items():
                if found := re.fullmatch(r"heldout/gain_(\d+)", name):
                    gains.setdefault(int(found[1]), []).append(1000 * points[-1][1])
        _curve(axes, results, row, sorted(gains.items()))
    axes.axhline(0, color="0.8", linewidth=0.8, zorder=0)
    axes.set_xscale("log")
    axes.set_yscale("symlog", linthresh=0.1)
    axes.set(
        xlabel=f"step at a rate of {_rate(results, column):g}", ylabel="loss at start - loss now (1e-3 nats)"
    )
    _legend(axes)
    return figure


def width_scaling(results: Results) -> Figure:
    """Size of d1 (left) and d2 (right) against the width, at both rates, with fitted exponents."""
    figure = Figure(figsize=(9, 4), layout="constrained")
    figure.suptitle(results.recipe.title)
    for place, part in enumerate(("d1", "d2"), 1):
        axes = figure.add_subplot(1, 2, place)
        for row in results.rows:
            for column, entry in results.recipe.columns.items():
                if entry.metric == f"slope/{part}":
                    widths, sizes = _sizes(results, row, column, part)
                    if widths:
                        label = f"{results.recipe.rows[row].label}, {entry.label.split(', ')[-1]}"
                        slope = np.polyfit(np.log(widths), np.log(sizes), 1)[0]
                        axes.loglog(widths, sizes, STYLES.get(row, "-"), label=f"{label}: n^{slope:.2f}")
        axes.set(xlabel="width n", ylabel=f"rms of {part}")
        _legend(axes)
    return figure


def _sizes(results: Results, row: str, column: str, part: str) -> tuple[list[int], list[float]]:
    """Widths and the geometric mean over seeds of the size of `part`."""
    logs: dict[int, list[float]] = {}
    for seed in results.per_seed(row, column):
        for name, points in results.history(row, column, seed).items():
            if found := re.fullmatch(rf"rms/{part}/(\d+)", name):
                logs.setdefault(int(found[1]), []).append(np.log(points[-1][1]))
    widths = sorted(logs)
    return widths, [float(np.exp(np.mean(logs[width]))) for width in widths]


def _rate(results: Results, column: str) -> float:
    return float(results.config(results.rows[0], column)["optimizer"]["lr"])


def _panel(title: str) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(6.5, 4), layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(title)
    return figure, axes


def _legend(axes: Axes) -> None:
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=7)


def _curve(axes: Axes, results: Results, row: str, points: list[tuple[float, list[float]]]) -> None:
    """Mean over seeds, with a band of one standard deviation where there are two."""
    if not points:
        return
    x = [place for place, _ in points]
    mean = np.array([np.mean(values) for _, values in points])
    band = np.array([np.std(values, ddof=1) if len(values) > 1 else 0.0 for _, values in points])
    (line,) = axes.plot(x, mean, STYLES.get(row, "-"), markersize=4, label=results.recipe.rows[row].label)
    axes.fill_between(x, mean - band, mean + band, color=line.get_color(), alpha=0.12, linewidth=0)
