"""Randomness as a function of (seed, step): resuming is exact, the arms of a comparison are paired."""

from __future__ import annotations

import random
import zlib
from typing import Any

import numpy as np
import torch
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything


def derive_seed(*parts: Any) -> int:
    """A 32-bit seed from anything printable, e.g. `derive_seed(seed, "client", 7)`; stable everywhere."""
    return zlib.crc32("/".join(map(str, parts)).encode())


def generator(*parts: Any) -> torch.Generator:
    """A CPU generator with the stream named by `parts`."""
    return torch.Generator().manual_seed(derive_seed(*parts))


def seed_run(seed: int) -> None:
    """Seed python, numpy, torch and data loading workers."""
    seed_everything(seed, workers=True, verbose=False)


class SeedEveryStep(Callback):
    """Reseed all global generators from (seed, global rank, step) before every training batch.

    Dropout, augmentation and noise then depend on the step alone: a resumed run draws what the uninterrupted
    run drew, and two arms of a comparison draw the same numbers.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def on_train_batch_start(
        self, trainer: Trainer, module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        step = trainer.fit_loop.epoch_loop.total_batch_idx
        seed = derive_seed(self.seed, "step", trainer.global_rank, step)
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002 - third-party code draws from the global stream
        torch.manual_seed(seed)  # seeds every accelerator too
