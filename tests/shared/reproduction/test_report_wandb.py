"""The comparison in Weights & Biases: an offline run is read back."""

import json
import time
import types
import warnings
from pathlib import Path

import pytest

from shared.reproduction import report
from shared.reproduction.recipe import Claim, Selector
from shared.reproduction.record import build_record
from shared.reproduction.report import wandb_table
from shared.reproduction.synthetic import synthetic_results


@pytest.fixture
def made(tmp_path, monkeypatch):
    for name in ("WANDB_MODE", "WANDB_API_KEY", "NETRC"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))  # no netrc, no settings
    values = {("a", "x"): {0: 1.0, 1: 2.0}, ("b", "x"): {0: 2.0, 1: 3.1}, ("b", "y"): {}}
    claim = Claim("c", "b > a", "here", "difference", "> 0", Selector("b", "x"), Selector("a", "x"))
    results = synthetic_results(tmp_path / "s", values, claims=[claim])
    return build_record(results, "command", 0.0, 1.0), results


def settings(mode):
    section = types.SimpleNamespace(mode=mode, project="paperworks", entity=None, tags=["t"])
    return types.SimpleNamespace(wandb=section)


def read_run(file):
    """The run message and the history of an offline run: a LevelDB log of protobuf records."""
    from wandb.proto import wandb_internal_pb2

    data, at, pieces = file.read_bytes(), 7, b""
    run, history = None, {}
    while at + 7 <= len(data):
        left = 32768 - at % 32768
        if left < 7:  # a block ends with padding
            at += left
            continue
        size, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        pieces += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # a whole record, or its last piece
            record = wandb_internal_pb2.Record.FromString(pieces)
            pieces = b""
            if record.WhichOneof("record_type") == "run":
                run = record.run
            for item in record.history.item:
                history[item.key or item.nested_key[0]] = json.loads(item.value_json)
    return run, history


def test_offline_without_a_key_and_readable_afterwards(made):
    record, results = made
    folder = report.log_to_wandb(record, results, settings("auto"))
    assert folder == results.store.root / "toy" / "comparison" / "main-laptop"
    (file,) = Path(folder).rglob("*.wandb")
    run, history = read_run(file)
    assert (run.display_name, run.run_group, run.project) == ("comparison", "toy/main", "paperworks")
    tables = {
        json.loads(path.read_text())["columns"][0]: json.loads(path.read_text())
        for path in file.parent.rglob("*.table.json")
    }
    assert {"comparison", "claims"} <= set(history)
    cells = [dict(zip(tables["row"]["columns"], line, strict=True)) for line in tables["row"]["data"]]
    assert cells == [{key: cell[key] for key in wandb_table.CELLS} for cell in record["cells"]]
    (claim,) = tables["id"]["data"]
    assert claim[:3] == ["c", "b > a", record["claims"][0]["estimate"]]
    assert claim[3:5] == record["claims"][0]["interval"]
    assert "holds" in claim


def test_disabled_leaves_nothing(made):
    record, results = made
    assert report.log_to_wandb(record, results, settings("disabled")) is None
    assert not (results.store.root / "toy" / "comparison").exists()


def test_a_failure_warns_and_does_not_raise(made, monkeypatch):
    record, results = made
    blocked = results.store.root / "toy" / "comparison"
    blocked.write_text("a file where the folder should be")
    with pytest.warns(UserWarning, match="the comparison was not logged"):
        assert report.log_to_wandb(record, results, settings("offline")) is None


def test_a_hanging_network_is_left_behind(made, monkeypatch):
    record, results = made
    monkeypatch.setattr(wandb_table, "PATIENCE", 0.2)
    monkeypatch.setattr(wandb_table, "_log", lambda *_: time.sleep(2))
    started = time.monotonic()
    with pytest.warns(UserWarning, match="did not answer"):
        assert report.log_to_wandb(record, results, settings("online")) is None
    assert time.monotonic() - started < 1.5


def test_a_mistyped_mode_is_named(made):
    record, results = made
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert report.log_to_wandb(record, results, settings("ofline")) is None
    assert any("found 'ofline'" in str(warning.message) for warning in caught)
