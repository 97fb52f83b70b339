"""b bits a value, really packed: 8 values of 1 bit are one byte on the wire."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shared.errors import UserError
from shared.federated.codecs import Codec, Context


class Uniform(Codec):
    """2^b equally spaced levels from the tensor's least to its greatest value, rounded at random.

    Unbiased: x between two levels goes up with the probability of its distance to the lower one (QSGD of
    Alistarh et al. 2017, with a range in place of a norm). |decode(encode(x)) - x| < (max - min) / (2^b - 1).
    With `stochastic=False` it rounds to the nearest level, with half that error and a bias. Side information:
    8 bytes.
    """

    def __init__(self, bits: int, *, stochastic: bool = True, only: str = "") -> None:
        super().__init__(only)
        if not 1 <= bits <= 16:
            raise UserError(f"Uniform takes 1 to 16 bits, found {bits}.")
        self.bits, self.stochastic = bits, stochastic

    @property
    def unbiased(self) -> bool:
        return self.stochastic

    def encode(self, name: str, value: Tensor, context: Context) -> tuple[dict[str, Tensor], dict]:
        flat = value.detach().cpu().reshape(-1).float()
        low, high = (flat.min(), flat.max()) if flat.numel() else (torch.zeros(()), torch.zeros(()))
        top = 2**self.bits - 1
        scaled = (flat - low) * (top / (high - low)) if high > low else torch.zeros_like(flat)
        if self.stochastic:
            scaled = torch.floor(scaled + torch.rand(scaled.shape, generator=context.generator))
        codes = scaled.round().clamp(0, top).to(torch.int32)
        info = {"shape": list(value.shape), "bits": self.bits, "dtype": str(value.dtype).split(".")[-1]}
        return {"codes": pack_bits(codes, self.bits), "range": torch.stack([low, high])}, info

    def decode(self, name: str, parts: dict[str, Tensor], info: dict[str, Any], context: Context) -> Tensor:
        low, high = parts["range"]
        codes = unpack_bits(parts["codes"], info["bits"], math.prod(info["shape"]))
        values = low + codes * ((high - low) / (2 ** info["bits"] - 1))
        return values.reshape(info["shape"]).to(getattr(torch, info["dtype"]))


def pack_bits(codes: Tensor, bits: int) -> Tensor:
    """Whole numbers in [0, 2^bits), (n,), as ceil(bits * n / 8) bytes."""
    values = codes.reshape(-1).numpy().astype(np.uint16)
    if bits in (8, 16):
        return torch.from_numpy(values.astype(f"<u{bits // 8}").view(np.uint8))
    if 8 % bits == 0:  # whole values fit a byte
        per_byte = 8 // bits
        padded = np.zeros(-(-len(values) // per_byte) * per_byte, np.uint8)
        padded[: len(values)] = values
        shifts = np.arange(per_byte, dtype=np.uint8) * bits
        return torch.from_numpy((padded.reshape(-1, per_byte) << shifts).sum(1, dtype=np.uint8))
    spread = (values[:, None] >> np.arange(bits, dtype=np.uint16)) & 1  # (n, bits)
    return torch.from_numpy(np.packbits(spread.astype(np.uint8).reshape(-1), bitorder="little"))


def unpack_bits(packed: Tensor, bits: int, count: int) -> Tensor:
    """The inverse of `pack_bits`: (count,) int32."""
    data = packed.numpy()
    if bits in (8, 16):
        values = np.ascontiguousarray(data).view(f"<u{bits // 8}")
    elif 8 % bits == 0:
        shifts = np.arange(8 // bits, dtype=np.uint8) * bits
        values = ((data[:, None] >> shifts) & (2**bits - 1)).reshape(-1)
    else:
        spread = np.unpackbits(data, count=count * bits, bitorder="little").reshape(count, bits)
        values = (spread.astype(np.int32) << np.arange(bits)).sum(1)
    return torch.from_numpy(values[:count].astype(np.int32))
