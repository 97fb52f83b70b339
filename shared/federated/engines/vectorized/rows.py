"""Some of the lanes of a stack."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor


class Rows:
    """`lanes`: ascending places in stacks (K, ...). Neighbours are views, others are copied and put back."""

    def __init__(self, lanes: Sequence[int]) -> None:
        self.lanes = list(lanes)
        first, last = self.lanes[0], self.lanes[-1]
        adjoining = self.lanes == list(range(first, last + 1))
        self._slice = slice(first, last + 1) if adjoining else None

    def take(self, stack: Tensor) -> Tensor:
        """(k, ...)"""
        return stack[
            self._slice if self._slice is not None else torch.tensor(self.lanes, device=stack.device)
        ]

    def put(self, stack: Tensor, part: Tensor) -> None:
        """Set the rows to what `take` gave and was changed in place since."""
        if self._slice is None:
            stack[torch.tensor(self.lanes, device=stack.device)] = part

    @contextlib.contextmanager
    def of(self, stack: Tensor) -> Iterator[Tensor]:
        part = self.take(stack)
        yield part
        self.put(stack, part)
