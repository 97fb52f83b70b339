"""The comparison with the paper as Weights & Biases tables, in one run beside those of the table."""

from __future__ import annotations

import os
import threading
import warnings
from typing import TYPE_CHECKING, Any

from shared.training.tracking import wandb_mode

if TYPE_CHECKING:
    from pathlib import Path

    from shared.reproduction.results import Results

PATIENCE = 60.0  # seconds; the network may take no more of a finished command's time
CELLS = ("row", "column", "mean", "std", "n", "unit", "published", "provenance", "verdict")
CLAIMS = ("id", "says", "estimate", "low", "high", "n", "verdict", "note")


def log_to_wandb(record: dict[str, Any], results: Results, config: Any) -> Path | None:
    """Log the tables `comparison` and `claims` in a run called "comparison", grouped with the table's runs.

    Args:
        config: a composed configuration, or any object with its `wandb` section.

    Returns the folder that holds the run, or None when disabled or when it could not be logged: that warns
    and never raises, and waits for the network no longer than a minute.
    """
    folder = results.store.root / results.paper / "comparison" / f"{results.table}-{results.profile}"
    done: list[Path | None] = []

    def work() -> None:
        try:
            done.append(_log(record, config.wandb, folder))
        except Exception as error:  # a finished table must not be lost to its tracker
            warnings.warn(f"Weights & Biases: the comparison was not logged ({error}).", stacklevel=2)
            done.append(None)

    thread = threading.Thread(target=work, daemon=True, name="wandb-comparison")
    thread.start()
    thread.join(PATIENCE)
    if not done:
        warnings.warn(
            f"Weights & Biases did not answer within {PATIENCE:.0f} s; the comparison stays in {folder}.",
            stacklevel=2,
        )
    return done[0] if done else None


def _log(record: dict[str, Any], settings: Any, folder: Path) -> Path | None:
    mode = wandb_mode(settings.mode)
    if mode == "disabled":
        return None
    os.environ.setdefault("WANDB_SILENT", "true")
    import wandb

    def start(mode: str) -> Any:
        return wandb.init(
            name="comparison",
            group=f"{record['paper']}/{record['table']}",
            job_type="comparison",
            project=settings.project,
            entity=settings.entity,
            tags=list(settings.tags) or None,
            dir=folder,
            mode=mode,
            config={key: record[key] for key in ("paper", "table", "profile", "environment")},
            settings=wandb.Settings(
                init_timeout=20,
                console="off",
                x_disable_stats=True,
                x_disable_meta=True,
                disable_git=True,
                disable_code=True,
                silent=True,
            ),
        )

    folder.mkdir(parents=True, exist_ok=True)
    try:
        run = start(mode)
    except (wandb.errors.Error, OSError) as error:
        if mode == "offline":
            raise
        warnings.warn(f"Weights & Biases is not reachable ({error}); logging offline.", stacklevel=2)
        run = start("offline")
    cells = [[cell[key] for key in CELLS] for cell in record["cells"]]
    claims = [[_flat(claim).get(key) for key in CLAIMS] for claim in record["claims"]]
    run.log(
        {
            "comparison": wandb.Table(columns=list(CELLS), data=cells, allow_mixed_types=True),
            "claims": wandb.Table(columns=list(CLAIMS), data=claims, allow_mixed_types=True),
        }
    )
    run.finish()
    return folder


def _flat(claim: dict[str, Any]) -> dict[str, Any]:
    low, high = claim["interval"] or (None, None)
    return {**claim, "low": low, "high": high}
