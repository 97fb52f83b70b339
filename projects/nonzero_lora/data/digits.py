"""Scikit-learn's 1,797 handwritten digits of 8 x 8 standardised pixels, a fixed split."""

from __future__ import annotations

import functools
from typing import Any

import torch
from lightning.pytorch import LightningDataModule
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from shared.errors import UserError
from shared.training.loader import ResumableLoader
from shared.training.seeding import generator

PIXELS, CLASSES = 64, 10
SPLIT_SEED = 0


@functools.lru_cache(maxsize=1)
def load() -> tuple[Tensor, Tensor]:
    """Images (1797, 64) in 0 .. 1 and labels (1797)."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    return torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)


class DigitsData(LightningDataModule):
    """One epoch is the whole training: `steps` batches drawn without replacement from repeated random orders.

    Args:
        config: a `DigitsConfig`.
        seed: of the training order; the split is the same for every seed.
    """

    def __init__(self, config: Any, seed: int) -> None:
        super().__init__()
        self.config, self.seed = config, seed
        images, labels = load()
        if not 0 < config.test_images <= len(labels) - config.batch_size:
            raise UserError(
                f"digits: of {len(labels)} images test_images={config.test_images} test; the others "
                f"must fill a batch of {config.batch_size}."
            )
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(SPLIT_SEED))
        test, train = order[: config.test_images], order[config.test_images :]
        mean, std = images[train].mean(0), images[train].std(0)
        std = torch.where(std > 0, std, 1.0)  # a corner pixel that no training image uses
        self.train_images, self.train_labels = (images[train] - mean) / std, labels[train]
        self.test_images, self.test_labels = (images[test] - mean) / std, labels[test]

    def train_dataloader(self) -> DataLoader:
        c, stream = self.config, generator("digits", "order", self.seed)
        count = len(self.train_labels) // c.batch_size * c.batch_size
        epochs = -(-c.steps * c.batch_size // count)
        order = torch.cat(
            [torch.randperm(len(self.train_labels), generator=stream)[:count] for _ in range(epochs)]
        )[: c.steps * c.batch_size]
        return ResumableLoader(
            TensorDataset(self.train_images[order], self.train_labels[order]), c.batch_size
        )

    def test_dataloader(self) -> DataLoader:
        return ResumableLoader(TensorDataset(self.test_images, self.test_labels), len(self.test_labels))
