"""Reading a run's history and deciding how Weights & Biases is used, without importing torch."""

from __future__ import annotations

import csv
import netrc
import os
from pathlib import Path

from shared.errors import UserError

WANDB_MODES = ("auto", "online", "offline", "disabled")


def read_history(path: Path) -> list[tuple[int, str, float]]:
    """Rows (step, name, value) of a `history.csv`; a torn last line, left by a kill, is dropped."""
    if not path.exists():
        return []
    rows = []
    with path.open(newline="") as file:
        for row in csv.reader(file):
            try:
                rows.append((int(row[0]), row[1], float(row[2])))
            except (ValueError, IndexError):
                continue  # the header, or a torn line
    return rows


def wandb_mode(requested: str) -> str:
    """`requested`, with "auto" and the variable `WANDB_MODE` decided: online, offline or disabled."""
    if requested not in WANDB_MODES:
        raise UserError(f"wandb.mode takes {', '.join(WANDB_MODES)}; found '{requested}'.")
    if requested != "auto":
        return requested
    from_environment = os.environ.get("WANDB_MODE")
    if from_environment in WANDB_MODES[1:]:
        return from_environment
    return "online" if _has_wandb_key() else "offline"


def _has_wandb_key() -> bool:
    if os.environ.get("WANDB_API_KEY"):
        return True
    try:
        return any("wandb" in host for host in netrc.netrc().hosts)
    except (OSError, netrc.NetrcParseError):
        return False
