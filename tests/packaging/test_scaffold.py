"""What new_project.py writes is a paper that runs and passes its tests."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from shared.errors import UserError
from shared.packaging.scaffold import FILES, check_name, checklist

REPO = Path(__file__).parent.parent.parent


@pytest.fixture
def root(toy_root: Path) -> Path:
    for name in ("pyproject.toml", "constraints.txt"):
        (toy_root / name).symlink_to(REPO / name)
    return toy_root


def files(root: Path) -> set[str]:
    return {
        str(path.relative_to(root))
        for path in root.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and "runs" not in path.parts
    }


def test_the_scaffold_runs_and_passes_its_tests(
    root: Path, script: Callable[..., subprocess.CompletedProcess]
) -> None:
    before = files(root)
    done = script("new_project.py", "my_paper")
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith(checklist("my_paper"))
    assert files(root) - before == {place.format(name="my_paper") for place in FILES.values()}
    assert before <= files(root)
    for command in (["format", "--check"], ["check"]):
        ruff = [sys.executable, "-m", "ruff", *command, "--no-cache", "projects/my_paper", "tests"]
        style = subprocess.run(ruff, cwd=root, capture_output=True, text=True)
        assert style.returncode == 0, style.stdout
    pytest_command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "tests/projects/my_paper",
    ]
    tested = subprocess.run(pytest_command, cwd=root, capture_output=True, text=True)
    assert tested.returncode == 0, tested.stdout
    assert "4 passed" in tested.stdout
    done = script("reproduce.py", "my_paper", "--seeds", "2", "--json", "record.json", "wandb.mode=disabled")
    assert done.returncode == 0, done.stderr
    record = json.loads((root / "record.json").read_text())
    (claim,) = record["claims"]
    assert (len(record["runs"]), claim["verdict"]) == (4, "holds")
    assert script("new_project.py", "my_paper").returncode == 2


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("My-Paper", "lower case"),
        ("class", "lower case"),
        ("2fast", "lower case"),
        ("a__b", "single underscores"),
        ("../evil", "lower case"),
        ("toy", "'toy' is taken: projects/toy"),
        ("slurm", "already the name of an extra"),
        ("torch", "already the name of an extra or of a package"),
        ("random", "already the name"),
    ],
)
def test_names_that_cannot_be(root: Path, toy: Path, name: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        check_name(name)


def test_the_page_has_the_same_checklist() -> None:
    assert checklist("<paper>") in (REPO / "docs" / "adding_a_paper.md").read_text()
