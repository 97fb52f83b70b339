"""The run store: one folder a run, named by what it computes, written so that a crash never leaves a lie.

``<root>/<paper>/<run id>/`` holds ``spec.json``, ``config.yaml``, ``status.json``, ``metrics.json``,
``history.csv``, ``log.txt``, ``checkpoints/``, ``artifacts/`` and ``wandb/``. A run counts as finished only
when ``status.json`` says so and ``metrics.json`` can be read; both are replaced in one step.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from filelock import FileLock
from omegaconf import OmegaConf

from shared.errors import UserError
from shared.reproduction.plan import RunSpec
from shared.training.config import redact

FINISHED, STALE, FAILED, INTERRUPTED, MISSING = "finished", "stale", "failed", "interrupted", "missing"


@dataclass(frozen=True)
class Stored:
    """What the store knows of one run."""

    state: str  # finished | stale | failed | interrupted | missing
    folder: Path
    status: dict[str, Any] = field(default_factory=dict)  # started, ended (unix seconds), seconds, error
    metrics: dict[str, float] = field(default_factory=dict)

    @property
    def usable(self) -> bool:
        """Whether there are metrics to show."""
        return self.state in (FINISHED, STALE)

    @property
    def log(self) -> Path:
        """Everything the run printed."""
        return self.folder / "log.txt"


class RunStore:
    """Runs below `root`; making one touches no disk."""

    def __init__(self, root: Path) -> None:
        self.root = Path(root)

    def folder(self, spec: RunSpec) -> Path:
        """Where `spec` keeps its files when run with today's source."""
        return self.root / spec.paper / spec.id

    def find(self, spec: RunSpec) -> Stored:
        """The finished run of `spec`; else the latest of other source, marked stale; else its own state."""
        own = self._read(self.folder(spec))
        if own.state == FINISHED:
            return own
        others = [
            stored
            for folder in self.folder(spec).parent.glob(f"{spec.key}-*")
            if folder != own.folder and (stored := self._read(folder)).state == FINISHED
        ]
        if not others:
            return own
        latest = max(others, key=lambda stored: stored.status.get("ended", 0.0))
        return Stored(STALE, latest.folder, latest.status, latest.metrics)

    def lock(self, spec: RunSpec) -> FileLock:
        """Held by the one process that works on `spec`; the system frees it when that process dies."""
        folder = self.root / spec.paper / ".locks"
        folder.mkdir(parents=True, exist_ok=True)
        return FileLock(folder / f"{spec.id}.lock")

    def begin(self, spec: RunSpec, *, afresh: bool = False) -> Path:
        """Make the run's folder and mark it as running; `afresh` drops what an earlier try left there."""
        folder = self.folder(spec)
        if afresh:
            shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "metrics.json").unlink(missing_ok=True)
        earlier = 0.0 if afresh else self._read(folder).status.get("seconds", 0.0)
        config = redact(spec.config)
        write_json(folder / "spec.json", asdict(spec) | {"config": config})
        write_text(folder / "config.yaml", OmegaConf.to_yaml(OmegaConf.create(config)))
        write_json(folder / "status.json", {"state": "running", "started": time.time(), "seconds": earlier})
        return folder

    def end(
        self,
        spec: RunSpec,
        state: str,
        metrics: dict[str, float] | None = None,
        error: str | None = None,
        **details: Any,
    ) -> float:
        """Write the outcome of a begun run, `details` such as its device with it.

        Returns the seconds it took, those of interrupted tries included.
        """
        folder = self.folder(spec)
        status = self._read(folder).status
        now = time.time()
        seconds = status.get("seconds", 0.0) + now - status.get("started", now)
        if metrics is not None:
            write_json(folder / "metrics.json", metrics)
        write_json(
            folder / "status.json",
            {"state": state, "started": status.get("started", now), "ended": now}
            | {"seconds": round(seconds, 3), "error": error}
            | details,
        )
        return seconds

    def _read(self, folder: Path) -> Stored:
        status = read_json(folder / "status.json")
        if status is None:
            return Stored(INTERRUPTED if folder.is_dir() else MISSING, folder)
        state = status.get("state")
        if state == FINISHED:
            metrics = read_json(folder / "metrics.json")
            if metrics is not None and all(isinstance(value, int | float) for value in metrics.values()):
                return Stored(FINISHED, folder, status, metrics)
        # "running" without its process, or finished without readable metrics: an unfinished run
        return Stored(FAILED if state == FAILED else INTERRUPTED, folder, status)


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in `path`, or None when there is none: a file cut short is as good as absent."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def write_json(path: Path, content: Any) -> None:
    """Replace `path` in one step."""
    write_text(path, json.dumps(content, indent=1))


def write_text(path: Path, text: str) -> None:
    """Replace `path` in one step: a reader sees the old content or the new, whatever happens."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with partial.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def check_writable(root: Path) -> None:
    """Raise a `UserError` that says what to do when runs cannot be stored below `root`."""
    probe = root / f".probe-{os.getpid()}"
    try:
        root.mkdir(parents=True, exist_ok=True)
        probe.write_text("x")
        probe.unlink()
    except OSError as error:
        raise UserError(
            f"the run store {root} cannot be written ({error.strerror}). "
            "Free or mend it, or set PAPERWORKS_RUNS to a folder that you may write."
        ) from None
