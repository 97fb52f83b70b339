"""Checkpoints, whole or absent and at batch boundaries: a resumed run equals an uninterrupted one."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

log = logging.getLogger(__name__)


class Interrupted(Exception):
    """The run was asked to stop; what it had reached is in its last checkpoint."""


class SaveAndStop(Callback):
    """Save every n steps and every so many minutes; save and raise `Interrupted` when `stop()` is true."""

    def __init__(self, path: Path, every_n_steps: int, minutes: float, stop: Callable[[], bool]) -> None:
        self.path, self.every_n_steps, self.seconds, self.stop = path, every_n_steps, 60 * minutes, stop
        self.saved_at = time.monotonic()
        self.stopping = False

    def on_fit_start(self, trainer: Trainer, module: LightningModule) -> None:
        # A module that reads `trainer.estimated_stepping_batches` makes Lightning build its loader before the
        # checkpoint's position is known, and then keep it; without this the position would be lost.
        trainer.fit_loop._combined_loader = None

    def on_train_batch_start(self, *args: Any) -> None:
        self._raise_if_stopping()

    def on_train_epoch_end(self, *args: Any) -> None:
        self._raise_if_stopping()

    def on_train_batch_end(
        self, trainer: Trainer, module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        loop = trainer.fit_loop.epoch_loop
        if loop._should_accumulate():
            return  # a checkpoint between two accumulated batches would lose gradients
        if not loop._should_check_val_fx(trainer.fit_loop._data_fetcher):
            self.save_if_due(trainer)  # else after the validation, which a resumed run would leave out

    def on_validation_end(self, trainer: Trainer, module: LightningModule) -> None:
        if trainer.state.fn == "fit" and not trainer.sanity_checking:
            self.save_if_due(trainer)

    def save_if_due(self, trainer: Trainer) -> None:
        """Save when a step, the clock or `stop()` says so.

        Lightning logs the batch's metrics after these hooks, so a stop takes effect at the next one.
        """
        self.stopping = self._all_agree(trainer, self.stop())
        by_step = self.every_n_steps and trainer.global_step % self.every_n_steps == 0
        by_time = self._all_agree(trainer, self.seconds_since_save() > self.seconds)
        if self.stopping or by_step or by_time:
            self.save(trainer)

    def on_validation_batch_end(self, trainer: Trainer, *args: Any) -> None:
        if self._all_agree(trainer, self.stop()):
            raise Interrupted

    def on_test_batch_end(self, trainer: Trainer, *args: Any) -> None:
        if self._all_agree(trainer, self.stop()):
            raise Interrupted

    def save(self, trainer: Trainer) -> None:
        """Write the checkpoint beside `path`, then move it into place."""
        partial = self.path.with_suffix(".partial")
        trainer.save_checkpoint(partial)
        if trainer.is_global_zero:
            partial.replace(self.path)
        self.saved_at = time.monotonic()

    def seconds_since_save(self) -> float:
        return time.monotonic() - self.saved_at

    def _raise_if_stopping(self) -> None:
        if self.stopping:
            raise Interrupted

    @staticmethod
    def _all_agree(trainer: Trainer, decision: bool) -> bool:
        """The same answer on every rank: true when any rank says so."""
        if trainer.world_size == 1:
            return decision
        return trainer.strategy.reduce_boolean_decision(decision, all=False)


def resumable(path: Path) -> int | None:
    """Optimiser steps done in the checkpoint at `path`, or None when there is none to resume from.

    A truncated or unreadable checkpoint is set aside as `<name>.unreadable` and the run starts over.
    """
    if not path.exists():
        return None
    try:
        return int(torch.load(path, map_location="cpu", weights_only=True, mmap=True)["global_step"])
    except Exception as error:  # torch raises many classes for a damaged file
        aside = path.with_suffix(".unreadable")
        path.replace(aside)
        log.warning("checkpoint %s cannot be read (%s); kept as %s, starting over", path, error, aside.name)
        return None
