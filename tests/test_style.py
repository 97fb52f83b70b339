"""Ruff is content, and no file knows the machine it was written on."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
NOT_OURS = {".venv", ".git", "runs", "wandb", "__pycache__", "build", "dist", "lightning_logs"}
MACHINE_PATH = re.compile(r"(?<![\w.~])/(?:work|root|home|Users)/")


@pytest.mark.parametrize("command", [("format", "--check"), ("check",)], ids=" ".join)
def test_ruff(command: tuple[str, ...]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ruff", *command, "--no-cache", "."], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def texts(folder: Path) -> Iterator[tuple[Path, str]]:
    for path in sorted(folder.iterdir()):
        if path.name in NOT_OURS or path.name.endswith(("_cache", ".egg-info")):
            continue
        if path.is_dir():
            yield from texts(path)
        elif path.is_file():
            yield path, path.read_text(errors="replace")


def test_no_absolute_path_of_a_machine() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path, text in texts(ROOT)
        for number, line in enumerate(text.splitlines(), 1)
        if MACHINE_PATH.search(line)
    ]
    assert found == []


def test_the_pattern_finds_such_paths() -> None:
    assert MACHINE_PATH.search("open('" + "/home" + "/me/x')")
    assert not MACHINE_PATH.search("~/home/x, docs/root/x, data.root/work/x")
