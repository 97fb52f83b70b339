"""The claim functions and pictures on made-up figures, and the recipes as they are shipped."""

from pathlib import Path

import pytest

from projects.nonzero_lora import claims, figures
from projects.nonzero_lora.config import Config
from shared.errors import UserError
from shared.reproduction.recipe import Entry, load_recipe, recipes
from shared.reproduction.results import Results
from shared.reproduction.synthetic import synthetic_results
from shared.training.config import compose

RATES = {"lr_1e-4": 1e-4, "lr_3e-4": 3e-4, "lr_1e-3": 1e-3, "lr_3e-3": 3e-3, "lr_1e-2": 1e-2}
INIT_A = [50.0, 60.0, 70.0, 80.0, 75.0]


def results(folder: Path, shifts: list[float], **more) -> Results:
    """Two seeds; row init_ab is init_a plus a shift a column, plus 0.2 for seed 1."""
    values = {}
    for place, column in enumerate(RATES):
        values["init_a", column] = {0: INIT_A[place], 1: INIT_A[place] + 1}
        values["init_ab", column] = {
            seed: value + shifts[place] + 0.2 * seed for seed, value in values["init_a", column].items()
        }
    columns = {name: Entry(id=name, label=name, value=rate) for name, rate in RATES.items()}
    return synthetic_results(folder, values, columns=columns, **more)


def test_best_column_and_those_below(tmp_path: Path) -> None:
    table = results(tmp_path, [0.0] * 5)
    assert claims.best_column(table, "init_a") == "lr_3e-3"
    assert claims.columns_below_best(table, "init_a", [0.5, 1.0]) == ["lr_3e-4", "lr_1e-3"]
    assert claims.columns_below_best(table, "init_a", [0.0, 0.0]) == ["lr_3e-3"]


def test_best_column_of_a_loss_is_the_lowest(tmp_path: Path) -> None:
    assert claims.best_column(results(tmp_path, [0.0] * 5, higher_is_better=False), "init_a") == "lr_1e-4"


def test_advantages(tmp_path: Path) -> None:
    table = results(tmp_path, [9.0, 2.0, 4.0, -1.0, 9.0])
    below = claims.advantage_below_best(table, "init_ab", "init_a", [0.5, 1.0])
    assert below == {0: pytest.approx(3.0), 1: pytest.approx(3.2)}
    at_best = claims.advantage_at_best(table, "init_ab", "init_a")
    assert at_best == {0: pytest.approx(-1.0), 1: pytest.approx(-0.8)}
    worst = claims.worst_difference(table, "init_ab", "init_a")
    assert worst == {0: pytest.approx(-1.0), 1: pytest.approx(-0.8)}


def test_no_rate_below_the_best(tmp_path: Path) -> None:
    table = results(tmp_path, [0.0] * 5)
    with pytest.raises(
        UserError, match=r"no rate \[3, 4\] decades below the best one of 'init_a' \(lr_3e-3\)"
    ):
        claims.advantage_below_best(table, "init_ab", "init_a", [3, 4])


def test_additivity(tmp_path: Path) -> None:
    values = {
        ("a", "x"): {0: 1.0, 1: -0.4},
        ("b", "x"): {0: 3.0, 1: 0.6},
        ("ab", "x"): {0: 4.2, 1: 0.1},
    }
    error = claims.additivity_error(synthetic_results(tmp_path, values), "ab", ["a", "b"], "x")
    assert error == {0: pytest.approx(0.05), 1: pytest.approx(0.1)}


def test_nothing_has_run(tmp_path: Path) -> None:
    table = synthetic_results(
        tmp_path, {("init_a", "x"): {}, ("init_ab", "x"): {}}, missing={("init_a", "x", 0): "failed"}
    )
    with pytest.raises(UserError, match="no run of row 'init_a' has ended"):
        claims.best_column(table, "init_a")
    with pytest.raises(UserError, match="no seed has runs of both"):
        claims.worst_difference(table, "init_ab", "init_a")


