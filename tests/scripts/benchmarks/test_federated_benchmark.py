"""The federated yardstick at tiny sizes: all contenders do the same work, the figures are consistent."""

from __future__ import annotations

import dataclasses
import importlib
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

REPO = Path(__file__).parent.parent.parent.parent
SCRIPT, WORKLOAD = "scripts/benchmarks/federated.py", "scripts/benchmarks/federated_workload.py"
RECORD = REPO / "docs" / "results" / "benchmarks" / "federated.json"
TINY = ["--clients", "4", "--per-round", "2", "--samples", "12", "--rounds", "1", "--repeats", "1"]


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch):
    """A benchmark's module, found as when it runs as a script."""

    def load(path: str) -> ModuleType:
        monkeypatch.syspath_prepend((REPO / path).parent)
        name = Path(path).stem
        monkeypatch.delitem(sys.modules, name, raising=False)
        return importlib.import_module(name)

    return load


def test_every_contender_trains_the_measured_rounds(load, monkeypatch: pytest.MonkeyPatch) -> None:
    workload = load(WORKLOAD)
    steps = []
    step = workload.sgd_step
    monkeypatch.setattr(workload, "sgd_step", lambda *given: (steps.append(len(given[2])), step(*given)))
    work = workload.Workload("cnn", 5, rounds=2, warmup=1, clients=4, per_round=2, samples=12)
    for contender in (workload.plain, workload.centralised):
        steps.clear()
        assert contender(work) > 0
        assert len(steps) == 3 * 2 * 3  # rounds, clients, batches of 5, 5, 2 (centralised: all of 5)
    assert workload.ours(work, "sequential") > 0
    assert workload.ours(dataclasses.replace(work, clients=9), "sequential", data_of=4) > 0


def test_flops_are_those_of_the_layers(load) -> None:
    workload = load(WORKLOAD)
    work = workload.Workload("mlp", 50)
    forward = 2 * (784 * 200 + 200 * 10)
    assert workload.flops_per_sample(work) == 2 * forward + 2 * 200 * 10  # no gradient of the images
    assert workload.gemm_peak(64, 2) > 0


def test_registered_clients_share_the_samples_there_are(load) -> None:
    workload = load(WORKLOAD)
    assert workload.dataset(4, 12)[0].shape == (4, 12, 1, 28, 28)
    assert workload.dataset(4, 12)[0] is workload.dataset(4, 12)[0]
    assert torch.equal(workload.dataset(4, 12)[1], workload.dataset(4, 12)[1])


def test_the_json_has_an_entry_for_each_contender(
    load, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture, tmp_path: Path
) -> None:
    out = tmp_path / "out.json"
    contenders = "plain,centralised,sequential"
    arguments = ["--model", "mlp,cnn", "--batch-size", "6", "--against", contenders, "--json", str(out)]
    monkeypatch.setattr(sys, "argv", ["federated.py", "--engine", "sequential", *arguments, *TINY])
    assert load(SCRIPT).main() == 0
    entries = json.loads(out.read_text())
    assert [(e["model"], e["batch_size"], e["contender"]) for e in entries] == [
        (model, 6, name) for model in ("mlp", "cnn") for name in contenders.split(",")
    ]
    assert all(set(e) == {"model", "batch_size", "contender", "samples_per_second", "ratio"} for e in entries)
    products = {
        model: {round(e["ratio"] * e["samples_per_second"], 3) for e in entries if e["model"] == model}
        for model in ("mlp", "cnn")
    }
    assert all(len(ours) == 1 for ours in products.values())  # ratio = ours / contender, of one measurement
    printed = capsys.readouterr().out
    assert "of the GEMM peak" in printed
    assert "| model, batch | ours, samples/s | ours / plain |" in printed


def test_an_aim_stands_beside_the_ratio_that_it_is_for(load) -> None:
    keys = ("model", "batch_size", "contender", "samples_per_second", "ratio")
    values = [("mlp", 10, "plain", 100.0, 2.5), ("mlp", 10, "centralised", 500.0, 0.5)]
    table = load(SCRIPT).markdown([dict(zip(keys, entry, strict=True)) for entry in values])
    assert table.splitlines()[2] == "| mlp, 10 | 250 | 2.50 (aim 2.2) | 0.50 |"


@pytest.mark.skipif(not RECORD.exists(), reason="a copied project has no record of the benchmark")
def test_the_readme_shows_the_committed_figures(load) -> None:
    assert load(SCRIPT).markdown(json.loads(RECORD.read_text())) in (REPO / "README.md").read_text()


def test_scale_reports_each_size(
    load, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture, tmp_path: Path
) -> None:
    benchmark, out = load(SCRIPT), tmp_path / "out.json"
    asked = []
    memory = {"grown": 10, "model_and_states": 7, "beside": 3}
    monkeypatch.setattr(benchmark, "measured_alone", lambda *given: asked.append(given) or memory)
    sizes = ["--registered", "4,30", "--participants", "1,2", "--stateful", "20"]
    monkeypatch.setattr(
        sys, "argv", ["federated.py", "--engine", "sequential", "--scale", "--json", str(out), *sizes, *TINY]
    )
    assert benchmark.main() == 0
    found = json.loads(out.read_text())
    assert list(found["registered"]) == ["4", "30"] and list(found["participants"]) == ["1", "2"]
    assert found["memory"] == memory and asked == [("mlp", 20)]
    assert "20 SCAFFOLD clients" in capsys.readouterr().out


def test_memory_counts_model_and_states(load) -> None:
    found = load(SCRIPT).measured_alone("mlp", 12)
    one = (784 * 200 + 200 + 200 * 10 + 10) * 4 / 2**20
    assert found["model_and_states"] == pytest.approx(13 * one)
    assert found["beside"] == found["grown"] - found["model_and_states"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--against", "plane"], "Did you mean 'plain'"),
        (["--batch-size", "ten"], "expected numbers"),
        (["--rounds", "0"], "--rounds takes 1 or more"),
    ],
)
def test_mistakes_are_named(
    load, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture, arguments: list[str], words: str
) -> None:
    from shared.errors import fail_cleanly

    monkeypatch.setattr(sys, "argv", ["federated.py", *arguments])
    try:
        status = fail_cleanly(load(SCRIPT).main)
    except SystemExit as stop:
        status = stop.code
    assert status == 2
    assert words in capsys.readouterr().err
