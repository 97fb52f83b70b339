"""Pictures of the HTML report: accuracy over rounds and over bytes, errors over the ratio."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from shared.reproduction.results import Results

ACCURACY = "last/accuracy"  # of every evaluation, per cent


def accuracy_over_rounds(results: Results) -> Figure:
    """Mean over seeds in the first column's runs; bands of one standard deviation."""
    figure, axes = _panel(results.recipe.title)
    for row in results.rows:
        curves = _curves(results, row, ACCURACY)
        if curves:
            rounds = [step for step, _ in curves[0]]
            _band(axes, rounds, [[value for _, value in curve] for curve in curves], _label(results, row))
    axes.set(xlabel="rounds", ylabel="test accuracy (%)")
    return _finished(figure, axes)


def accuracy_over_bytes(results: Results) -> Figure:
    """The same against what a run has sent in both directions, missed merges included."""
    figure, axes = _panel("Accuracy over traffic")
    for row in results.rows:
        curves = _curves(results, row, ACCURACY)
        if curves:
            up, down = _curves(results, row, "mb_up"), _curves(results, row, "mb_down")
            spent = np.mean(
                [
                    [u + d for (_, u), (_, d) in zip(*pair, strict=True)]
                    for pair in zip(up, down, strict=True)
                ],
                axis=0,
            )
            _band(axes, spent, [[value for _, value in curve] for curve in curves], _label(results, row))
    axes.set(xlabel="MB sent by all clients and the server", ylabel="test accuracy (%)", xscale="log")
    return _finished(figure, axes)


def over_columns(results: Results) -> Figure:
    """The table's own values against its columns' numbers."""
    figure, axes = _panel(results.recipe.title)
    for row in results.rows:
        columns = [column for column in results.columns if results.per_seed(row, column)]
        places = [results.recipe.columns[column].value for column in columns]
        values = [list(results.per_seed(row, column).values()) for column in columns]
        if values:
            means = [np.mean(own) for own in values]
            bars = [np.std(own, ddof=1) if len(own) > 1 else 0.0 for own in values]
            axes.errorbar(places, means, bars, marker="o", capsize=3, label=_label(results, row))
    axes.set(xscale="log", ylabel=results.recipe.unit)
    return _finished(figure, axes)


def _curves(results: Results, row: str, metric: str) -> list[list[tuple[int, float]]]:
    """One curve for each seed whose run has ended."""
    column = results.columns[0]
    return [results.curve(row, column, seed, metric) for seed in results.per_seed(row, column)]


def _label(results: Results, row: str) -> str:
    return results.recipe.rows[row].label


def _band(axes: Axes, x: object, curves: list[list[float]], label: str) -> None:
    values = np.array(curves)
    middle = values.mean(0)
    spread = values.std(0, ddof=1) if len(values) > 1 else np.zeros_like(middle)
    (line,) = axes.plot(x, middle, marker=".", label=label)
    axes.fill_between(x, middle - spread, middle + spread, color=line.get_color(), alpha=0.12, linewidth=0)


def _panel(title: str) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(6.5, 4), layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(title)
    return figure, axes


def _finished(figure: Figure, axes: Axes) -> Figure:
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=7)
    return figure
