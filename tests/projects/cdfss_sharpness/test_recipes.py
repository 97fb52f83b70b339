"""The recipes as they are shipped, and the pictures on made-up figures and a real run's arrays."""

import numpy as np
import pytest

from projects.cdfss_sharpness import build, figures, requirements
from projects.cdfss_sharpness.config import Config
from projects.cdfss_sharpness.data.datamodule import target_names
from shared.errors import UserError
from shared.reproduction.recipe import recipes
from shared.reproduction.synthetic import synthetic_results
from shared.reproduction.verdicts import load_function
from shared.training.config import base_layer, compose

PAPER = "cdfss_sharpness"


@pytest.mark.parametrize(
    ("recipe", "profile"),
    [(recipe, profile) for recipe in recipes(PAPER) for profile in recipe.profiles],
    ids=lambda value: getattr(value, "table", value),
)
def test_every_cell_has_a_config_and_a_metric_that_is_logged(recipe, profile):
    shown = recipe.at(profile)
    sides = ("miou", "with_lcm", "without_lcm")
    for row in shown.rows.values():
        for column in shown.columns.values():
            layers = shown.config, recipe.profiles[profile].config, row.config, column.config
            config = compose(Config, base_layer(), *layers)
            names = [*target_names(config.episodes), "mean"]
            metric = column.metric or row.metric or shown.metric
            kind, _, rest = metric.partition("/")
            if kind in sides:
                assert rest in names
            elif kind in ("drop", "peak", "curve"):
                side, _, target = rest.partition("/")
                assert side in sides[1:] and target in names
            else:
                assert kind in ("sharpness", "cka") and config.sharpness.episodes > 0
            assert requirements(config)
    for name in shown.figures:
        assert callable(load_function(name))


def made_up(folder, curves=True):
    rows = ("base", "lem")
    values, histories, configs = {}, {}, {}
    for number, row in enumerate(rows):
        config = {"sharpness": {"sizes": [0.5, 2.0]}, "episodes": {"source": "digits", "targets": []}}
        configs[row, "mean"] = config
        values[row, "mean"] = {}
        for seed in (0, 1):
            metrics = {f"sharpness/stage{s}/{r}": s + number for s in range(5) for r in ("0.5", "2")}
            metrics |= {f"cka/stage{s}": 0.1 * s for s in (1, 2, 3, 4)}
            values[row, "mean"][seed] = {"score": 1.0, **metrics}
            names = [
                f"{side}/{t}" for side in figures.SIDES for t in ("mean", "inverted", "textured", "noisy")
            ]
            histories[row, "mean", seed] = [
                (step, f"curve/{name}", 10.0 * number + step) for step in (1, 2) for name in names
            ]
    return synthetic_results(folder, values, histories=histories if curves else None, configs=configs)


def test_pictures(tmp_path):
    table = made_up(tmp_path)
    lines = figures.training_curves(table).axes[0].lines
    assert len(lines) == 4  # two curves, two peaks
    assert lines[2].get_ydata().tolist() == [11.0, 12.0] and lines[3].get_ydata() == [12.0]
    assert [axes.get_title() for axes in figures.target_curves(table).axes] == [
        "inverted",
        "textured",
        "noisy",
    ]
    noise = figures.loss_under_noise(table)
    assert [axes.get_title() for axes in noise.axes] == ["pixels", "stage1", "stage2", "stage3", "stage4"]
    assert len(figures.domain_likeness(table).axes[0].patches) == 8
    assert figures.predictions(table) is None and figures.mixed_amplitudes(table) is None


def test_pictures_of_saved_arrays(tmp_path):
    table = made_up(tmp_path)
    folder = table.artifacts("lem", "mean", 0)
    folder.mkdir(parents=True, exist_ok=True)
    stream = np.random.default_rng(0)
    image, mask = stream.normal(size=(2, 3, 8, 8)), stream.random((2, 8, 8)) > 0.5
    arrays = {"targets": np.array(["a", "b"]), "query": image, "truth": mask.astype(np.uint8)}
    np.savez(folder / "examples.npz", plain=mask, calibrated=~mask, **arrays)
    np.savez(folder / "mixed.npz", image=image[0], convolved=image, enhanced=image)
    shown = figures.predictions(table)
    assert len(shown.axes) == 8 and shown.axes[1].get_title() == "b"
    wrong = shown.axes[6].images[0].get_array()  # all of it is found where nothing is, or missed
    right = shown.axes[4].images[0].get_array()
    assert wrong[..., 1].mean() < right[..., 1].mean()
    assert len(figures.mixed_amplitudes(table).axes) == 6


def test_wrong_settings_are_named(small):
    with pytest.raises(UserError, match="head.name takes ssp, prototype; found 'sps'"):
        build(small.config({"head": {"name": "sps"}}))
    with pytest.raises(UserError, match="lcm.anchors"):
        build(small.config({"lcm": {"anchors": 10}}))
    with pytest.raises(UserError, match="no stage 'stage7'"):
        build(small.config({"lem": {"stage": 7}}))
    with pytest.raises(UserError, match="from 0 to 4, found 9"):
        build(small.config({"encoder": {"frozen": 9}}))
