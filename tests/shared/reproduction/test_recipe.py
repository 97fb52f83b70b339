"""Recipes: read completely, and every mistake in one named with the nearest right word."""

from __future__ import annotations

from pathlib import Path

import pytest

from shared.errors import UserError
from shared.reproduction.recipe import Selector, load_recipe, parse_condition, recipes, tables


def edit(root: Path, old: str, new: str, table: str = "main") -> None:
    path = root / "configs" / "toy" / f"{table}.yaml"
    text = path.read_text()
    assert text.count(old) == 1
    path.write_text(text.replace(old, new))


def test_recipe_is_read_completely(toy: Path) -> None:
    recipe = load_recipe("toy")
    assert (recipe.table, recipe.default, recipe.higher_is_better) == ("main", True, False)
    assert list(recipe.rows) == ["plain", "bias"]
    assert recipe.rows["bias"].config == {"model": {"bias": True}}
    assert recipe.columns["slow"].value == 0.01
    assert recipe.profiles["laptop"].seeds == (0, 1, 2)
    faster, slower = recipe.claims
    assert (faster.kind, faster.function, faster.arguments) == (
        "function",
        "projects.toy.claims:gain",
        {"row": "plain"},
    )
    assert (slower.left, slower.condition) == (Selector("*", "slow"), ("<", 0.0))


@pytest.mark.parametrize(
    ("paper", "table", "message"),
    [
        ("tiy", None, "no paper called 'tiy'. Did you mean 'toy'?"),
        ("toy", "mian", "no table 'mian'. Did you mean 'main'?"),
    ],
)
def test_unknown_names_offer_the_nearest(toy: Path, paper: str, table: str | None, message: str) -> None:
    with pytest.raises(UserError, match=message.replace("?", r"\?")):
        load_recipe(paper, table)


def test_unknown_profile_row_and_column_offer_the_nearest(toy: Path) -> None:
    recipe = load_recipe("toy")
    with pytest.raises(UserError, match=r"only: laptop, paper\. Did you mean 'laptop'"):
        recipe.at("labtop")
    with pytest.raises(UserError, match=r"no row 'plan'\. Did you mean 'plain'"):
        recipe.row("plan")
    with pytest.raises(UserError, match=r"no column 'fats'\. Did you mean 'fast'"):
        recipe.column("fats")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("title: Toy lines", "titel: Toy lines", "unknown key 'titel'. Did you mean 'title'"),
        ("metric: test/error", "", "missing metric"),
        ("row: plain}", "row: plain, x", "not readable as YAML"),
        ("  slow: {label: slow, value", "  1e-3: {label: slow, value", "put it in quotes"),
        ("value: 0.01", "value: small", "columns.slow.value: expected a number, found 'small'"),
        ("seeds: [0, 1, 2], minutes", "seeds: [0, 1, 1], minutes", "a seed is listed twice"),
        ("seeds: [0, 1, 2], minutes", "seeds: 3, minutes", "expected a list of whole numbers"),
        ("column: slow}", "column: slwo}", "claim slower at profile laptop: .* Did you mean 'slow'"),
        ('holds_if: "> 0"', 'holds_if: "positive"', "expected an operator"),
        ("id: slower", "id: faster", "two claims have the same id"),
        ('holds_if: "< 0"', 'holds_if: "< 0"\n    interval: normal', "interval is t or bootstrap"),
        ("function: projects.toy.claims:gain", "", "expected one of difference, ratio, function"),
    ],
)
def test_mistakes_in_a_recipe_are_named(toy: Path, old: str, new: str, message: str) -> None:
    edit(toy, old, new)
    with pytest.raises(UserError, match=f"configs/toy/main.yaml: .*{message}"):
        load_recipe("toy", "main")


def test_duplicate_row_is_an_error(toy: Path) -> None:
    edit(toy, "  bias: {label", "  plain: {label")
    with pytest.raises(UserError, match="duplicate key plain"):
        load_recipe("toy", "main")


def test_profile_replaces_rows_and_limits_claims(toy: Path) -> None:
    edit(toy, "config: {steps: 12}}", "rows: {bias: {config: {model: {bias: true}}}}, tolerance: 0.5}")
    edit(toy, "  - id: faster", "  - id: faster\n    profiles: [laptop]")
    recipe = load_recipe("toy")
    assert list(recipe.at("paper").rows) == ["bias"] and list(recipe.at("laptop").rows) == ["plain", "bias"]
    assert [claim.id for claim in recipe.at("paper").claims] == ["slower"]
    assert recipe.at("paper").tolerance == 0.5 and recipe.at("laptop").tolerance is None


def test_a_table_may_extend_another(toy: Path) -> None:
    (toy / "configs/toy/long.yaml").write_text(
        "extends: main\ntitle: Longer\nconfig: {steps: 99}\nrows: {only: {}}\nclaims: []\n"
        "profiles: {paper: null}\n"
    )
    long = load_recipe("toy", "long")
    assert long.title == "Longer" and list(long.rows) == ["only"] and list(long.columns) == ["slow", "fast"]
    assert long.config["steps"] == 99 and long.config["trainer"]["max_epochs"] == 1
    assert list(long.profiles) == ["laptop"]
    assert not long.default and tables("toy") == ["long", "main"]


@pytest.mark.parametrize(
    ("text", "message"), [("extends: mian\n", "Did you mean 'main'"), ("extends: odd\n", "in a circle")]
)
def test_wrong_extends(toy: Path, text: str, message: str) -> None:
    (toy / "configs/toy/odd.yaml").write_text(text)
    with pytest.raises(UserError, match=message):
        load_recipe("toy", "odd")


def test_exactly_one_default(toy: Path) -> None:
    edit(toy, "default: true", "default: false")
    with pytest.raises(UserError, match="Exactly one table of toy"):
        recipes("toy")


def test_conditions() -> None:
    assert parse_condition(">= -1.5e-2") == (">=", -0.015)
    for wrong in ("= 0", "> ", "> 1 2", "> e", "0"):
        with pytest.raises(UserError, match="expected an operator"):
            parse_condition(wrong)
