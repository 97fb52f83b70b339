"""Pictures of the HTML report: a disrupted image, curves over epochs, accuracy against CKA and pieces."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from torch import Tensor

    from shared.reproduction.results import Results

PICTURE, SIDE, PATCH = "coffee", 224, 16


def disruptions(results: Results) -> Figure:
    """One photograph, its clusters of similar patches, and what each disruption makes of it.

    The balanced disruption acts on patch embeddings, which cannot be looked at. Here the pixels of a patch
    take the place of its embedding; of the official weights, which make half of the patches 1e7 times
    larger, every patch is brought back to the contrast that it had.
    """
    panels = disrupted_versions()
    figure = Figure(figsize=(10, 5.4), layout="constrained")
    for axes, (title, picture) in zip(figure.subplots(2, 4).flat, panels.items(), strict=True):
        axes.imshow(picture, interpolation="nearest", cmap="tab20")
        axes.set_title(title, fontsize=8)
        axes.axis("off")
    return figure


def disrupted_versions() -> dict[str, np.ndarray]:
    """Title -> picture: (H, W, 3) in 0 .. 1, or numbers of clusters (H, W)."""
    import torch

    from projects.recit.balanced import balanced_disruption, leaders, similarity
    from projects.recit.data.pools import MEAN, STD
    from projects.recit.patches import (
        from_patches,
        shuffle_amplitudes,
        shuffle_patches,
        shuffle_phases,
        to_patches,
    )
    from projects.recit.warmup import enlarge
    from shared.vision.textures import photograph

    grid = SIDE // PATCH
    pixels = photograph(PICTURE)
    left, top = (pixels.shape[1] - 400) // 2, (pixels.shape[0] - 400) // 2
    image = torch.tensor(pixels[top : top + 400, left : left + 400]).permute(2, 0, 1)[None].float() / 255
    mean, std = (torch.tensor(values)[:, None, None] for values in (MEAN, STD))
    image = (enlarge(image, grid, PATCH) - mean) / std
    tokens = to_patches(image, grid)
    flat = tokens.flatten(2)
    members = leaders(similarity(image, grid * grid), 0.3)
    size = members.sum(-1)[0]
    rank = size.argsort(descending=True).argsort()  # the largest cluster gets the first colour
    clusters = rank[members[0].argmax(0)].reshape(grid, grid) % 20

    def balanced(weights: str) -> Tensor:
        centred = flat - flat.mean(-1, keepdim=True)
        stream = torch.Generator().manual_seed(0)
        found = balanced_disruption(centred, image, weights=weights, stream=stream)
        if weights == "official":
            found = found * centred.norm(dim=-1, keepdim=True) / found.norm(dim=-1, keepdim=True)
        return from_patches((found + flat.mean(-1, keepdim=True)).view_as(tokens), grid)

    torch_state = torch.random.get_rng_state()
    torch.manual_seed(0)
    warm = shuffle_patches(enlarge(image, 20, PATCH), 20)
    shown = {
        "source image": image,
        "SP: patches change places": shuffle_patches(image, grid),
        "SPA: amplitudes do": shuffle_amplitudes(image, grid),
        "SPP: phases do": shuffle_phases(image, grid),
        "stage 1, warm-up: 20 x 20 patches, shuffled": warm,
        "stage 2: clusters of similar patches": clusters,
        "amplitudes mixed, positive weights": balanced("positive"),
        "amplitudes mixed, official weights": balanced("official"),
    }
    torch.random.set_rng_state(torch_state)
    return {
        title: (value if value.ndim == 2 else (value[0] * std + mean).clamp(0, 1).permute(1, 2, 0)).numpy()
        for title, value in shown.items()
    }


def accuracy_over_epochs(results: Results) -> Figure:
    """Accuracy after every epoch, source above and target below; mean over seeds, band of one deviation."""
    shots = results.recipe.metric.rsplit("_", 1)[-1]
    figure = Figure(figsize=(6.5, 6), layout="constrained")
    for axes, domain in zip(figure.subplots(2, 1, sharex=True), ("source", "target"), strict=True):
        for row in results.rows:
            curves = _curves(results, row, f"epoch/{domain}_{shots}")
            if curves:
                values = np.array([[value for _, value in curve] for curve in curves])
                _band(axes, np.arange(1, values.shape[1] + 1), values, results.recipe.rows[row].label)
        axes.set(ylabel=f"{domain}, accuracy (%)")
    axes.set(xlabel="epoch")
    return _finished(figure, axes)


def accuracy_over_cka(results: Results) -> Figure:
    """Target accuracy against the similarity of source and target features, a point a seed."""
    figure, axes = _panel("Similarity of domains and accuracy")
    for row in results.rows:
        similar = results.per_seed(row, "cka")
        accurate = results.per_seed(row, "target")
        if similar:
            seeds = sorted(similar)
            axes.scatter(
                [similar[seed] for seed in seeds],
                [accurate[seed] for seed in seeds],
                label=results.recipe.rows[row].label,
                s=18,
            )
    axes.set(xlabel="CKA of source and target", ylabel="target accuracy (%)")
    return _finished(figure, axes)


def over_pieces(results: Results) -> Figure:
    """Accuracy of source and target, and CKA, over the number of pseudo-patches of a side."""
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    for axes, kind in zip(figure.subplots(1, 3), ("source", "target", "cka"), strict=True):
        for arm in ("sp", "spa", "spp"):
            row = f"{arm}_{kind}"
            columns = [column for column in results.columns if results.per_seed(row, column)]
            if columns:
                places = [results.recipe.columns[column].value for column in columns]
                values = [list(results.per_seed(row, column).values()) for column in columns]
                bars = [np.std(own, ddof=1) if len(own) > 1 else 0.0 for own in values]
                axes.errorbar(places, [np.mean(own) for own in values], bars, marker="o", label=arm.upper())
        axes.set(title="CKA" if kind == "cka" else f"{kind} accuracy (%)", xlabel="pieces of a side")
    return _finished(figure, axes)


def _curves(results: Results, row: str, metric: str) -> list[list[tuple[int, float]]]:
    """One curve for each seed whose run has ended."""
    column = results.columns[0]
    histories = [results.history(row, column, seed) for seed in results.per_seed(row, column)]
    return [own[metric] for own in histories if own.get(metric)]  # an arm without training has none


def _band(axes: Axes, x: np.ndarray, values: np.ndarray, label: str) -> None:
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
