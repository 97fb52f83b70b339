"""Plans: which runs a table needs, and what names them."""

from __future__ import annotations

from pathlib import Path

import pytest

from shared.errors import UserError
from shared.reproduction.plan import make_plan
from shared.reproduction.recipe import load_recipe


def test_plan_has_every_cell_and_runs_seed_by_seed(toy: Path) -> None:
    plan = make_plan(load_recipe("toy"), "laptop")
    assert [(cell.row, cell.column) for cell in plan.cells] == [
        ("plain", "slow"),
        ("plain", "fast"),
        ("bias", "slow"),
        ("bias", "fast"),
    ]
    assert [spec.seed for spec in plan.runs] == [0] * 4 + [1] * 4 + [2] * 4
    assert len({spec.id for spec in plan.runs}) == 12
    spec = next(spec for spec in plan.runs if spec.id == plan.cell("bias", "fast").runs[2])
    assert (spec.group, spec.name) == ("toy/main", "bias/fast/seed 2")
    assert spec.config["model"]["bias"] is True and spec.config["optimizer"]["lr"] == 0.1
    assert spec.config["seed"] == 2 and spec.config["trainer"]["precision"] == "32-true"
    with pytest.raises(UserError, match="Did you mean 'bias'"):
        plan.cell("bia", "fast")


def test_layers_lie_over_each_other_in_order(toy: Path) -> None:
    recipe = load_recipe("toy")
    assert {spec.config["steps"] for spec in make_plan(recipe, "laptop").runs} == {8}
    assert {spec.config["steps"] for spec in make_plan(recipe, "paper").runs} == {12}
    plan = make_plan(recipe, "paper", overrides=["steps=3", "optimizer.lr=1e-3"])
    assert {spec.config["steps"] for spec in plan.runs} == {3}
    assert {spec.config["optimizer"]["lr"] for spec in plan.runs} == {0.001}


def test_equal_cells_share_their_runs(toy: Path) -> None:
    plan = make_plan(load_recipe("toy"), "laptop", overrides=["optimizer.lr=0.5"])
    assert len(plan.runs) == 6
    assert plan.cell("plain", "slow").runs == plan.cell("plain", "fast").runs


def test_what_does_not_change_the_result_does_not_change_the_id(toy: Path) -> None:
    recipe = load_recipe("toy")
    plain = [spec.id for spec in make_plan(recipe, "laptop").runs]
    other = ["runtime.threads=3", "wandb.project=x", "data.root=/elsewhere", "slurm.mem_gb=1"]
    assert [spec.id for spec in make_plan(recipe, "laptop", overrides=other).runs] == plain
    assert not set(plain) & {spec.id for spec in make_plan(recipe, "laptop", overrides=["steps=9"]).runs}


def test_changed_source_changes_the_id_and_keeps_the_key(toy: Path) -> None:
    recipe = load_recipe("toy")
    before = make_plan(recipe, "laptop").runs
    module = toy / "projects/toy/module.py"
    module.write_text(module.read_text().replace("0.1 * torch", "0.2 * torch"))
    after = make_plan(recipe, "laptop").runs
    assert [spec.key for spec in before] == [spec.key for spec in after]
    assert not {spec.id for spec in before} & {spec.id for spec in after}


def test_seeds_are_cut_or_continued(toy: Path) -> None:
    recipe = load_recipe("toy")
    assert make_plan(recipe, "laptop", seeds=2).seeds == (0, 1)
    assert make_plan(recipe, "laptop", seeds=5).seeds == (0, 1, 2, 3, 4)
    with pytest.raises(UserError, match="at least 1"):
        make_plan(recipe, "laptop", seeds=0)
    with pytest.raises(UserError, match="at most 10000, found 100000000"):
        make_plan(recipe, "laptop", seeds=100_000_000)
    with pytest.raises(UserError, match=r"cannot be resolved: .*'nowhere' not found"):
        make_plan(recipe, "laptop", overrides=["data.root=${nowhere}"])
    with pytest.raises(UserError, match="use --seeds"):
        make_plan(recipe, "laptop", overrides=["seed=3"])
