"""LoRA on the upper blocks of a frozen sentence encoder, started the paper's way."""

from __future__ import annotations

import copy
import functools
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from projects.nonzero_lora.adapters import attach
from projects.nonzero_lora.data.features import Batch
from projects.nonzero_lora.data.sentiment import PlannedBatches
from projects.nonzero_lora.optimisation import configure
from shared.data.catalogue import fetch
from shared.errors import UserError
from shared.text.minilm import load_encoder, mean_pool, run_blocks
from shared.training.seeding import generator

CLASSES = 2


class Classifier(nn.Module):
    """The encoder's upper blocks, mean pooling and a random head that never trains.

    All learning passes through the adapters, as with the frozen read-out of a language model. A fitted head
    would leave them nothing to do here: frozen features alone reach the same accuracy.
    """

    def __init__(self, encoder: nn.Module, blocks: int, seed: int) -> None:
        super().__init__()
        layers = encoder.encoder.layer
        if not 1 <= blocks <= len(layers):
            raise UserError(f"sentiment.blocks must be 1 to {len(layers)}; found {blocks}.")
        self.blocks = copy.deepcopy(layers[-blocks:])
        for module in self.blocks.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
        width = encoder.config.hidden_size
        self.head = nn.Linear(width, CLASSES)
        stream = generator("head", seed)
        for parameter in self.head.parameters():  # a linear layer's default width, from a stream of its own
            nn.init.uniform_(parameter, -(width**-0.5), width**-0.5, generator=stream)

    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """Logits (B, 2) of sentences `hidden` (B, T, D), `mask` (B, T) true at words."""
        return self.head(mean_pool(run_blocks(self.blocks, hidden, mask), mask))


class NonZeroLoRA(LightningModule):
    """For each target layer: draw A0, then B0; with reset W <- W - (alpha / r) B0 A0.

    Then train A and B with AdamW, W frozen.
    """

    def __init__(self, config: Any, classifier: Classifier) -> None:
        super().__init__()
        self.config = config
        self.model = classifier
        attach(self.model.blocks, config.adapter, config.seed)  # freezes, injects, draws, resets
        self.model.head.requires_grad_(False)

    def forward(self, batch: Batch) -> Tensor:
        return self.model(batch.hidden, batch.mask)

    def training_step(self, batch: Batch, index: int) -> Tensor:
        loss = cross_entropy(self(batch), batch.label)
        self.log("train/loss", loss)
        return loss

    def test_step(self, batch: Batch, index: int) -> None:
        logits = self(batch)
        right = (logits.argmax(1) == batch.label).float().mean()
        self.log("test/accuracy", 100 * right, batch_size=len(batch.label))
        self.log("test/loss", cross_entropy(logits, batch.label), batch_size=len(batch.label))

    def configure_optimizers(self) -> dict[str, Any]:
        return configure(self.model, self.config.optimizer, int(self.trainer.estimated_stepping_batches))


@functools.lru_cache(maxsize=1)
def pretrained_encoder() -> nn.Module:
    """The real MiniLM, read once per process; whoever trains parts of it copies them."""
    return load_encoder(fetch("minilm"))


@torch.no_grad()
def heldout_loss(module: NonZeroLoRA, heldout: PlannedBatches) -> float:
    """Mean loss over the held-out sentences; summed in float64, since first-step gains are 1e-4 of it."""
    total = 0.0
    for number in range(len(heldout)):
        batch = heldout[number].to(module.device)
        total += cross_entropy(module(batch).double(), batch.label, reduction="sum").item()
    return total / sum(len(indices) for indices in heldout.plan)
