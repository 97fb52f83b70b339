"""The record of a table: plain data, all a reader needs to judge and to repeat what was measured."""

from __future__ import annotations

import importlib.metadata
import json
import math
import os
import platform
import shutil
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from shared import paths
from shared.errors import UserError
from shared.reproduction.results import Results
from shared.reproduction.store import write_text
from shared.reproduction.verdicts import cell_verdict, judge_claim

KEYS = ("paper", "table", "profile", "environment", "cells", "claims", "runs")
PACKAGES = (  # those installed are named in the record
    *("torch", "lightning", "torchvision", "numpy", "scipy", "omegaconf", "wandb", "transformers", "peft"),
    *(
        "timm",
        "torchmetrics",
        "scikit-learn",
        "datasets",
        "flwr",
        "open_clip_torch",
        "torch_geometric",
        "gsplat",
    ),
)


def build_record(results: Results, command: str, started: float, finished: float) -> dict[str, Any]:
    """The record of a table, ready for JSON.

    Args:
        results: the table's figures.
        command: what a reader types to repeat it.
        started, finished: of this invocation, in unix seconds; runs that ended before are marked as reused.

    A mean is None where no run has ended (n = 0) and where a value is not finite (n > 0).
    """
    return {
        "paper": results.paper,
        "table": results.table,
        "profile": results.profile,
        "environment": environment(results, command, started, finished),
        "cells": [_cell(results, cell.row, cell.column) for cell in results.plan.cells],
        "claims": [_claim(results, claim) for claim in results.recipe.claims],
        "runs": [_run(results, spec, started) for spec in results.plan.runs],
    }


def write_record(record: dict[str, Any], path: Path) -> None:
    """Write `record` as JSON in one step; the folder is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps(record, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def read_record(path: Path) -> dict[str, Any]:
    """The record in `path`; a file that is not one is a UserError."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: not a record of a table: {error}") from None
    lacking = [key for key in KEYS if not isinstance(record, dict) or key not in record]
    if lacking:
        raise UserError(f"{path}: not a record of a table: it lacks {', '.join(lacking)}.")
    return record


def committed_path(paper: str, table: str, profile: str) -> Path:
    """Where the repository keeps what was measured."""
    return paths.DOCS_RESULTS / profile / paper / f"{table}.json"


def environment(results: Results, command: str, started: float, finished: float) -> dict[str, Any]:
    """Versions, machine, code, time. `seconds` is this invocation, `run_seconds` all runs, reused too."""
    statuses = [stored.status for stored in results.stored.values()]
    first = results.plan.runs[0]
    return {
        "python": platform.python_version(),
        "versions": _versions(),
        "platform": f"{platform.system()} {platform.machine()}",
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "threads": _latest(statuses, "threads") or first.config.get("runtime", {}).get("threads") or None,
        "device": _latest(statuses, "device") or _device(first.config),
        "commit": _git("rev-parse", "HEAD") or None,
        "uncommitted": bool(
            _git("status", "--porcelain", "--untracked-files=no", "--", "shared", "projects")
        ),
        "command": command,
        "source": first.source,
        "started": _time(started),
        "finished": _time(finished),
        "seconds": round(finished - started, 1),
        "run_seconds": round(sum(status.get("seconds", 0.0) for status in statuses), 1),
    }


def _cell(results: Results, row: str, column: str) -> dict[str, Any]:
    mean, std = results.mean(row, column), results.std(row, column)
    n = len(results.per_seed(row, column))
    published = results.published(row, column)
    tolerance = results.recipe.tolerance
    if tolerance is None and published is not None:
        tolerance = published.tolerance
    return {
        "row": row,
        "column": column,
        "mean": _number(mean),
        "std": _number(std),
        "n": n,
        "unit": results.cell(row, column).unit,
        "published": _number(published.value) if published else None,
        "provenance": published.provenance if published else None,
        "verdict": cell_verdict(results.profile, mean, n, published, tolerance),
    }


def _claim(results: Results, claim: Any) -> dict[str, Any]:
    found = judge_claim(claim, results)
    return {
        "id": claim.id,
        "says": claim.says,
        "estimate": _number(found.estimate),
        "interval": [_number(end) for end in found.interval] if found.interval else None,
        "n": found.n,
        "verdict": found.verdict,
        "note": found.note,
    }


def _run(results: Results, spec: Any, started: float) -> dict[str, Any]:
    stored = results.stored[spec.id]
    return {
        "id": stored.folder.name,  # of the run that the figures come from: a stale one has another source
        "row": spec.row,
        "column": spec.column,
        "seed": spec.seed,
        "status": stored.state,
        "seconds": stored.status.get("seconds"),
        "reused": stored.usable and stored.status.get("ended", 0.0) < started,
    }


def _number(value: float | None) -> float | None:
    """Ten significant digits; JSON has no NaN, so what is not finite is None."""
    return None if value is None or not math.isfinite(value) else float(f"{value:.10g}")


def _latest(statuses: list[dict[str, Any]], key: str) -> Any:
    """`key` of the status that ended last, where a run noted it."""
    noted = [status for status in statuses if status.get(key)]
    return max(noted, key=lambda status: status.get("ended", 0.0))[key] if noted else None


def _versions() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _cpu() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _device(config: dict[str, Any]) -> str:
    """Names of the GPUs that Lightning may have used; torch is not imported for this."""
    if config.get("trainer", {}).get("accelerator") != "cpu" and shutil.which("nvidia-smi"):
        found = _output("nvidia-smi", "--query-gpu=name", "--format=csv,noheader")
        if found:
            return ", ".join(sorted(set(found.splitlines())))
    return "cpu"


def _git(*arguments: str) -> str:
    return _output("git", "-C", str(paths.ROOT), *arguments)


def _output(*command: str) -> str:
    """What a command prints; empty when it is absent, fails or hangs."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
