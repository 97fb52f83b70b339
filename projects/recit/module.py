"""ReCIT: fine-tune a vision transformer on the source while breaking the continuity of its image tokens.

Nothing of it is left at test time: the plain network gives features, and prototypes of a few labelled
images classify those of a domain that was never seen.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from projects.recit.balanced import balanced_disruption
from projects.recit.evaluation import Evaluation
from projects.recit.patches import shuffle_amplitudes, shuffle_patches, shuffle_phases
from projects.recit.warmup import draw_grid, enlarge, shuffle_tokens
from shared.vision.tokens import TokenViT

SIMPLE = {"sp": shuffle_patches, "spa": shuffle_amplitudes, "spp": shuffle_phases}


class ReCIT(LightningModule):
    """
    Args:
        config: as `projects.recit.config.Config`.
        encoder: images (B, 3, H, W) -> features (B, D).
        classes: of the source.
        evaluation: what is measured on the features of each domain.
    """

    def __init__(self, config: Any, encoder: TokenViT, classes: int, evaluation: Evaluation) -> None:
        super().__init__()
        self.config, self.encoder, self.evaluation = config, encoder, evaluation
        self.classifier = nn.Linear(encoder.width, classes)
        nn.init.zeros_(self.classifier.bias)
        self.artifacts = None  # a folder for pictures, given by the run

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        images, labels, _ = batch
        loss = cross_entropy(self.classifier(self.disrupted(images)), labels)
        self.log("train/loss", loss)
        return loss

    def disrupted(self, x: Tensor) -> Tensor:
        """Features (B, D) of source images x (B, 3, H, W), continuity broken by the arm and the epoch."""
        own, arm = self.config.recit, self.config.recit.arm
        warming = self.current_epoch < own.warmup_epochs
        if arm in ("recit", "warmup") and warming:  # stage 1: spatial warm-up
            n = draw_grid(own.smallest, own.largest)
            return self.encoder(enlarge(x, n, self.encoder.patch), edit=shuffle_tokens)
        if arm in ("recit", "frequency"):  # stage 2: balanced disruption of the amplitudes
            disrupt = partial(
                balanced_disruption, threshold=own.threshold, spread=own.spread, weights=own.weights
            )
            return self.encoder(x, edit=disrupt)
        if arm in SIMPLE:
            return self.encoder(SIMPLE[arm](x, own.pieces or self.encoder.grid(x)))
        return self.encoder(x, positions=arm != "rpe")

    def configure_optimizers(self) -> torch.optim.Optimizer:
        own = self.config.optimizer
        return torch.optim.AdamW(self.parameter_groups(), lr=own.lr, weight_decay=own.weight_decay)

    def parameter_groups(self) -> list[dict[str, Any]]:
        """The encoder at `encoder_multiplier` times the rate, which keeps what it has learned; the head."""
        own = self.config.optimizer
        encoder = [parameter for parameter in self.encoder.parameters() if parameter.requires_grad]
        return [
            {"params": encoder, "lr": own.lr * own.encoder_multiplier},
            {"params": [*self.classifier.parameters()], "lr": own.lr},
        ]

    # Features of every domain are collected once; episodes are drawn on them.

    def test_step(self, batch: list[Tensor], index: int, dataloader_idx: int = 0) -> None:
        images, labels, places = batch
        self.evaluation.collect(dataloader_idx, self.encoder(images), labels, places)

    validation_step = test_step

    def on_validation_epoch_end(self) -> None:
        if self.trainer.sanity_checking:
            self.evaluation.clear()
            return
        self.log_dict(self.evaluation.after_epoch(self.all_ranks))

    def on_test_epoch_end(self) -> None:
        self.log_dict(self.evaluation.at_the_end(self.all_ranks))

    def all_ranks(self, value: Tensor) -> Tensor:
        """The rows of `value` of all processes."""
        return self.all_gather(value).flatten(0, 1) if self.trainer.world_size > 1 else value

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["best"] = dict(self.evaluation.best)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.evaluation.best = dict(checkpoint["best"])
