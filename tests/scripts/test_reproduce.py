"""`reproduce.py` end to end on the toy paper: what it computes, keeps, resumes and reports.

Every process that trains imports Lightning, which takes seconds; each test therefore plays a whole story.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from shared.errors import fail_cleanly

Script = Callable[..., subprocess.CompletedProcess]
Start = Callable[..., subprocess.Popen]


def executions(root: Path) -> list[str]:
    """One line an execution: which run it was."""
    path = root / "count.txt"
    return [line.split(maxsplit=1)[1] for line in path.read_text().splitlines()] if path.exists() else []


def finished(root: Path) -> dict[str, int]:
    """Run id -> the time its metrics were written."""
    found = {}
    for path in (root / "runs" / "toy").glob("*/status.json"):
        if json.loads(path.read_text())["state"] == "finished":
            found[path.parent.name] = (path.parent / "metrics.json").stat().st_mtime_ns
    return found


def wait_for(condition: Callable[[], object], seconds: float = 600.0) -> None:
    """Until `condition` holds; fails after `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def group_is_empty(process: subprocess.Popen) -> bool:
    """No process of the group that `process` led is running (one that only waits to be reaped is not)."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, group = stat.read_text().rpartition(")")[2].split()[:3]
        except OSError:
            continue
        if int(group) == process.pid and state != "Z" and stat.parent.name != str(process.pid):
            return False
    return True


def test_failures_resume_rerun_and_record(script: Script, toy_root: Path) -> None:
    # a run raises in the middle of the table: the others finish, and its name and log are told
    done = script("reproduce.py", "toy", TOY_TROUBLE="raise:1")
    assert done.returncode == 1
    assert "2 of 12 runs failed" in done.stderr and "Traceback" not in done.stderr
    for row in ("plain", "bias"):
        assert f"{row}/fast/seed 1: ValueError: the toy breaks as it was told" in done.stderr
    logs = [Path(line.split("log: ")[1]) for line in done.stderr.splitlines() if line.startswith("    log: ")]
    assert len(logs) == 2 and all("in training_step" in log.read_text() for log in logs)
    assert "y = w x + b" in done.stdout  # the table of what there is
    first = finished(toy_root)
    assert (len(first), len(executions(toy_root))) == (10, 12)

    # the workers of the two runs that are left are killed: same again, and the parent lives on
    done = script("reproduce.py", "toy", "main", TOY_TROUBLE="kill:1")
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert done.stderr.count("the worker process was killed") >= 2
    assert finished(toy_root) == first and len(executions(toy_root)) == 14

    # the disk fills up (no file may grow beyond a kilobyte): an error, not a crash
    done = script("reproduce.py", "toy", "--jobs", "1", TOY_TROUBLE="fill:1")
    assert done.returncode == 1 and "Traceback" not in done.stderr and "File too large" in done.stderr
    assert finished(toy_root) == first

    # the trouble is over: only the two are run
    before = len(executions(toy_root))
    done = script("reproduce.py", "toy", "--json", str(toy_root / "record.json"))
    assert done.returncode == 0, done.stderr
    assert len(executions(toy_root)) == before + 2
    assert first.items() <= finished(toy_root).items() and len(finished(toy_root)) == 12
    record = json.loads((toy_root / "record.json").read_text())
    assert list(record) == ["paper", "table", "profile", "environment", "cells", "claims", "runs"]
    assert [cell["n"] for cell in record["cells"]] == [3] * 4
    assert [claim["verdict"] for claim in record["claims"]] == ["holds", "fails"]
    assert sum(run["reused"] for run in record["runs"]) == 10
    assert all(run["status"] == "finished" and run["seconds"] > 0 for run in record["runs"])
    assert record["environment"]["command"] == "python scripts/reproduce.py toy main --profile laptop"
    report = next(line for line in done.stderr.splitlines() if line.startswith("report: ")).split()[1]
    assert Path(report).read_text().lower().startswith("<!doctype html>")

    # nothing is left to do, a claim fails, and both are said
    everything = finished(toy_root)
    done = script("reproduce.py", "toy", "--strict")
    assert done.returncode == 1 and "these claims fail: slower" in done.stderr
    assert "12 are done already, 0 to run" in done.stderr and finished(toy_root) == everything

    # the source changes: reused and marked, until asked otherwise
    module = toy_root / "projects/toy/module.py"
    module.write_text(module.read_text().replace("2 * x +", "2.0 * x +"))
    done = script("reproduce.py", "toy", "--dry-run")
    assert "12 of those done ran with earlier source code (stale)" in done.stdout
    assert "plain/slow/seed 0" in done.stdout and "--rerun-stale" in done.stdout
    done = script("reproduce.py", "toy", "--rerun-stale", "--seeds", "1")
    assert done.returncode == 0 and len(executions(toy_root)) == before + 2 + 4
    assert everything.items() <= finished(toy_root).items() and len(finished(toy_root)) == 16
    done = script("reproduce.py", "toy", "--rerun", "--seeds", "1")
    assert done.returncode == 0 and len(executions(toy_root)) == before + 2 + 8


def test_ctrl_c_and_kill_lose_nothing_finished(start: Start, script: Script, toy_root: Path) -> None:
    slow = ("reproduce.py", "toy", "steps=20", "pause=0.1", "runtime.checkpoint_every_n_steps=2")
    # Ctrl-C, as a terminal sends it: to the whole group
    process = start(*slow)
    wait_for(lambda: len(finished(toy_root)) >= 2 and len(executions(toy_root)) >= 4)
    os.killpg(process.pid, signal.SIGINT)
    said = process.communicate(timeout=300)[0]
    assert process.returncode == 130
    assert "finished runs are kept, the same command resumes" in said and "Traceback" not in said
    assert "KeyboardInterrupt" not in said
    wait_for(lambda: group_is_empty(process), 60)
    kept = finished(toy_root)
    half = list((toy_root / "runs/toy").glob("*/checkpoints/last.ckpt"))
    assert half and len(kept) + len(half) <= len(executions(toy_root))

    # kill -9 of the parent: the workers notice, save and end; nothing finished is lost
    process = start(*slow)
    wait_for(lambda: len(finished(toy_root)) >= len(kept) + 2)
    wait_for(lambda: list((toy_root / "runs/toy").glob("*/checkpoints/last.ckpt")))
    process.kill()
    process.wait()
    wait_for(lambda: group_is_empty(process), 120)
    kept |= finished(toy_root)
    assert kept.items() <= finished(toy_root).items()

    # one checkpoint is cut short, one status too: the table still ends, one execution each for what is left
    checkpoint = next((toy_root / "runs/toy").glob("*/checkpoints/last.ckpt"))
    checkpoint.write_bytes(checkpoint.read_bytes()[:100])
    (checkpoint.parent.parent / "status.json").write_text('{"state": "run')
    before = len(executions(toy_root))
    done = script(*slow)
    assert done.returncode == 0, done.stderr
    assert len(executions(toy_root)) - before == 12 - len(kept)
    assert kept.items() <= finished(toy_root).items() and len(finished(toy_root)) == 12
    assert "starting over" in (checkpoint.parent.parent / "log.txt").read_text()

    # Ctrl-C twice: at once, although a step takes a minute
    process = start("reproduce.py", "toy", "steps=21", "pause=60")
    count = len(executions(toy_root))
    wait_for(lambda: len(executions(toy_root)) > count)
    time.sleep(1)
    os.killpg(process.pid, signal.SIGINT)
    time.sleep(1)
    assert process.poll() is None
    os.killpg(process.pid, signal.SIGINT)
    said = process.communicate(timeout=60)[0]
    assert process.returncode == 130 and "Ctrl-C again to kill at once" in said and "Traceback" not in said
    wait_for(lambda: group_is_empty(process), 60)


def test_two_at_once_share_the_work(start: Start, toy_root: Path) -> None:
    arguments = ("reproduce.py", "toy", "steps=6", "pause=0.05", "--jobs", "1")
    both = [start(*arguments), start(*arguments)]
    said = [process.communicate(timeout=900)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    assert len(executions(toy_root)) == len(set(executions(toy_root))) == 12
    assert len(finished(toy_root)) == 12


def test_tracking_and_cluster_launcher(script: Script, toy_root: Path) -> None:
    recipe = (toy_root / "configs/toy/main.yaml").read_text()
    small = recipe.replace("default: true", "default: false").replace("wandb: {mode: disabled}", "wandb: {}")
    small = re.sub(r"  bias: .*\n", "", small[: small.index("claims:")])
    (toy_root / "configs/toy/small.yaml").write_text(small)
    cluster = {"PAPERWORKS_SUBMITIT_CLUSTER": "local", "TOY_TROUBLE": "raise:0"}
    done = script(
        "reproduce.py",
        *("toy", "small", "--launcher", "slurm", "--seeds", "1", "wandb.mode=offline"),
        *("slurm.timeout_min=10", "slurm.cpus_per_task=1"),
        **cluster,
    )
    assert done.returncode == 1, done.stderr  # the fast column raises, the slow one finishes
    assert "plain/fast/seed 0: ValueError: the toy breaks as it was told" in done.stderr
    assert (len(finished(toy_root)), len(executions(toy_root))) == (1, 2)
    for run in finished(toy_root):
        assert list((toy_root / "runs/toy" / run / "wandb").glob("**/*.wandb"))
    done = script(
        "reproduce.py", "toy", "small", "--launcher", "slurm", "--seeds", "1", "--dry-run", **cluster
    )
    assert "1 are done already, 1 to run, as cluster jobs" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["tiy"], "Did you mean 'toy'"),
        (["toy", "mian"], "Did you mean 'main'"),
        (["toy", "--profile", "papre"], "Did you mean 'paper'"),
        (["toy", "optimizer.rl=1"], "Did you mean 'optimizer.lr'"),
        (["toy", "--set", "steps=many"], "takes int"),
        (["toy", "--set", "steps"], "expected key=value"),
        (["toy", "--jobs", "0"], "--jobs: expected at least 1"),
        (["toy", "--jobs", "100000"], "--jobs: expected at most"),
        (["toy", "--seeds", "0"], "--seeds: expected at least 1"),
        (["toy", "--json", "."], "--json: expected the name of a file"),
        (["toy", "--json", "/proc/none/x.json"], "/proc/none/x.json cannot be written"),
    ],
)
def test_bad_usage_is_told_without_a_traceback(
    toy: Path, capsys: pytest.CaptureFixture, arguments: list[str], message: str
) -> None:
    from scripts import reproduce

    assert fail_cleanly(lambda: reproduce.main(arguments)) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ") and message in said
    assert not (toy / "count.txt").exists()


def test_all_problems_stop_the_table_before_it_starts(
    toy: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from scripts import reproduce

    (toy / "file").write_text("")
    monkeypatch.setenv("PAPERWORKS_RUNS", str(toy / "file" / "runs"))
    arguments = ["toy", "needs=metamath", f"data.root={toy}", "--dry-run"]
    assert fail_cleanly(lambda: reproduce.main(arguments)) == 2
    said = capsys.readouterr()
    assert "12 runs" in said.out
    assert "2 thing(s) to mend" in said.err and "cannot be written" in said.err and "metamath" in said.err
    assert not (toy / "count.txt").exists()


def test_dry_run_and_help_import_nothing_heavy(script: Script, toy_root: Path) -> None:
    for arguments in (["--help"], ["toy", "--dry-run"]):
        done = script("reproduce.py", *arguments, PYTHONPROFILEIMPORTTIME="1")
        assert done.returncode == 0
        imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if "|" in line}
        assert "argparse" in imported
        assert not imported & {"torch", "lightning", "matplotlib", "numpy", "wandb"}
    assert not executions(toy_root)


@pytest.mark.slow
def test_runs_of_several_ranks_follow_each_other(script: Script, toy_root: Path) -> None:
    """Each run starts its own second rank by `train.py --run`; the first rank alone keeps the books."""
    ranks = ("trainer.devices=2", "trainer.strategy=ddp")
    done = script("reproduce.py", "toy", "--seeds", "1", "--jobs", "1", *ranks)
    assert done.returncode == 0, done.stderr
    assert len(finished(toy_root)) == 4 and len(executions(toy_root)) == 8
