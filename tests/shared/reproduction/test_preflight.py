"""The check before anything runs: everything that is wrong, at once."""

from __future__ import annotations

import shutil
from collections import namedtuple
from pathlib import Path

import pytest

from shared.errors import UserError
from shared.reproduction import preflight as preflight_module
from shared.reproduction.plan import Plan, make_plan
from shared.reproduction.preflight import Gpu, preflight, visible_gpus
from shared.reproduction.recipe import load_recipe
from shared.reproduction.store import RunStore


def plan(*overrides: str, seeds: int | None = None) -> Plan:
    return make_plan(load_recipe("toy"), "laptop", seeds=seeds, overrides=overrides)


@pytest.fixture
def store(toy: Path) -> RunStore:
    return RunStore(toy / "runs")


def finish(store: RunStore, runs: list, seconds: float = 0.0) -> None:
    for spec in runs:
        store.begin(spec)
        store.end(spec, "finished", {"test/error": 1.0}, **({"seconds": seconds} if seconds else {}))


def test_what_is_left_to_run(toy: Path, store: RunStore) -> None:
    first = plan()
    finish(store, first.runs[:4], seconds=30.0)
    check = preflight(first, store, jobs=2)
    assert ([len(check.todo), len(check.reused), check.stale], check.problems) == ([8, 4, []], [])
    assert check.minutes == pytest.approx(8 * 30 / 2 / 60)  # from the runs that are finished
    module = toy / "projects/toy/module.py"
    module.write_text(module.read_text() + "\nMORE = 1\n")
    second = plan()
    check = preflight(second, store)
    assert [spec.name for spec in check.stale] == [spec.name for spec in second.runs[:4]]
    assert len(check.todo) == 8
    assert len(preflight(second, store, rerun_stale=True).todo) == 12
    finish(store, second.runs)
    assert preflight(second, store, rerun_stale=True).todo == []
    assert len(preflight(second, store, rerun=True).todo) == 12


def test_time_and_jobs_before_anything_ran(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight_module, "cpu_cores", lambda: 16)
    check = preflight(plan(), store)
    assert (check.minutes, check.jobs, check.gpus) == (
        1.0,
        12,
        [],
    )  # the recipe's minute; no more jobs than runs
    assert preflight(plan(seeds=6), store).minutes == 2.0
    with pytest.raises(UserError, match="--jobs: expected at least 1"):
        preflight(plan(), store, jobs=0)


def test_all_problems_at_once(toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import shared.data.catalogue as catalogue

    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(0, 0, 10_000_000))
    monkeypatch.setattr(catalogue, "missing", lambda items: [f"{item.name} is missing" for item in items])
    monkeypatch.setattr(preflight_module, "visible_gpus", list)
    check = preflight(plan("needs=metamath", "trainer.accelerator=gpu"), RunStore(toy / "runs"))
    with pytest.raises(UserError) as caught:
        check.require()
    text = str(caught.value)
    assert text.startswith("3 thing(s) to mend")
    assert "disk: 12 runs need about 0.7 GB" in text and "metamath is missing" in text
    assert "trainer.accelerator=gpu needs a GPU, and none is visible" in text


def test_missing_data_says_where_to_get_it(store: RunStore, tmp_path: Path) -> None:
    check = preflight(plan("needs=metamath", f"data.root={tmp_path}"), store)
    assert len(check.problems) == 1
    assert "metamath" in check.problems[0] and str(tmp_path) in check.problems[0]


def test_embedded_data_is_fetched_and_a_refusal_is_a_problem(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    import shared.data.catalogue as catalogue

    there: set[str] = set()
    monkeypatch.setattr(catalogue, "missing", lambda items: [i.name for i in items if i.name not in there])
    assert preflight(plan("needs=minilm"), store, get=None).problems == ["minilm"]
    fetched: list[str] = []

    def get(name: str) -> None:
        fetched.append(name)
        there.add(name)

    assert preflight(plan("needs=minilm"), store, get=get).problems == []
    assert fetched == ["minilm"]

    def refuse(name: str) -> None:
        raise UserError(f"{name}: the checksum is wrong")

    there.clear()
    assert preflight(plan("needs=minilm"), store, get=refuse).problems == ["minilm: the checksum is wrong"]


def test_an_unwritable_store_is_a_problem(toy: Path) -> None:
    (toy / "file").write_text("")
    check = preflight(plan(), RunStore(toy / "file"))
    assert len(check.problems) == 1 and "PAPERWORKS_RUNS" in check.problems[0]


def test_devices_and_memory(toy: Path, store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight_module, "visible_gpus", lambda: [Gpu("0", 16.0), Gpu("1", 24.0)])
    auto = plan("trainer.accelerator=auto")
    assert preflight(auto, store).jobs == 2
    assert preflight(plan(), store).gpus == []  # accelerator: cpu
    assert preflight(plan("trainer.accelerator=gpu", "trainer.devices=2"), store).jobs == 1
    problems = preflight(plan("trainer.accelerator=gpu", "trainer.devices=4"), store).problems
    assert problems == ["device: each run takes 4 GPUs (trainer.devices), 2 are visible."]
    recipe = toy / "configs/toy/main.yaml"
    recipe.write_text(recipe.read_text().replace("minutes: 1}", "minutes: 1, memory_gb: 10, disk_gb: 0.001}"))
    auto = plan("trainer.accelerator=auto")
    assert preflight(auto, store).problems == []
    assert "4 run(s) at once need about 40.0 GB" not in preflight(auto, store, jobs=2).problems
    assert "GPU memory: 2 run(s) at once need about 20.0 GB, 16.0 GB are there" in " ".join(
        preflight(auto, store, jobs=4).problems
    )
    monkeypatch.setenv("PAPERWORKS_SUBMITIT_CLUSTER", "local")
    assert preflight(auto, store, launcher="slurm", jobs=4).problems == []  # the cluster's to know
    monkeypatch.setattr(preflight_module, "_free_memory_gb", lambda: 15.0)
    assert "memory: 2 run(s) at once need about 20.0 GB" in " ".join(
        preflight(plan(), store, jobs=2).problems
    )


def test_visible_gpus_follow_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho '0, GPU-aa, 16384'\necho '1, GPU-bb, 24576'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert visible_gpus() == [Gpu("0", 16.0), Gpu("1", 24.0)]
    for visible, expected in {"1": ["1"], "1,0": ["1", "0"], "GPU-bb": ["GPU-bb"], "": []}.items():
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert [gpu.id for gpu in visible_gpus()] == expected
    tool.write_text("#!/bin/sh\nexit 9\n")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert visible_gpus() == []


def test_overriding_what_tells_rows_apart_is_noted(store: RunStore) -> None:
    assert preflight(plan("optimizer.lr=1"), store).notes == [
        "optimizer.lr is what tells the columns apart, and the command line sets it."
    ]
    assert preflight(plan("steps=2"), store).notes == []
