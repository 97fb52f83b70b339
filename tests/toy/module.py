"""One weight learns y = 2 x + noise."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningDataModule, LightningModule
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from shared.training.loader import ResumableLoader
from shared.training.seeding import generator


class Points(LightningDataModule):
    """`steps` batches of 4 points to train on, 32 points to test on."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config

    def _points(self, split: str, count: int) -> TensorDataset:
        stream = generator(self.config.seed, split)
        x = torch.randn(count, 1, generator=stream)
        return TensorDataset(x, 2 * x + 0.1 * torch.randn(count, 1, generator=stream))

    def train_dataloader(self) -> ResumableLoader:
        return ResumableLoader(
            self._points("train", 4 * self.config.steps), 4, seed=self.config.seed, shuffle=True
        )

    def test_dataloader(self) -> ResumableLoader:
        return ResumableLoader(self._points("test", 32), 32, seed=self.config.seed, shuffle=False)


class Line(LightningModule):
    """y = w x (+ b), squared error."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config
        self.line = nn.Linear(1, 1, bias=config.model.bias)

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        time.sleep(self.config.pause)
        if index == 2:
            self._trouble()
        loss = nn.functional.mse_loss(self.line(batch[0]), batch[1])
        self.log("train/error", loss)
        return loss

    def test_step(self, batch: tuple[Tensor, Tensor], index: int) -> None:
        self.log("test/error", nn.functional.mse_loss(self.line(batch[0]), batch[1]))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=self.config.optimizer.lr)

    def _trouble(self) -> None:
        """Go wrong as TOY_TROUBLE wants it: ``raise:1`` in the runs of seed 1 at the fast rate."""
        kind, _, seed = os.environ.get("TOY_TROUBLE", "").partition(":")
        if not kind or int(seed) != self.config.seed or self.config.optimizer.lr != 0.1:
            return
        os.write(1, b"about to go wrong\n")
        if kind == "raise":
            raise ValueError("the toy breaks as it was told")
        if kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if kind == "fill":
            import resource  # from here on no file of this process may grow beyond a kilobyte

            resource.setrlimit(resource.RLIMIT_FSIZE, (1024, resource.RLIM_INFINITY))
            Path(self.trainer.default_root_dir, "large.bin").write_bytes(b"x" * 4096)
