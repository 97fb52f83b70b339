"""`train.py` and `evaluate.py` on the toy paper."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from shared.errors import fail_cleanly
from shared.reproduction.store import read_json

TABLE = ("--config", "configs/toy/main.yaml")


def test_train_interrupt_go_on_and_evaluate(
    script: Callable[..., subprocess.CompletedProcess],
    start: Callable[..., subprocess.Popen],
    toy_root: Path,
) -> None:
    folder = toy_root / "mine"
    out = ("--out", str(folder), "steps=40", "seed=5")
    process = start("train.py", "toy", *TABLE, *out, "--row", "bias", "--column", "fast", "pause=0.2")
    deadline = time.monotonic() + 600
    while not (folder / "history.csv").exists() or "train/error" not in (folder / "history.csv").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    said = process.communicate(timeout=300)[0]
    assert process.returncode == 130 and "Traceback" not in said
    again = re.search(r"go on with: python scripts/(train\.py) (.*)", said)

    done = script(again[1], *again[2].split(), "pause=0")
    assert done.returncode == 0, done.stderr
    metrics = read_json(folder / "metrics.json")
    assert "test/error" in done.stdout and metrics["test/error"] < 0.5
    assert (folder / "history.csv").read_text().count("train/error") == 40
    saved = (folder / "config.yaml").read_text()
    assert "seed: 5" in saved and "bias: true" in saved and "lr: 0.1" in saved

    checkpoint = folder / "checkpoints" / "last.ckpt"
    done = script("evaluate.py", "toy", "--checkpoint", str(checkpoint))
    assert done.returncode == 0, done.stderr
    assert f"{metrics['test/error']:.6g}" in done.stdout
    checkpoint.write_bytes(checkpoint.read_bytes()[:1000])
    done = script("evaluate.py", "toy", "--checkpoint", str(checkpoint))
    assert done.returncode == 2 and "truncated" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([*TABLE, "--row", "bais"], "Did you mean 'bias'"),
        ([*TABLE, "--column", "quick"], "has no column 'quick'"),
        ([*TABLE, "--profile", "labtop"], "Did you mean 'laptop'"),
        ([*TABLE, "step=3"], "Did you mean 'steps'"),
        (["--config", "configs/toy/mian.yaml"], "Did you mean 'main'"),
        (["--config", "main.yaml"], "no file main.yaml"),
        (["--run", "nowhere"], "expected a run's configuration at nowhere/config.yaml"),
        ([*TABLE, "--out", "taken"], "holds a run already"),
        ([*TABLE, "--out", "configs/base.yaml/x"], "cannot be written"),
    ],
)
def test_bad_usage_of_train(
    toy: Path,
    capsys: pytest.CaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    message: str,
) -> None:
    from scripts import train

    monkeypatch.chdir(toy)
    (toy / "taken").mkdir()
    (toy / "taken" / "config.yaml").write_text("seed: 1")
    assert fail_cleanly(lambda: train.main(["toy", *arguments])) == 2
    assert message in capsys.readouterr().err


def test_bad_usage_of_evaluate(
    toy: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from scripts import evaluate

    monkeypatch.chdir(toy)
    assert fail_cleanly(lambda: evaluate.main(["toy", "--checkpoint", "gone.ckpt"])) == 2
    assert "there is no file gone.ckpt" in capsys.readouterr().err
    (toy / "alone.ckpt").write_bytes(b"")
    assert fail_cleanly(lambda: evaluate.main(["toy", "--checkpoint", "alone.ckpt"])) == 2
    assert "no config.yaml beside alone.ckpt" in capsys.readouterr().err
