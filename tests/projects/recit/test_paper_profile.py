"""The paper profile cannot rot: its cells are stepped on generated files in the published layouts."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from projects.recit import build, requirements
from projects.recit.config import Config
from projects.recit.data import file_lists, load_pool
from shared.reproduction.published import find_cell, read_tables
from shared.reproduction.recipe import Recipe, load_recipe, tables
from shared.training.config import base_layer, compose
from shared.training.experiment import run_experiment

PAPER = "recit"
TABLES = ("bscd_1shot", "bscd_5shot", "ablation", "phenomenon")
SMALL = {
    "trainer": {"accelerator": "cpu", "max_epochs": 2, "limit_train_batches": 1, "limit_val_batches": 0},
    "wandb": {"mode": "disabled"},
    "network": {"pretrained": False, "image_size": 112, "width": 12, "depth": 2, "heads": 2},
    "episodes": {"episodes": 30, "queries": 3},
    "domains": {"batch_size": 2},
}


def at_paper(table: str) -> Recipe:
    return load_recipe(PAPER, table).at("paper")


def layers(recipe: Recipe, row: str, column: str) -> list[dict[str, Any]]:
    profile = recipe.profiles["paper"]
    return [
        base_layer(),
        recipe.config,
        profile.config,
        recipe.rows[row].config,
        recipe.columns[column].config,
    ]


CELLS = [("bscd_5shot", row, "target") for row in ("frozen", "rpe", "random_cls", "recit", "recit_positive")]
CELLS += [("ablation", "warmup", "target_1shot"), ("ablation", "frequency", "cka")]
CELLS += [("phenomenon", "sp_target", "p_8"), ("phenomenon", "spa_cka", "p_7")]
CELLS += [("phenomenon", "spp_source", "p_14"), ("bscd_1shot", "none", "oracle_isic")]


@pytest.mark.parametrize(("table", "row", "column"), CELLS)
def test_a_cell_trains(table: str, row: str, column: str, real_root: Path, tmp_path: Path) -> None:
    """Two epochs of a step by the recipe's own config, so that both stages run; a shrunk backbone."""
    recipe = at_paper(table)
    tested = {"trainer": {"limit_val_batches": 1.0 if row == "frequency" else 0}}
    config = compose(Config, *layers(recipe, row, column), SMALL, tested, {"data": {"root": str(real_root)}})
    metrics = run_experiment(build, config, tmp_path, group=table, name=row)
    for other in recipe.columns.values():
        metric = other.metric or recipe.rows[row].metric or recipe.metric
        assert math.isfinite(metrics[metric]), metric


def test_the_same_from_file_lists(real_root: Path, tmp_path: Path) -> None:
    recipe = at_paper("bscd_5shot")
    small = SMALL | {"trainer": SMALL["trainer"] | {"max_epochs": 1}}
    found = []
    for layout in ("folders", "lists"):
        config = compose(Config, *layers(recipe, "none", "target"), small, {"data": {"root": str(real_root)}})
        if layout == "lists":
            for name in (config.domains.source, *config.domains.targets):
                for part in ("base", "novel"):
                    path = tmp_path / file_lists.FOLDERS[name] / f"{part}.json"
                    file_lists.write_list(load_pool(name, part, config), path)
            config.data.root, config.domains.layout = str(tmp_path), "lists"
        found.append(run_experiment(build, config, tmp_path / layout, group="g", name="n"))
    assert found[0] == found[1]


@pytest.mark.parametrize("table", TABLES)
def test_the_recipe_of_the_official_scripts(table: str) -> None:
    recipe = at_paper(table)
    assert 0 in recipe.profiles["paper"].seeds
    for row in recipe.rows:
        for column in recipe.columns:
            config = compose(Config, *layers(recipe, row, column))
            own, rates = config.recit, config.optimizer
            assert config.network.name == "vit_small_patch16_224.dino" and config.network.pretrained
            assert (config.network.image_size, config.domains.batch_size) == (224, 16)
            assert (config.trainer.max_epochs, config.trainer.precision) == (50, "32-true")
            assert (rates.lr, rates.encoder_multiplier, rates.weight_decay) == (1e-3, 1e-4, 0.01)
            assert (own.smallest, own.largest, own.warmup_epochs) == (14, 32, 1)
            assert (own.threshold, own.spread) == (0.3, 1000) and config.domains.augment
            episodes = config.episodes
            assert (episodes.episodes, episodes.ways, list(episodes.shots), episodes.queries) == (
                4000,
                5,
                [1, 5],
                15,
            )
            assert config.domains.source == "mini-imagenet"
            assert list(config.domains.targets) == ["crop-diseases", "eurosat", "isic", "chestx"]
            if table == "phenomenon":
                assert own.pieces in (1, 2, 4, 7, 8, 14) and 224 % own.pieces == 0
            if row == "recit":
                assert own.weights == "official"


def test_what_a_run_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    recipe = at_paper("bscd_5shot")
    needs = requirements(compose(Config, *layers(recipe, "recit", "isic")))
    names = [need.name for need in needs]
    assert names[-1] == "timm/vit_small_patch16_224.dino" and needs[-1].path is None
    assert names[:-1] == ["mini-imagenet", "crop-diseases", "eurosat", "isic2018-classification", "chestx"]


def test_published_figures_stand_beside_the_oracle_alone_and_are_a_third_partys() -> None:
    for table in ("bscd_1shot", "bscd_5shot"):
        recipe = at_paper(table)
        for column in recipe.columns.values():
            published = find_cell(PAPER, recipe.published, recipe.rows["recit"].published, column.published)
            assert (published is not None) == (column.metric or "").startswith("oracle_epoch/")
            if published is not None:
                assert "third-party" in published.provenance
    for table in read_tables(PAPER)["tables"]:
        for row in table["rows"]:
            *targets, average = row["cells"]
            assert sum(targets) / 4 == pytest.approx(average, abs=0.011)


def test_every_table_is_of_a_profile_that_is_tested() -> None:
    assert set(TABLES) == {name for name in tables(PAPER) if "paper" in load_recipe(PAPER, name).profiles}
    assert {"digits", "vit_s"} <= set(tables(PAPER))
    assert load_recipe(PAPER).table == "digits"
