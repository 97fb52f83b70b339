"""Two logs a run: a plain `history.csv` that needs nothing, and Weights & Biases, offline without a key."""

from __future__ import annotations

import csv
import os
import warnings
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import WandbLogger
from lightning.pytorch.loggers.logger import Logger, rank_zero_experiment
from lightning.pytorch.utilities import rank_zero_only

from shared.training.tracking import read_history, wandb_mode


class HistoryLogger(Logger):
    """Append every logged scalar to `path` as `step,name,value`.

    `resume_from(step)` drops what a killed run logged after the checkpoint it resumes from.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)

    @property
    def name(self) -> str:
        return "history"

    @property
    def version(self) -> str:
        return ""

    @property
    @rank_zero_experiment
    def experiment(self) -> Path:
        return self.path

    @rank_zero_only
    def log_hyperparams(self, params: dict[str, Any] | Namespace, *args: Any, **kwargs: Any) -> None:
        """The engine saves the whole config beside the history; there is nothing to add."""

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        rows = [[step, name, repr(float(value))] for name, value in metrics.items() if name != "epoch"]
        new = not self.path.exists()
        with self.path.open("a", newline="") as file:
            writer = csv.writer(file)
            if new:
                writer.writerow(["step", "name", "value"])
            writer.writerows(rows)

    @rank_zero_only
    def resume_from(self, step: int) -> None:
        """Keep rows up to `step` optimiser steps, inclusive."""
        rows = read_history(self.path)
        self.path.unlink(missing_ok=True)
        for row_step, name, value in rows:
            if row_step <= step:
                self.log_metrics({name: value}, row_step)


def last_values(path: Path) -> dict[str, float]:
    """The last value of every name in a `history.csv`."""
    return {name: value for _, name, value in read_history(path)}


def record(module: Any, metrics: Mapping[str, float]) -> None:
    """Log `metrics` now, at the current step, whatever `log_every_n_steps` says."""
    for logger in module.trainer.loggers:
        logger.log_metrics(dict(metrics), step=module.trainer.global_step)


def wandb_logger(
    settings: Any, folder: Path, *, group: str, name: str, config: Mapping[str, Any]
) -> WandbLogger | None:
    """A `WandbLogger` writing to `folder`, or None when disabled.

    Args:
        settings: a `WandbConfig`.
        group, name: how the run is filed, e.g. "recit/main" and "full/eurosat/0".
        config: shown as the run's configuration; must be free of secrets.

    Without a key, or when the server cannot be reached within 20 s, the run is written offline and can be
    sent later with `wandb sync`.
    """
    mode = wandb_mode(settings.mode)
    if mode == "disabled":
        return None
    os.environ.setdefault("WANDB_SILENT", "true")
    import wandb

    folder.mkdir(parents=True, exist_ok=True)
    quiet = wandb.Settings(
        init_timeout=20,
        console="off",
        x_disable_stats=True,
        x_disable_meta=True,
        disable_git=True,
        disable_code=True,
        silent=True,
    )

    def create(offline: bool) -> WandbLogger:
        logger = WandbLogger(
            name=name,
            project=settings.project,
            group=group,
            save_dir=folder,
            offline=offline,
            entity=settings.entity,
            tags=list(settings.tags) or None,
            settings=quiet,
            config=dict(config),
            mode="offline" if offline else "online",  # said outright: wandb reads its variable only once
        )
        before = os.environ.get("WANDB_MODE")
        try:
            _ = logger.experiment  # starts the run now, while a fall-back is possible
        finally:  # Lightning asks for an offline run by a variable that would outlive it
            os.environ.pop("WANDB_MODE", None) if before is None else os.environ.update(WANDB_MODE=before)
        return logger

    if mode == "online":
        try:
            return create(offline=False)
        except (wandb.errors.Error, OSError) as error:
            warnings.warn(
                f"Weights & Biases is not reachable ({error}); logging offline instead.", stacklevel=2
            )
    return create(offline=True)
