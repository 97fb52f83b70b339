"""Pictures of the HTML report: curves over training, loss under noise, likeness, predictions, LEM at work."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from shared.reproduction.results import Results

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SIDES = {"without_lcm": "without LCM", "with_lcm": "with LCM"}
STAGES = ("stage1", "stage2", "stage3", "stage4")
RIGHT, WRONG, MISSED = (0.2, 0.8, 0.3), (0.95, 0.25, 0.2), (0.2, 0.45, 1.0)


def training_curves(results: Results) -> Figure:
    """mIoU on the targets (mean) over training, mean over seeds; the peak of each mean curve is marked."""
    figure = Figure(figsize=(9, 3.8), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    for axes, (side, title) in zip(panels, SIDES.items(), strict=True):
        for row in results.rows:
            steps, values = _mean_curve(results, row, f"curve/{side}/mean")
            if len(values):
                (line,) = axes.plot(steps, values, marker=".", label=results.recipe.rows[row].label)
                best = int(values.argmax())
                axes.plot(steps[best], values[best], marker="*", markersize=11, color=line.get_color())
        axes.set(title=title, xlabel="training steps")
    panels[0].set_ylabel("mIoU, mean of targets (%)")
    _legend(panels[0])
    return figure


def target_curves(results: Results) -> Figure:
    """The same for every target, without LCM."""
    targets = _targets(results)
    figure = Figure(figsize=(3.4 * len(targets), 3.4), layout="constrained")
    for axes, target in zip(figure.subplots(1, len(targets), squeeze=False)[0], targets, strict=True):
        for row in results.rows:
            steps, values = _mean_curve(results, row, f"curve/without_lcm/{target}")
            if len(values):
                axes.plot(steps, values, marker=".", label=results.recipe.rows[row].label)
        axes.set(title=target, xlabel="training steps", ylabel="mIoU (%)")
    _legend(figure.axes[0])
    return figure


def loss_under_noise(results: Results) -> Figure:
    """Loss increase over the size of the noise (times the feature's rms), a panel for each stage."""
    column = results.columns[0]
    sizes = results.config(results.rows[0], column)["sharpness"]["sizes"]
    stages = ("stage0", *STAGES)
    figure = Figure(figsize=(12, 3.2), layout="constrained")
    for axes, stage in zip(figure.subplots(1, len(stages), sharey=True), stages, strict=True):
        for row in results.rows:
            found = [_values(results, row, f"sharpness/{stage}/{size:g}") for size in sizes]
            if all(map(len, found)):
                middle = np.array([np.mean(own) for own in found])
                spread = np.array([np.std(own, ddof=1) if len(own) > 1 else 0 for own in found])
                axes.errorbar(
                    sizes, middle, spread, capsize=2, marker=".", label=results.recipe.rows[row].label
                )
        axes.set(title="pixels" if stage == "stage0" else stage, xlabel="noise / rms")
    figure.axes[0].set_ylabel("increase of the loss (nats)")
    _legend(figure.axes[0])
    return figure


def domain_likeness(results: Results) -> Figure:
    """CKA of source and targets (mean) at every stage."""
    figure = Figure(figsize=(6, 3.6), layout="constrained")
    axes = figure.add_subplot()
    width = 0.8 / len(results.rows)
    for place, row in enumerate(results.rows):
        found = [_values(results, row, f"cka/{stage}") for stage in STAGES]
        if all(map(len, found)):
            at = np.arange(len(STAGES)) + place * width
            axes.bar(at, [np.mean(own) for own in found], width, label=results.recipe.rows[row].label)
    axes.set_xticks(np.arange(len(STAGES)) + 0.4 - width / 2, STAGES)
    axes.set(title="Likeness of source and target features", ylabel="CKA")
    _legend(axes)
    return figure


def predictions(results: Results) -> Figure | None:
    """Query, ground truth, prediction without and with LCM, of the last row that has saved them.

    Green: found; red: found where nothing is; blue: missed.
    """
    saved = _saved(results, "examples.npz")
    if saved is None:
        return None
    label, arrays = saved
    count = len(arrays["query"])
    names = np.repeat(arrays["targets"], count // len(arrays["targets"]))
    figure = Figure(figsize=(1.5 * count, 6.2), layout="constrained")
    figure.suptitle(label)
    panels = figure.subplots(4, count, squeeze=False)
    for place in range(count):
        image, truth = _shown(arrays["query"][place]), arrays["truth"][place]
        plain, calibrated = arrays["plain"][place], arrays["calibrated"][place]
        pictures = (image, _tinted(image, truth, truth == 1), _tinted(image, truth, plain))
        for axes, picture in zip(
            panels[:, place], (*pictures, _tinted(image, truth, calibrated)), strict=True
        ):
            axes.imshow(picture)
            axes.set(xticks=[], yticks=[])
        panels[0, place].set_title(str(names[place]), fontsize=8)
    for axes, text in zip(panels[:, 0], ("query", "ground truth", "without LCM", "with LCM"), strict=True):
        axes.set_ylabel(text, fontsize=8)
    return figure


def mixed_amplitudes(results: Results) -> Figure | None:
    """An image, four random convolutions of it, and its phase with their amplitudes (LEM)."""
    saved = _saved(results, "mixed.npz")
    if saved is None:
        return None
    _, arrays = saved
    count = len(arrays["convolved"])
    figure = Figure(figsize=(1.7 * (count + 1), 3.6), layout="constrained")
    panels = figure.subplots(2, count + 1)
    panels[0, 0].imshow(_shown(arrays["image"]))
    panels[0, 0].set_title("image", fontsize=8)
    for row, (name, text) in enumerate({"convolved": "random convolution", "enhanced": "LEM"}.items()):
        panels[row, 1].set_title(text, fontsize=8)
        for place in range(count):
            panels[row, place + 1].imshow(_stretched(arrays[name][place]))
    for axes in panels.flat:
        axes.set(xticks=[], yticks=[])
    panels[1, 0].axis("off")
    return figure


def _targets(results: Results) -> list[str]:
    from projects.cdfss_sharpness.config import TARGETS

    episodes = results.config(results.rows[0], results.columns[0])["episodes"]
    return list(episodes["targets"]) or list(TARGETS[episodes["source"]])


def _values(results: Results, row: str, metric: str) -> list[float]:
    return list(results.per_seed(row, results.columns[0], metric).values())


def _mean_curve(results: Results, row: str, metric: str) -> tuple[np.ndarray, np.ndarray]:
    """Steps that all ended seeds have, and the mean over seeds."""
    column = results.columns[0]
    found = [dict(results.curve(row, column, seed, metric)) for seed in results.per_seed(row, column)]
    steps = sorted(set.intersection(*map(set, found))) if found else []
    return np.array(steps), np.array([np.mean([curve[step] for curve in found]) for step in steps])


def _saved(results: Results, name: str) -> tuple[str, dict[str, np.ndarray]] | None:
    """Label of the row and the arrays that its first seed saved: of the method's row if it has ended."""
    rows = sorted(results.rows, key=lambda row: row != "lem")
    for row in rows:
        for column in results.columns:
            for seed in results.per_seed(row, column):
                path = results.artifacts(row, column, seed) / name
                if path.is_file():
                    with np.load(path) as arrays:
                        return results.recipe.rows[row].label, dict(arrays)
    return None


def _shown(image: np.ndarray) -> np.ndarray:
    """A normalised image (3, H, W) as (H, W, 3) of 0..1."""
    return (image.transpose(1, 2, 0) * STD + MEAN).clip(0, 1)


def _stretched(image: np.ndarray) -> np.ndarray:
    """Any (3, H, W) between its 1st and 99th percentile."""
    low, high = np.percentile(image, (1, 99))
    return ((image.transpose(1, 2, 0) - low) / max(high - low, 1e-6)).clip(0, 1)


def _tinted(image: np.ndarray, truth: np.ndarray, predicted: np.ndarray) -> np.ndarray:
    picture = np.repeat(image.mean(2, keepdims=True), 3, 2) * 0.6 + 0.2
    right, predicted = truth == 1, predicted.astype(bool)
    for where, colour in (
        (right & predicted, RIGHT),
        (~right & predicted, WRONG),
        (right & ~predicted, MISSED),
    ):
        picture[where] = 0.35 * picture[where] + 0.65 * np.array(colour)
    return picture


def _legend(axes: Axes) -> None:
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=7)
