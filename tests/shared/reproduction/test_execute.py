"""One run in this process: its outcome, its log, its resumption, whatever goes wrong inside."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
import torch

from shared.reproduction import execute as execute_module
from shared.reproduction.execute import Outcome, captured, execute
from shared.reproduction.plan import RunSpec, make_plan
from shared.reproduction.recipe import load_recipe
from shared.reproduction.store import RunStore


@pytest.fixture
def spec(toy: Path) -> RunSpec:
    """The run of seed 1 at the fast rate, which is the one that TOY_TROUBLE can break."""
    plan = make_plan(load_recipe("toy"), "laptop", overrides=["api_token=hush"])
    return next(spec for spec in plan.runs if spec.id == plan.cell("plain", "fast").runs[1])


def executions(toy: Path) -> int:
    return len((toy / "count.txt").read_text().splitlines())


def test_a_run_is_stored_and_reused(toy: Path, spec: RunSpec) -> None:
    store = RunStore(toy / "runs")
    outcome = execute(spec, store.root)
    assert (outcome.state, outcome.reused) == ("finished", False)
    found = store.find(spec)
    assert found.metrics["test/error"] < 2.0 and found.status["device"] == "cpu"
    assert (found.folder / "history.csv").read_text().count("train/error") == 8
    assert all(
        "hush" not in (found.folder / name).read_text() for name in ("spec.json", "config.yaml", "log.txt")
    )
    assert spec.id in found.log.read_text()

    again = execute(spec, store.root)
    assert (again.state, again.reused, executions(toy)) == ("finished", True, 1)
    afresh = execute(spec, store.root, rerun=True)
    assert (afresh.state, afresh.reused, executions(toy)) == ("finished", False, 2)
    assert store.find(spec).metrics == found.metrics  # a run is a function of its configuration and seed


def test_a_run_that_raises_is_failed_with_its_log(
    toy: Path, spec: RunSpec, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture
) -> None:
    monkeypatch.setenv("TOY_TROUBLE", "raise:1")
    outcome = execute(spec, toy / "runs")
    assert (outcome.state, outcome.error) == ("failed", "ValueError: the toy breaks as it was told")
    log = Path(outcome.log).read_text()
    assert "about to go wrong" in log  # written past Python's stdout
    assert "Traceback" in log and "in training_step" in log
    assert "about to go wrong" not in capfd.readouterr().out
    assert RunStore(toy / "runs").find(spec).status["error"] == outcome.error
    monkeypatch.delenv("TOY_TROUBLE")
    assert execute(spec, toy / "runs").state == "finished"


def interrupt(spec: RunSpec, root: Path, after: int) -> Outcome:
    """Ask to stop when `after` batches are through; the questions before the first batch do not count."""
    asked = iter(range(10_000))
    return execute(spec, root, stopped=lambda: next(asked) >= after)


def test_interrupted_and_resumed_equals_uninterrupted(toy: Path, spec: RunSpec) -> None:
    straight, broken = RunStore(toy / "straight"), RunStore(toy / "broken")
    execute(spec, straight.root)
    outcome = interrupt(spec, broken.root, after=4)
    assert outcome.state == "interrupted" and broken.find(spec).state == "interrupted"
    checkpoint = broken.folder(spec) / "checkpoints" / "last.ckpt"
    assert 0 < torch.load(checkpoint, weights_only=True)["global_step"] < 8
    assert execute(spec, broken.root).state == "finished"
    assert broken.find(spec).metrics == straight.find(spec).metrics
    histories = [(store.folder(spec) / "history.csv").read_text() for store in (straight, broken)]
    assert histories[0] == histories[1]


def test_a_truncated_checkpoint_is_set_aside_and_said_so(
    toy: Path, spec: RunSpec, caplog: pytest.LogCaptureFixture
) -> None:
    straight, broken = RunStore(toy / "straight"), RunStore(toy / "broken")
    execute(spec, straight.root)
    interrupt(spec, broken.root, after=4)
    checkpoint = broken.folder(spec) / "checkpoints" / "last.ckpt"
    checkpoint.write_bytes(checkpoint.read_bytes()[:-200])
    outcome = execute(spec, broken.root)
    assert outcome.state == "finished"
    assert "starting over" in caplog.text
    assert broken.find(spec).metrics == straight.find(spec).metrics


def test_a_stop_file_stops(toy: Path, spec: RunSpec) -> None:
    (toy / "stop").touch()
    assert execute(spec, toy / "runs", stop_file=toy / "stop").state == "interrupted"
    assert not (toy / "count.txt").exists()


def test_a_run_that_another_process_works_on_is_left_alone(toy: Path, spec: RunSpec) -> None:
    with RunStore(toy / "runs").lock(spec):
        assert execute(spec, toy / "runs").state == "busy"
    assert not (toy / "count.txt").exists()


def test_a_full_disk_is_an_outcome(toy: Path, spec: RunSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(execute_module.RunStore, "end", full)
    outcome = execute(spec, toy / "runs")
    assert outcome.state == "failed" and "No space left on device" in outcome.error
    monkeypatch.undo()
    assert RunStore(toy / "runs").find(spec).state == "interrupted"


def test_an_unwritable_store_is_an_outcome(toy: Path, spec: RunSpec) -> None:
    (toy / "file").write_text("")
    outcome = execute(spec, toy / "file")
    assert outcome.state == "failed" and "file" in outcome.error


def test_capture_takes_all_and_gives_back(tmp_path: Path, capfd: pytest.CaptureFixture) -> None:
    log = tmp_path / "log.txt"
    with pytest.raises(KeyError), captured(log):
        print("by python")
        os.write(2, b"by descriptor\n")
        os.system("echo by a child")
        raise KeyError
    print("after")
    os.write(1, b"after too\n")
    assert sorted(log.read_text().splitlines()) == ["by a child", "by descriptor", "by python"]
    assert capfd.readouterr().out == "after\nafter too\n"


def test_the_cluster_s_second_task_keeps_no_books(
    toy: Path, spec: RunSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_PROCID", "1")
    called = []
    monkeypatch.setattr(execute_module, "_train", lambda *arguments: called.append(arguments))
    with RunStore(toy / "runs").lock(spec):  # the first task holds it
        assert execute(spec, toy / "runs").state == "finished"
    assert len(called) == 1 and not (toy / "runs" / "toy" / spec.id).exists()
