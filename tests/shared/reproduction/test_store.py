"""The run store: finished means finished, whatever was cut short."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from filelock import Timeout

from shared.errors import UserError
from shared.reproduction import store as store_module
from shared.reproduction.plan import RunSpec
from shared.reproduction.store import RunStore, check_writable, read_json, write_json


def spec(source: str = "a" * 64, key: str = "0" * 12) -> RunSpec:
    config = {"seed": 3, "lr": 0.1, "hub": {"api_token": "hush"}}
    return RunSpec(f"{key}-{source[:8]}", key, source, "toy", "main", "plain", "fast", 3, config)


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    return RunStore(tmp_path / "runs")


def test_life_of_a_run(store: RunStore) -> None:
    assert store.find(spec()).state == "missing"
    folder = store.begin(spec())
    assert store.find(spec()).state == "interrupted"  # nobody works on it: it was killed
    store.end(spec(), "finished", {"error": 0.5}, device="cpu")
    found = store.find(spec())
    assert (found.state, found.usable, found.folder, found.metrics) == (
        "finished",
        True,
        folder,
        {"error": 0.5},
    )
    assert found.status["device"] == "cpu" and found.status["seconds"] >= 0
    assert sorted(path.name for path in folder.iterdir()) == [
        "config.yaml",
        "metrics.json",
        "spec.json",
        "status.json",
    ]


def test_secrets_are_not_stored(store: RunStore) -> None:
    folder = store.begin(spec())
    assert read_json(folder / "spec.json")["config"]["hub"] == {"api_token": "***"}
    assert all("hush" not in path.read_text() for path in folder.iterdir())


@pytest.mark.parametrize("name", ["status.json", "metrics.json"])
@pytest.mark.parametrize("damage", ["", '{"state": "fin', "[1, 2]", '{"error": "text"}', "\x00\xff"])
def test_damaged_files_mean_unfinished(store: RunStore, name: str, damage: str) -> None:
    folder = store.begin(spec())
    store.end(spec(), "finished", {"error": 0.5})
    (folder / name).write_text(damage, encoding="latin-1")
    assert store.find(spec()).state == "interrupted"
    (folder / name).unlink()
    assert store.find(spec()).state == "interrupted"


def test_failed_runs_keep_their_reason(store: RunStore) -> None:
    store.begin(spec())
    store.end(spec(), "failed", error="ValueError: no")
    found = store.find(spec())
    assert (found.state, found.usable, found.status["error"]) == ("failed", False, "ValueError: no")


def test_other_source_is_stale_until_run_again(store: RunStore) -> None:
    for letter, value in (("a", 1.0), ("b", 2.0)):
        store.begin(spec(letter * 64))
        store.end(spec(letter * 64), "finished", {"error": value})
    today = spec("c" * 64)
    found = store.find(today)
    assert (found.state, found.metrics["error"]) == ("stale", 2.0)  # the latest
    store.begin(today)
    assert store.find(today).state == "stale"  # still something to show while it runs again
    store.end(today, "finished", {"error": 3.0})
    assert (store.find(today).state, store.find(today).metrics["error"]) == ("finished", 3.0)
    assert store.find(spec("d" * 64, key="1" * 12)).state == "missing"  # another run altogether


def test_time_of_interrupted_tries_counts(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([100.0, 107.0, 200.0, 205.0, 300.0, 301.0])
    monkeypatch.setattr(store_module.time, "time", lambda: next(clock))
    store.begin(spec())
    assert store.end(spec(), "interrupted") == 7
    store.begin(spec())
    assert store.end(spec(), "finished", {}) == 12
    (store.folder(spec()) / "history.csv").write_text("old")
    folder = store.begin(spec(), afresh=True)
    assert not (folder / "history.csv").exists()
    assert store.end(spec(), "finished", {}) == 1


def test_a_write_that_fails_leaves_the_old_content(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = store.begin(spec())

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    before = (folder / "status.json").read_text()
    monkeypatch.setattr(store_module.os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_json(folder / "status.json", {"state": "finished"})
    assert (folder / "status.json").read_text() == before
    assert not [path for path in folder.iterdir() if path.name.startswith(".")]


def test_one_process_at_a_time_works_on_a_run(store: RunStore) -> None:
    with store.lock(spec()), pytest.raises(Timeout):
        store.lock(spec()).acquire(blocking=False)
    with store.lock(spec()).acquire(blocking=False), store.lock(spec(key="1" * 12)).acquire(blocking=False):
        pass


def test_unwritable_store_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(UserError, match=r"file/runs cannot be written \(Not a directory\).*PAPERWORKS_RUNS"):
        check_writable(tmp_path / "file" / "runs")
    check_writable(tmp_path / "new" / "runs")
    assert list((tmp_path / "new" / "runs").iterdir()) == []
