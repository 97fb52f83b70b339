"""The benchmark of ReCIT's evaluation and its checks for a GPU, small and on a CPU."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "scripts" / "benchmarks"


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"benchmark_{path.parent.name}_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_batches_answer_as_the_loop_does_and_sooner(tmp_path: Path, monkeypatch, capsys) -> None:
    module = load(BENCHMARKS / "recit_episodes.py")
    monkeypatch.setattr(module, "TARGETS", {"ISIC": (7, 60)})
    file = tmp_path / "episodes.json"
    arguments = [
        "--episodes",
        "150",
        "--repeats",
        "1",
        "--targets",
        "ISIC",
        "--threads",
        "1",
        "--json",
        str(file),
    ]
    monkeypatch.setattr(sys, "argv", ["recit_episodes.py", *arguments])
    assert module.main() == 0
    found = json.loads(file.read_text())
    assert json.loads(capsys.readouterr().out) == found and len(found["rows"]) == 2
    for row in found["rows"]:
        assert row["answers_that_differ"] <= 1 and row["accuracy_loop"] > 25
        assert row["accuracy_batched"] == pytest.approx(row["accuracy_loop"], abs=0.01)
        assert row["loop_s"] > row["batched_s"]


def test_gpu_checks_pass_on_a_cpu() -> None:
    module = load(BENCHMARKS / "gpu_checks" / "recit.py")
    assert len(module.checks()) == 3
    assert module.disruption_as_on_a_cpu("cpu")["official"]["largest"] == 0
    assert module.episodes("cpu", 50)["answers_that_differ"] == 0


@pytest.mark.slow
def test_the_papers_steps_on_a_cpu() -> None:
    module = load(BENCHMARKS / "gpu_checks" / "recit.py")
    found = module.paper_steps("cpu", size=112, batch=1)
    assert len(found) == 6
