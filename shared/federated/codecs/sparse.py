"""Sending some of the values: the largest, or a random set that a seed names."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from shared.errors import UserError
from shared.federated.codecs import Codec, Context


class TopK(Codec):
    """The `fraction` of values that are largest in size, with their 32-bit places; the rest becomes 0."""

    unbiased = False

    def __init__(self, fraction: float, *, only: str = "") -> None:
        super().__init__(only)
        self.fraction = _fraction(fraction)

    def encode(self, name: str, value: Tensor, context: Context) -> tuple[dict[str, Tensor], dict]:
        flat = value.reshape(-1)
        places = flat.abs().topk(_count(self.fraction, flat.numel())).indices.sort().values
        return {"values": flat[places], "places": places.to(torch.int32)}, {"shape": list(value.shape)}

    def decode(self, name: str, parts: dict[str, Tensor], info: dict[str, Any], context: Context) -> Tensor:
        return _scatter(parts["values"], parts["places"].long(), info["shape"])


class RandomK(Codec):
    """A random `fraction` of the values, scaled by 1/fraction; their places cost one 8-byte seed."""

    def __init__(self, fraction: float, *, only: str = "") -> None:
        super().__init__(only)
        self.fraction = _fraction(fraction)

    def encode(self, name: str, value: Tensor, context: Context) -> tuple[dict[str, Tensor], dict]:
        seed = torch.randint(2**62, (), generator=context.generator)
        count = _count(self.fraction, value.numel())
        places = _places(seed, count, value.numel())
        values = value.reshape(-1)[places] * (value.numel() / count)
        return {"values": values, "seed": seed}, {"shape": list(value.shape)}

    def decode(self, name: str, parts: dict[str, Tensor], info: dict[str, Any], context: Context) -> Tensor:
        values = parts["values"]
        places = _places(parts["seed"], values.numel(), math.prod(info["shape"]))
        return _scatter(values, places, info["shape"])


def _fraction(fraction: float) -> float:
    if not 0 < fraction <= 1:
        raise UserError(f"the fraction of values sent must be in (0, 1], found {fraction}.")
    return fraction


def _count(fraction: float, size: int) -> int:
    return max(1, round(fraction * size)) if size else 0


def _places(seed: Tensor, count: int, size: int) -> Tensor:
    return torch.randperm(size, generator=torch.Generator().manual_seed(int(seed)))[:count]


def _scatter(values: Tensor, places: Tensor, shape: list[int]) -> Tensor:
    flat = values.new_zeros(math.prod(shape))
    flat[places] = values
    return flat.reshape(shape)
