"""A data loader whose order is a function of (seed, epoch) and which restarts inside an epoch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, Sampler


class SeededSampler(Sampler[int]):
    """Indices in the order drawn from (seed, epoch); Lightning calls `set_epoch` before each epoch."""

    def __init__(self, size: int, seed: int, shuffle: bool) -> None:
        self.size, self.seed, self.shuffle, self.epoch = size, seed, shuffle, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[int]:
        if not self.shuffle:
            return iter(range(self.size))
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + self.epoch)
        return iter(torch.randperm(self.size, generator=generator).tolist())


class ResumableLoader(DataLoader):
    """`DataLoader` with a reproducible order; Lightning saves its position with every checkpoint.

    Args:
        seed: loaders with equal seed and data give the same batches, whatever else draws random numbers.
        shuffle: a new order every epoch, a function of (seed, epoch) alone.

    The position is the number of batches handed out in the running epoch. Resuming reads and drops the
    batches before it, which costs loading time but works for any data set, sampler and number of workers.
    """

    def __init__(
        self,
        dataset: Dataset,
        batch_size: int = 1,
        *,
        seed: int = 0,
        shuffle: bool = False,
        sampler: Sampler | None = None,
        collate_fn: Callable[[list], Any] | None = None,
        drop_last: bool = False,
        num_workers: int = 0,
        generator: torch.Generator | None = None,
        **kwargs: Any,
    ) -> None:
        self.seed, self.shuffle = seed, shuffle
        self._handed_out = self._skip = 0
        super().__init__(
            dataset,
            batch_size,
            sampler=sampler if sampler is not None else SeededSampler(len(dataset), seed, shuffle),
            collate_fn=collate_fn,
            drop_last=drop_last,
            num_workers=num_workers,
            generator=generator or torch.Generator().manual_seed(seed),  # leaves the global stream alone
            **kwargs,
        )

    def __iter__(self) -> Iterator[Any]:
        skip, self._skip = self._skip, 0
        self._handed_out = skip
        for number, batch in enumerate(super().__iter__()):
            if number >= skip:
                self._handed_out += 1
                yield batch

    def state_dict(self) -> dict[str, int]:
        return {"handed_out": self._handed_out}

    def load_state_dict(self, state: dict[str, int]) -> None:
        # A checkpoint at the very end of an epoch continues with the next epoch from its start.
        self._skip = state["handed_out"] % max(len(self), 1)
