"""Clipping and noise: the mechanisms of differential privacy. Sensitivity is that of one client's message.

In a simulation the noise comes from the run's seed, so that results repeat; that is no protection against
whoever knows the seed. A deployment draws it from the system (`docs/federated.md`).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from shared.errors import UserError
from shared.federated.codecs import Codec, Context


class Clip(Codec):
    """Scale all taken tensors together so that their joint L2 norm is at most `norm`.

    Put it after `Delta` to bound an update. Per tensor with `each=True`, e.g. to clip layers apart.
    """

    unbiased = False

    def __init__(self, norm: float, *, each: bool = False, only: str = "") -> None:
        super().__init__(only)
        if not norm > 0:
            raise UserError(f"Clip takes a positive norm, found {norm}.")
        self.norm, self.each = norm, each

    def transform(self, tensors: dict[str, Tensor], context: Context) -> dict[str, Tensor]:
        if math.isinf(self.norm):
            return tensors
        if self.each:
            return {name: _scaled(value, value.norm(), self.norm) for name, value in tensors.items()}
        total = torch.stack([value.norm() for value in tensors.values()]).norm()
        return {name: _scaled(value, total, self.norm) for name, value in tensors.items()}


class Gaussian(Codec):
    """Add N(0, std²) to every value: (ε, δ) for std = noise multiplier × sensitivity."""

    def __init__(self, std: float, *, only: str = "") -> None:
        super().__init__(only)
        if std < 0:
            raise UserError(f"Gaussian takes a standard deviation of at least 0, found {std}.")
        self.std = std

    def transform(self, tensors: dict[str, Tensor], context: Context) -> dict[str, Tensor]:
        if self.std == 0:
            return tensors
        return {
            name: value.cpu()
            + self.std * torch.randn(value.shape, generator=context.generator).to(value.dtype)
            for name, value in tensors.items()
        }


class Laplace(Codec):
    """Add Laplace(0, scale) to every value: ε = L1 sensitivity / scale."""

    def __init__(self, scale: float, *, only: str = "") -> None:
        super().__init__(only)
        if scale < 0:
            raise UserError(f"Laplace takes a scale of at least 0, found {scale}.")
        self.scale = scale

    def transform(self, tensors: dict[str, Tensor], context: Context) -> dict[str, Tensor]:
        if self.scale == 0:
            return tensors
        return {name: value.cpu() + self._draw(value, context.generator) for name, value in tensors.items()}

    def _draw(self, value: Tensor, generator: torch.Generator) -> Tensor:
        signs = (
            torch.randint(0, 2, value.shape, generator=generator) * 2 - 1
        )  # a Laplace variable is a signed exponential
        return (signs * torch.empty(value.shape).exponential_(1 / self.scale, generator=generator)).to(
            value.dtype
        )


def _scaled(value: Tensor, norm: Tensor, bound: float) -> Tensor:
    return value * (bound / norm) if norm > bound else value
