"""The data of a run: batches of the source, and the novel part of every domain for features."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import LightningDataModule

from projects.recit.data import REAL, load_pool
from projects.recit.data.pools import EpochSampler, Pool, PoolDataset, test_transform, train_transform
from shared.training.loader import ResumableLoader


class RecitData(LightningDataModule):
    """Attributes:
    base: the pool that is trained on.
    domains: the pools that episodes are drawn from, the source's first.
    """

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config
        own = config.domains
        self.base: Pool = load_pool(own.source, "base", config)
        self.domains: list[Pool] = [load_pool(name, "novel", config) for name in [own.source, *own.targets]]

    def train_dataloader(self) -> ResumableLoader:
        own, size = self.config.domains, self.config.network.image_size
        augment = own.augment and own.source in REAL
        transform = train_transform(size) if augment else test_transform(size)
        dataset = PoolDataset(self.base, transform, self.config.seed)
        sampler = EpochSampler(len(dataset), self.config.seed, shuffle=True)
        return self._loader(dataset, own.batch_size, sampler=sampler, drop_last=len(dataset) > own.batch_size)

    def val_dataloader(self) -> list[ResumableLoader]:
        """One loader for each of `domains`; trainer.limit_val_batches=0 leaves out the tests after epochs."""
        return self._tested()

    def test_dataloader(self) -> list[ResumableLoader]:
        return self._tested()

    def _tested(self) -> list[ResumableLoader]:
        transform = test_transform(self.config.network.image_size)
        size = self.config.domains.test_batch_size
        return [self._loader(PoolDataset(pool, transform), size) for pool in self.domains]

    def _loader(self, dataset: PoolDataset, batch_size: int, **options: Any) -> ResumableLoader:
        workers = self.config.runtime.num_workers
        return ResumableLoader(
            dataset,
            batch_size,
            seed=self.config.seed,
            num_workers=workers,
            persistent_workers=False,
            pin_memory=False,
            **options,
        )
