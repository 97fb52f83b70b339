"""Launchers: sharing out devices, stopping, asking a cluster (whole tables: test_reproduce.py)."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from shared.reproduction import launchers
from shared.reproduction.execute import BUSY, Outcome
from shared.reproduction.launchers import Job, Stop, run_local, run_slurm, stoppable
from shared.reproduction.plan import RunSpec, make_plan
from shared.reproduction.recipe import load_recipe
from shared.reproduction.store import RunStore


@pytest.fixture
def specs(toy: Path) -> list[RunSpec]:
    overrides = ["trainer.devices=2", "slurm.gpus_per_node=2", "slurm.partition=fast", "slurm.timeout_min=7"]
    return make_plan(load_recipe("toy"), "laptop", seeds=1, overrides=overrides).runs


def test_gpus_are_shared_out_whole() -> None:
    assert launchers._share([], 3, 1) == [None] * 3
    assert launchers._share(["0", "1", "2"], 3, 1) == ["0", "1", "2"]
    assert launchers._share(["0", "1", "2", "3"], 2, 2) == ["0,1", "2,3"]
    assert launchers._share(["4", "7"], 3, 1) == ["4", "7", "4"]  # more jobs than GPUs


def test_ctrl_c_stops_then_kills_and_handlers_come_back(tmp_path: Path) -> None:
    said: list[str] = []
    before = signal.getsignal(signal.SIGINT)
    with stoppable(tmp_path / "below", said.append) as stop:
        assert stop.file.parent.parent == tmp_path / "below"
        stop.tell()
        assert (stop.asked, stop.kill, stop.file.exists(), said) == (False, False, False, [])
        os.kill(os.getpid(), signal.SIGINT)
        stop.tell()
        stop.tell()
        assert (stop.asked, stop.kill, stop.file.exists(), len(said)) == (True, False, True, 1)
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.kill
    assert not stop.file.parent.exists() and signal.getsignal(signal.SIGINT) is before


def test_nothing_starts_after_a_stop(
    toy: Path, specs: list[RunSpec], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop = Stop(tmp_path, print)
    stop()
    told: list[object] = []
    outcomes = run_local(specs, toy / "runs", jobs=2, stop=stop, report=lambda *event: told.append(event))
    assert [outcome.state for outcome in outcomes] == ["interrupted"] * 4 and told == []
    monkeypatch.setenv("PAPERWORKS_SUBMITIT_CLUSTER", "debug")
    outcomes = run_slurm(specs, toy / "runs", stop=stop, report=lambda *event: told.append(event))
    assert [outcome.state for outcome in outcomes] == ["interrupted"] * 4 and told == []


def test_what_a_cluster_job_is_asked_for(specs: list[RunSpec]) -> None:
    assert launchers._slurm_parameters(specs[0]) == {
        "timeout_min": 7,
        "cpus_per_task": 2,
        "mem_gb": 16,
        "nodes": 1,
        "tasks_per_node": 2,
        "gpus_per_node": 2,
        "slurm_partition": "fast",
    }


def test_a_machine_without_a_cluster_is_a_problem(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("PAPERWORKS_SUBMITIT_CLUSTER", raising=False)
    assert "no srun here" in launchers.cluster_problems()[0]
    monkeypatch.setenv("PAPERWORKS_SUBMITIT_CLUSTER", "local")
    assert launchers.cluster_problems() == []
    monkeypatch.setattr(launchers.importlib.util, "find_spec", lambda name: None)
    assert "needs the package submitit" in launchers.cluster_problems()[0]


def test_a_cluster_job_waits_for_another_and_can_be_queued_again(
    specs: list[RunSpec], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    answers = [Outcome(specs[0].id, BUSY), Outcome(specs[0].id, "finished")]
    monkeypatch.setattr(launchers, "execute", lambda *_, **__: answers.pop(0))
    monkeypatch.setattr(launchers.time, "sleep", lambda _: None)
    job = Job()
    assert job(specs[0], tmp_path, True, tmp_path / "stop").state == "finished"
    again = job.checkpoint(specs[0], tmp_path, True, tmp_path / "stop")
    assert again.function is job
    assert again.args == (specs[0], tmp_path, False, tmp_path / "stop")  # goes on, does not start over


def test_a_vanished_worker_is_written_down(toy: Path, specs: list[RunSpec]) -> None:
    store = RunStore(toy / "runs")
    store.begin(specs[0])
    outcome = launchers._killed(specs[0], store, on_request=False)
    assert outcome.state == "failed" and "killed" in outcome.error
    assert store.find(specs[0]).state == "failed" and "killed" in Path(outcome.log).read_text()
    store.begin(specs[1])
    assert launchers._killed(specs[1], store, on_request=True).state == "interrupted"
    store.begin(specs[2])
    store.end(specs[2], "finished", {"test/error": 1.0})  # killed after its last word
    assert launchers._killed(specs[2], store, on_request=False).state == "finished"
