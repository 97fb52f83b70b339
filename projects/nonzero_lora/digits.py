"""An MLP pretrained on the digits 0-4, adapted to all ten through LoRA on its hidden layers."""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from projects.nonzero_lora.adapters import attach
from projects.nonzero_lora.data.digits import CLASSES, PIXELS, DigitsData
from projects.nonzero_lora.optimisation import configure
from shared.training.seeding import generator

HIDDEN = ("hidden1", "hidden2")


class MLP(nn.Module):
    """64 - width - width - 10 with ReLU; weights in the default range, from `stream`."""

    def __init__(self, width: int, stream: torch.Generator) -> None:
        super().__init__()
        self.hidden1 = nn.Linear(PIXELS, width)
        self.hidden2 = nn.Linear(width, width)
        self.head = nn.Linear(width, CLASSES)
        for layer in (self.hidden1, self.hidden2, self.head):
            bound = layer.in_features**-0.5
            for parameter in layer.parameters():
                nn.init.uniform_(parameter, -bound, bound, generator=stream)

    def forward(self, images: Tensor) -> Tensor:
        """Logits (B, 10) of images (B, 64)."""
        return self.head(self.hidden2(self.hidden1(images).relu()).relu())


def pretrained(config: Any, data: DigitsData, seed: int) -> MLP:
    """An MLP after `pretrain_steps` Adam steps on the training images of classes 0-4."""
    stream = generator("digits", "pretrain", seed)
    model = MLP(config.width, stream)
    optimizer = torch.optim.Adam(model.parameters(), lr=config.pretrain_lr)
    known = (data.train_labels < CLASSES // 2).nonzero().squeeze(1)
    for _ in range(config.pretrain_steps):
        batch = known[torch.randint(len(known), (config.batch_size,), generator=stream)]
        loss = cross_entropy(model(data.train_images[batch]), data.train_labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model


class DigitsLoRA(LightningModule):
    """The head is frozen, so all learning of the five new classes passes through A and B."""

    def __init__(self, config: Any, model: MLP) -> None:
        super().__init__()
        self.config = config
        self.model = attach(model, config.adapter, config.seed)
        self.model.head.requires_grad_(False)

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        images, labels = batch
        loss = cross_entropy(self.model(images), labels)
        self.log("train/loss", loss)
        return loss

    def test_step(self, batch: list[Tensor], index: int) -> None:
        images, labels = batch
        logits = self.model(images)
        self.log("test/accuracy", 100 * (logits.argmax(1) == labels).float().mean(), batch_size=len(labels))
        self.log("test/loss", cross_entropy(logits, labels), batch_size=len(labels))

    def configure_optimizers(self) -> dict[str, Any]:
        return configure(self.model, self.config.optimizer, int(self.trainer.estimated_stepping_batches))
