"""The claim function and pictures on made-up figures, and the recipes as they are shipped."""

import pytest

from projects.fedmud import claims, figures
from projects.fedmud.config import Config
from shared.errors import UserError
from shared.reproduction.plan import make_plan
from shared.reproduction.recipe import Entry, load_recipe, recipes
from shared.reproduction.synthetic import synthetic_results
from shared.reproduction.verdicts import load_function
from shared.training.config import compose

VALUES = {
    ("ours", "a"): {0: 70.0, 1: 72.0},
    ("ours", "b"): {0: 60.0, 1: 62.0},
    ("weak", "a"): {0: 50.0, 1: 51.0},
    ("weak", "b"): {0: 40.0, 1: 41.0},
    ("strong", "a"): {0: 71.0, 1: 69.0},
    ("strong", "b"): {0: 58.0, 1: 57.0},
}


def test_margin_over_the_best_other(tmp_path):
    table = synthetic_results(tmp_path, VALUES)
    whole = claims.margin_over_best(table, "ours", ["weak", "strong"])
    assert whole == {0: pytest.approx(0.5), 1: pytest.approx(4.0)}
    assert claims.margin_over_best(table, "ours", ["weak", "strong"], columns=["a"]) == {0: -1.0, 1: 3.0}
    assert claims.margin_over_best(table, "ours", ["weak"], columns=["b"]) == {0: 20.0, 1: 21.0}


def test_nothing_has_run(tmp_path):
    empty = {("ours", "a"): {0: 1.0}, ("weak", "a"): {}}
    table = synthetic_results(tmp_path, empty, missing={("weak", "a", 0): "failed"})
    with pytest.raises(UserError, match="no run of weak has ended"):
        claims.margin_over_best(table, "ours", ["weak"])
    for name in ("accuracy_over_rounds", "over_columns"):
        getattr(figures, name)(
            synthetic_results(tmp_path / name, {("weak", "a"): {}}, missing={("weak", "a", 0): "failed"})
        )


def test_pictures(tmp_path):
    histories = {
        (row, column, seed): [
            line
            for step in (2, 4)
            for line in (
                (step, "last/accuracy", 10.0 * step + seed),
                (step, "mb_up", 1.0 * step),
                (step, "mb_down", 2.0 * step),
            )
        ]
        for row, column in VALUES
        for seed in (0, 1)
    }
    columns = {name: Entry(id=name, label=name, value=value) for name, value in (("a", 1.0), ("b", 10.0))}
    table = synthetic_results(tmp_path, VALUES, histories=histories, columns=columns)
    rounds, traffic = figures.accuracy_over_rounds(table), figures.accuracy_over_bytes(table)
    for picture, places in ((rounds, [2, 4]), (traffic, [6, 12])):
        lines = picture.axes[0].get_lines()
        assert [line.get_label() for line in lines] == ["ours", "weak", "strong"]
        assert lines[0].get_xdata() == pytest.approx(places)
        assert lines[0].get_ydata() == pytest.approx([20.5, 40.5])
    grid = figures.over_columns(table)
    bars = grid.axes[0].containers[0]
    assert bars.lines[0].get_xdata() == pytest.approx([1, 10])
    assert bars.lines[0].get_ydata() == pytest.approx([71, 61])
    for number, picture in enumerate((rounds, traffic, grid)):
        picture.savefig(tmp_path / f"{number}.png")


def test_recipes_compose_and_name_real_functions():
    found = {recipe.table: recipe for recipe in recipes("fedmud")}
    assert {"fmnist", "svhn", "cifar10", "cifar100", "digits", "approximation", "aggregation"} <= set(found)
    assert {"reset", "magnitude", "ratios"} <= set(found)
    for recipe in found.values():
        for name in recipe.profiles:
            here = recipe.at(name)
            for row in here.rows.values():
                for column in here.columns.values():
                    profile = here.profiles[name].config
                    compose(Config, here.config, profile, row.config, column.config)
            for claim in here.claims:
                assert claim.function is None or callable(load_function(claim.function))
        for name in recipe.figures:
            assert callable(load_function(name))


def keys(table, profile):
    return {run.key for run in make_plan(load_recipe("fedmud", table), profile, None, []).runs}


@pytest.mark.parametrize("profile", ["laptop", "paper"])
def test_tables_that_share_runs(profile):
    """The rows are written out in each file; what a file says it takes from another it really takes."""
    main = keys("fmnist", profile)
    seeds = 5 if profile == "laptop" else 3
    assert len(main) == 8 * (1 if profile == "laptop" else 3) * seeds
    assert keys("aggregation", profile) < main
    assert len(keys("reset", profile) & main) == 2 * seeds
    assert len(keys("ratios", profile) & main) == 4 * seeds


def test_what_is_measured_has_five_seeds_and_no_part_in_the_trial():
    for recipe in recipes("fedmud"):
        if "laptop" in recipe.profiles:
            here = recipe.at("laptop")
            config = compose(Config, here.config, here.profiles["laptop"].config)
            if recipe.table == "trial":
                assert here.profiles["laptop"].seeds == (100,) and not here.claims
                assert config.federation.validation_images
            else:
                assert len(here.profiles["laptop"].seeds) >= 5 and 100 not in here.profiles["laptop"].seeds
                assert config.federation.validation_images == 0
