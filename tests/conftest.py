"""Fixtures shared by the tests: a repository of links that holds one toy paper."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parent.parent


@pytest.fixture
def toy_root(tmp_path: Path) -> Path:
    """A repository with the paper `toy` alone, `shared` a copy so that an edit meanwhile changes nothing."""
    root = tmp_path / "repo"
    (root / "configs" / "toy").mkdir(parents=True)
    (root / "projects").mkdir()
    shutil.copytree(REPO / "shared", root / "shared")  # with its compiled files: the times are kept
    (root / "scripts").symlink_to(REPO / "scripts")
    (root / "projects" / "__init__.py").write_text("")
    shutil.copytree(
        REPO / "tests" / "toy", root / "projects" / "toy", ignore=shutil.ignore_patterns("main.yaml")
    )
    shutil.copy(REPO / "configs" / "base.yaml", root / "configs" / "base.yaml")
    shutil.copy(REPO / "tests" / "toy" / "main.yaml", root / "configs" / "toy" / "main.yaml")
    return root


def toy_environment(root: Path, **more: str) -> dict[str, str]:
    """The environment of a process that works in `root`: its own store and cache, no accounts, one thread."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("WANDB", "PAPERWORKS"))}
    own = {
        "PAPERWORKS_RUNS": str(root / "runs"),
        "PAPERWORKS_CACHE": str(root / "cache"),
        "TOY_COUNT": str(root / "count.txt"),
        "CUDA_VISIBLE_DEVICES": "",
        "COLUMNS": "120",
    }
    return kept | own | more


@pytest.fixture
def script(toy_root: Path) -> Callable[..., subprocess.CompletedProcess]:
    """`script("reproduce.py", "toy", ...)` runs a script of the toy repository to its end."""

    def run(name: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            [sys.executable, f"scripts/{name}", *arguments],
            cwd=toy_root,
            env=toy_environment(toy_root, **environment),
            capture_output=True,
            text=True,
            timeout=900,  # against a hang only: on a busy machine importing torch alone can take minutes
        )

    return run


@pytest.fixture
def start(toy_root: Path) -> Callable[..., subprocess.Popen]:
    """`start("reproduce.py", "toy", ...)` starts a script in a process group of its own and does not wait."""
    started: list[subprocess.Popen] = []

    def begin(name: str, *arguments: str, **environment: str) -> subprocess.Popen:
        process = subprocess.Popen(
            [sys.executable, f"scripts/{name}", *arguments],
            cwd=toy_root,
            env=toy_environment(toy_root, **environment),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        return process

    yield begin
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.fixture
def toy(toy_root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The toy repository in this very process: `projects.toy` and its configs are found there."""
    import projects
    from shared import paths

    monkeypatch.setattr(paths, "ROOT", toy_root)
    monkeypatch.setattr(paths, "CONFIGS", toy_root / "configs")
    monkeypatch.setattr(paths, "PROJECTS", toy_root / "projects")
    monkeypatch.setattr(projects, "__path__", [str(toy_root / "projects")])
    monkeypatch.setenv("PAPERWORKS_RUNS", str(toy_root / "runs"))
    monkeypatch.setenv("TOY_COUNT", str(toy_root / "count.txt"))
    _forget_toy()
    yield toy_root
    _forget_toy()


def _forget_toy() -> None:
    for name in [name for name in sys.modules if f"{name}.".startswith("projects.toy.")]:
        del sys.modules[name]
    projects = sys.modules.get("projects")
    if projects is not None and hasattr(projects, "toy"):
        del projects.toy
