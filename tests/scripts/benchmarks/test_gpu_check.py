"""The GPU checks on the CPU, where they can rot least, and the runner's budget and verdicts."""

from __future__ import annotations

import importlib.util
import time
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).parent.parent.parent.parent / "scripts" / "benchmarks"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(Path(name).stem, FOLDER / name)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["matmul", "same_result_as_cpu", "resume", "precisions"])
def test_house_checks_hold_on_the_cpu(name: str) -> None:
    checks = dict(load("gpu_checks/house.py").checks())
    figures = checks[name](accelerator="cpu")
    assert figures and all(value == value for value in figures.values())


def test_every_file_of_checks_is_collected() -> None:
    names = [name for name, _ in load("gpu_check.py").collect()]
    assert names[0] == "house/matmul" and len(names) == len(set(names))
    assert {name.split("/")[0] for name in names} == {
        path.stem for path in (FOLDER / "gpu_checks").glob("*.py")
    }


def test_a_failing_a_slow_and_a_late_check(capsys: pytest.CaptureFixture) -> None:
    def wrong() -> dict:
        raise AssertionError("1 is not 2")

    checks = [("good", lambda: {"x": 1}), ("wrong", wrong), ("slow", lambda: time.sleep(60)), ("late", dict)]
    good, bad, slow, late = load("gpu_check.py").run_checks(checks, budget=2.5)
    assert (good["status"], good["figures"]) == ("passed", {"x": 1})
    assert (bad["status"], bad["error"]) == ("failed", "AssertionError: 1 is not 2")
    assert slow["status"] == "failed" and "budget" in slow["error"] and slow["seconds"] < 3
    assert late["status"] == "skipped"


def test_without_a_gpu_nothing_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture, tmp_path: Path
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("sys.argv", ["gpu_check.py", "--json", str(tmp_path / "out.json")])
    assert load("gpu_check.py").main() == 0
    assert capsys.readouterr().out == "no GPU\n"
    assert not (tmp_path / "out.json").exists()
