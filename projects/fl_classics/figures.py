"""Pictures of the HTML report: accuracy over rounds and over bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from shared.reproduction.results import Results

LINES = ("-", "--", "-.", ":")
PARTS = (("last/accuracy", "server's model, server's test set"), ("last/personal/accuracy", "own test data"))


def over_rounds(results: Results) -> Figure:
    """Mean over seeds of both accuracies after every evaluation."""
    figure = Figure(figsize=(10, 4.6), layout="constrained")
    figure.suptitle(results.recipe.title)
    column = results.columns[0]
    for place, (metric, title) in enumerate(PARTS, 1):
        axes = figure.add_subplot(1, 2, place)
        for number, row in enumerate(results.rows):
            _curve(axes, number, results.recipe.rows[row].label, _curves(results, row, column, metric))
        axes.set(xlabel="round", ylabel="accuracy (%)", title=title)
    axes.legend(*figure.axes[0].get_legend_handles_labels(), fontsize="small", loc="center left")
    axes.get_legend().set_bbox_to_anchor((1.0, 0.5))
    return figure


def over_bytes(results: Results) -> Figure:
    """Mean accuracy of the server's model against the mean bytes that had been sent until then."""
    figure = Figure(figsize=(8, 4.2), layout="constrained")
    axes, column = figure.add_subplot(), results.columns[0]
    for number, row in enumerate(results.rows):
        sent = [dict(_curves(results, row, column, name)) for name in ("mb_up", "mb_down")]
        points = [
            (float(np.mean(sent[0][step]) + np.mean(sent[1][step])), values)
            for step, values in _curves(results, row, column, "last/accuracy")
        ]
        _curve(axes, number, results.recipe.rows[row].label, points)
    axes.set(
        xlabel="MB sent, both ways",
        ylabel="accuracy (%)",
        title="Accuracy of the server's model over traffic",
    )
    axes.legend(fontsize="small", ncols=2)
    return figure


def _curves(results: Results, row: str, column: str, metric: str) -> list[tuple[int, list[float]]]:
    """(round, its value for each seed that has ended), ascending."""
    found: dict[int, list[float]] = {}
    for seed in results.per_seed(row, column):
        for step, value in results.history(row, column, seed).get(metric, []):
            found.setdefault(step, []).append(value)
    return sorted(found.items())


def _curve(axes: Axes, number: int, label: str, points: list[tuple[float, list[float]]]) -> None:
    if points:
        x, y = zip(*((x, float(np.mean(values))) for x, values in points), strict=True)
        axes.plot(x, y, LINES[number // 8 % len(LINES)], label=label)
