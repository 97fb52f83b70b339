"""Claims on values written by hand, pictures drawn from synthetic results."""

from __future__ import annotations

import numpy as np
import pytest

from projects.recit.claims import phenomenon, source_loses_more
from projects.recit.figures import disrupted_versions, disruptions


class Values:
    """Stands for `Results`."""

    def __init__(self, cells: dict[tuple[str, str], dict[int, float]]) -> None:
        self.cells = cells

    def per_seed(self, row: str, column: str, metric: str | None = None) -> dict[int, float]:
        return self.cells[row, column]


def test_what_the_source_loses_more() -> None:
    cells = {
        ("none", "source"): {0: 97.0, 1: 98.0, 2: 99.0},
        ("sp", "source"): {0: 94.0, 1: 96.0},
        ("none", "target"): {0: 40.0, 1: 41.0},
        ("sp", "target"): {0: 39.0, 1: 43.0, 2: 1.0},
    }
    assert source_loses_more(Values(cells), "sp") == {0: 2.0, 1: 4.0}
    by_pieces = {
        ("sp_source", "p_1"): {0: 97.0},
        ("sp_source", "p_4"): {0: 90.0},
        ("sp_target", "p_1"): {0: 40.0},
        ("sp_target", "p_4"): {0: 38.0},
    }
    assert phenomenon(Values(by_pieces), "sp", "p_4") == {0: 5.0}


def test_the_disrupted_versions_of_a_picture() -> None:
    panels = disrupted_versions()
    assert len(panels) == 8
    image = panels["source image"]
    assert image.shape == (224, 224, 3) and image.min() >= 0 and image.max() <= 1
    shuffled = panels["SP: patches change places"]
    np.testing.assert_allclose(np.sort(shuffled.ravel()), np.sort(image.ravel()), atol=1e-6)
    clusters = panels["stage 2: clusters of similar patches"]
    assert clusters.shape == (14, 14) and 3 < len(np.unique(clusters)) < 20
    mixed = panels["amplitudes mixed, positive weights"]
    assert 0.02 < np.abs(mixed - image).mean() < 0.3
    again = disrupted_versions()
    assert all(np.array_equal(panels[title], again[title]) for title in panels)


def test_the_picture_is_drawn() -> None:
    figure = disruptions(None)
    assert len(figure.axes) == 8 and all(axes.get_title() for axes in figure.axes)


@pytest.mark.parametrize("table", ["digits", "ablation", "phenomenon", "vit_s"])
def test_the_other_pictures_are_drawn_from_any_results(table: str) -> None:
    import importlib

    from shared.reproduction.recipe import load_recipe

    recipe = load_recipe("recit", table).at("laptop")

    class Synthetic:
        def __init__(self) -> None:
            self.recipe, self.rows, self.columns = recipe, list(recipe.rows), list(recipe.columns)

        def per_seed(self, row: str, column: str, metric: str | None = None) -> dict[int, float]:
            return {0: 50.0, 1: 52.0} if row != self.rows[-1] else {}  # one arm has not ended

        def history(self, row: str, column: str, seed: int) -> dict[str, list[tuple[int, float]]]:
            if row == self.rows[0]:
                return {}
            return {f"epoch/{d}_5shot": [(10, 40.0 + seed), (20, 50.0)] for d in ("source", "target")}

    assert recipe.figures
    for name in recipe.figures:
        module, _, function = name.partition(":")
        figure = getattr(importlib.import_module(module), function)(Synthetic())
        figure.canvas.draw()
        assert figure.axes