def test_pictures_of_rates_and_first_steps(tmp_path: Path) -> None:
    histories = {
        (row, column, seed): [(step, f"heldout/gain_{step}", 1e-4 * step * (seed + 1)) for step in (1, 3, 10)]
        for row in ("init_a", "init_ab")
        for column in RATES
        for seed in (0, 1)
    }
    configs = {
        (row, column): {"optimizer": {"lr": rate}}
        for row in ("init_a", "init_ab")
        for column, rate in RATES.items()
    }
    table = results(tmp_path, [1.0] * 5, histories=histories, configs=configs)
    rates = figures.learning_rates(table)
    lines = rates.axes[0].get_lines()
    assert [line.get_label() for line in lines] == ["init_a", "init_ab"]
    assert lines[0].get_ydata() == pytest.approx([value + 0.5 for value in INIT_A])
    steps = figures.first_steps(table)
    assert steps.axes[0].get_lines()[0].get_ydata() == pytest.approx([0.15, 0.45, 1.5])
    for number, picture in enumerate((rates, steps)):
        picture.savefig(tmp_path / f"{number}.png")


def test_picture_of_widths(tmp_path: Path) -> None:
    widths = (128, 512)
    histories = {
        (row, column, 0): [(5, f"rms/{part}/{n}", n**slope) for part in ("d1", "d2") for n in widths]
        for row, slope in (("init_a", -1.0), ("init_ab", -0.5))
        for column in ("d1_inverse", "d2_inverse")
    }
    columns = {
        f"{part}_inverse": Entry(id=f"{part}_inverse", label=f"{part}, rate 1/n", metric=f"slope/{part}")
        for part in ("d1", "d2")
    }
    values = {
        (row, column): {0: {"slope/d1": -1.0, "slope/d2": -1.0}}
        for row in ("init_a", "init_ab")
        for column in columns
    }
    picture = figures.width_scaling(synthetic_results(tmp_path, values, columns=columns, histories=histories))
    labels = [line.get_label() for line in picture.axes[0].get_lines()]
    assert labels == ["init_a, rate 1/n: n^-1.00", "init_ab, rate 1/n: n^-0.50"]
    picture.savefig(tmp_path / "widths.png")


def test_pictures_of_a_table_that_has_not_run(tmp_path: Path) -> None:
    columns = {name: Entry(id=name, label=name, value=rate) for name, rate in RATES.items()}
    configs = {("init_a", column): {"optimizer": {"lr": rate}} for column, rate in RATES.items()}
    table = synthetic_results(tmp_path, {("init_a", "lr_1e-3"): {0: 1.0}}, columns=columns, configs=configs)
    figures.learning_rates(table).savefig(tmp_path / "rates.png")
    figures.first_steps(table).savefig(tmp_path / "steps.png")


def test_recipes_compose_and_name_real_functions() -> None:
    from shared.reproduction.verdicts import load_function

    for recipe in recipes("nonzero_lora"):
        for name in recipe.profiles:
            here = recipe.at(name)
            rows, columns = list(here.rows.values()), list(here.columns.values())
            for row, column in [(row, columns[0]) for row in rows] + [
                (rows[0], column) for column in columns
            ]:
                compose(Config, here.config, here.profiles[name].config, row.config, column.config)
            for claim in here.claims:
                assert claim.function is None or callable(load_function(claim.function))
        for name in recipe.figures:
            assert callable(load_function(name))


def test_first_steps_reads_the_runs_of_the_default_table() -> None:
    from shared.reproduction.plan import make_plan

    keys = {
        table: {run.key for run in make_plan(load_recipe("nonzero_lora", table), "laptop", None, []).runs}
        for table in ("learning_rates", "first_steps")
    }
    assert len(keys["learning_rates"]) == 100 and len(keys["first_steps"]) == 20
    assert keys["first_steps"] < keys["learning_rates"]
