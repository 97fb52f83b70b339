"""Where things live. `PAPERWORKS_CACHE` and `PAPERWORKS_RUNS` move the cache and the run store."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(os.path.abspath(__file__)).parent.parent  # noqa: PTH100 - a tree of links is a repository too
CONFIGS = ROOT / "configs"
PROJECTS = ROOT / "projects"
DOCS_RESULTS = ROOT / "docs" / "results"


def cache_dir() -> Path:
    """Folder of fetched data and weights, outside the repository (not created here)."""
    return Path(os.environ.get("PAPERWORKS_CACHE") or Path.home() / ".cache" / "paperworks").expanduser()


def runs_dir() -> Path:
    """Folder of the run store (not created here)."""
    return Path(os.environ.get("PAPERWORKS_RUNS") or ROOT / "runs").expanduser()


def papers() -> list[str]:
    """Names of the papers in this repository: the packages below `projects/`."""
    return sorted(path.parent.name for path in PROJECTS.glob("*/__init__.py"))
