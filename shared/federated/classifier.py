"""An ordinary image classifier; knows nothing of federations."""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.nn import functional as F


class ImageClassifier(LightningModule):
    """Cross entropy of `net` (B, C, H, W) -> (B, classes), by SGD. Logs loss and accuracy in 0 .. 1."""

    def __init__(
        self, net: nn.Module, *, lr: float, momentum: float = 0.0, weight_decay: float = 0.0
    ) -> None:
        super().__init__()
        self.net, self.lr, self.momentum, self.weight_decay = net, lr, momentum, weight_decay

    def forward(self, images: Tensor) -> Tensor:
        return self.net(images)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        images, labels = batch
        loss = F.cross_entropy(self(images), labels)
        self.log("train/loss", loss)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        images, labels = batch
        logits = self(images)
        self.log("val/loss", F.cross_entropy(logits, labels))
        self.log("val/accuracy", (logits.argmax(1) == labels).float().mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(
            self.parameters(), lr=self.lr, momentum=self.momentum, weight_decay=self.weight_decay
        )
