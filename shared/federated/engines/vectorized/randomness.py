"""The state of the global random streams, as one value."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor


@dataclass(eq=False)
class Randomness:
    """Of python, numpy and torch; `cuda` of `device` when that is one."""

    python: Any
    numpy: Any
    cpu: Tensor
    cuda: Tensor | None
    device: torch.device

    @classmethod
    def capture(cls, device: torch.device) -> Randomness:
        cuda = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
        numpy = np.random.get_state()  # noqa: NPY002 - third-party code draws from it
        return cls(random.getstate(), numpy, torch.get_rng_state(), cuda, device)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Randomness) and (
            self.python == other.python
            and all(np.array_equal(a, b) for a, b in zip(self.numpy, other.numpy, strict=True))
            and torch.equal(self.cpu, other.cpu)
            and (self.cuda is None or torch.equal(self.cuda, other.cuda))
        )

    def restore(self) -> None:
        random.setstate(self.python)
        np.random.set_state(self.numpy)  # noqa: NPY002
        torch.set_rng_state(self.cpu)
        if self.cuda is not None:
            torch.cuda.set_rng_state(self.cuda, self.device)

    def generator(self) -> torch.Generator:
        """A generator on `device` that goes on where its stream is."""
        generator = torch.Generator(self.device)
        generator.set_state(self.cpu if self.cuda is None else self.cuda)
        return generator

    def take_over(self, generator: torch.Generator) -> None:
        """The stream of `device` is now where `generator` is."""
        if self.cuda is None:
            self.cpu = generator.get_state()
        else:
            self.cuda = generator.get_state()
