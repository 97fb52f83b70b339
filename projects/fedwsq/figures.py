"""Pictures of the HTML report: accuracy over rounds, scales over rounds, errors of quantisers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from shared.reproduction.results import Results

WINDOW = 5  # rounds of a running mean: single rounds of skewed clients jump


def curves(results: Results) -> Figure:
    """Accuracy on the test images after every round, mean over seeds, running mean over rounds."""
    figure, axes = _panel(results.recipe.title, "test accuracy (%)")
    column = results.columns[0]
    for row in results.rows:
        rounds, values = _mean_curve(results, row, column, "last/accuracy")
        if len(values) >= WINDOW:
            smooth = np.convolve(values, np.ones(WINDOW) / WINDOW, mode="valid")
            axes.plot(rounds[WINDOW - 1 :], smooth, label=results.recipe.rows[row].label)
    _legend(axes)
    return figure


def scales(results: Results) -> Figure:
    """s_g / s_i, mean over layers and seeds: 1 when the shared scale has caught up with the updates."""
    figure, axes = _panel("Shared scale against the updates' deviation", "s_g / mean s_i")
    column = results.columns[0]
    for row in results.rows:
        if results.config(row, column)["quantizer"]["name"] != "danuq":
            continue
        rounds, values = _mean_curve(results, row, column, "scales/ratio")
        if len(values):
            axes.plot(rounds, values, label=results.recipe.rows[row].label)
    axes.axhline(1, color="0.8", linewidth=0.8, zorder=0)
    axes.set_yscale("log")
    _legend(axes)
    return figure


def errors(results: Results) -> Figure:
    """Relative errors by quantiser, a bar for each kind of network."""
    figure = Figure(figsize=(7, 5.5), layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(results.recipe.title)
    rows = [row for row in results.rows if row != "kurtosis"]
    height = 0.8 / len(results.columns)
    for place, column in enumerate(results.columns):
        means = [results.mean(row, column) for row in rows]
        shown = [(i, mean) for i, mean in enumerate(means) if mean is not None]
        if shown:
            at = [i + place * height for i, _ in shown]
            label = results.recipe.columns[column].label
            axes.barh(at, [mean for _, mean in shown], height, label=label)
    axes.set_yticks([i + 0.4 - height / 2 for i in range(len(rows))])
    axes.set_yticklabels([results.recipe.rows[row].label for row in rows], fontsize=7)
    axes.invert_yaxis()
    axes.set(xscale="log", xlabel="||Q(D) - D||² / ||D||²")
    _legend(axes)
    return figure


def _mean_curve(results: Results, row: str, column: str, metric: str) -> tuple[np.ndarray, np.ndarray]:
    """Rounds that all seeds have, and the mean over seeds."""
    found = [
        dict(results.history(row, column, seed).get(metric, [])) for seed in results.per_seed(row, column)
    ]
    if not found:
        return np.array([]), np.array([])
    shared = sorted(set.intersection(*map(set, found)))
    return np.array(shared), np.array([np.mean([curve[step] for curve in found]) for step in shared])


def _panel(title: str, ylabel: str) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(6.5, 4), layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(title)
    axes.set(xlabel="round", ylabel=ylabel)
    return figure, axes


def _legend(axes: Axes) -> None:
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=7)
