"""Quantisers of an update that carry their own scale: levels times the largest value, and QSGD.

They act after `Delta`, so their input is W_i - W_g.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from projects.fedwsq.danuq import unpacked
from projects.fedwsq.levels import absmax_table, nearest
from shared.errors import UserError
from shared.federated.codecs import Codec, Context
from shared.federated.codecs.quantise import pack_bits


class AbsMax(Codec):
    """The nearest of 2^bits levels in -1 .. 1, times the tensor's largest absolute value (4 bytes).

    kind: "uniform" (equally spaced; one bit: the sign), "nf" (normal float) or "fp" (E2M1, 4 bits).
    """

    unbiased = False

    def __init__(self, kind: str, bits: int, *, only: str = "") -> None:
        super().__init__(only)
        self.kind, self.bits = kind, bits
        absmax_table(kind, bits)  # no such table: said here

    def encode(self, name: str, value: Tensor, context: Context) -> tuple[dict[str, Tensor], dict]:
        flat = value.detach().cpu().reshape(-1).float()
        scale = flat.abs().max() if flat.numel() else torch.zeros(())
        codes = nearest(flat / scale if scale > 0 else flat, absmax_table(self.kind, self.bits))
        return {"codes": pack_bits(codes, self.bits), "scale": scale}, {"shape": list(value.shape)}

    def decode(self, name: str, parts: dict[str, Tensor], info: dict[str, Any], context: Context) -> Tensor:
        codes = unpacked(parts["codes"], self.bits, math.prod(info["shape"]))
        return (parts["scale"] * absmax_table(self.kind, self.bits)[codes.long()]).view(info["shape"])


class QSGD(Codec):
    """sign(x) ||x||_2 k / s, k = s |x| / ||x||_2 rounded up or down at random, s = 2^(bits - 1), per tensor.

    Unbiased (Alistarh et al. 2017); with `Delta` before it FedPAQ (Reisizadeh et al. 2020). There are 2 s + 1
    values, from -s to s, so a code of fixed length takes bits + 1 bits, and that many are sent.
    """

    def __init__(self, bits: int, *, only: str = "") -> None:
        super().__init__(only)
        if not 1 <= bits <= 8:
            raise UserError(f"qsgd takes 1 to 8 bits, found {bits}.")
        self.bits = bits

    @property
    def steps(self) -> int:
        return 2 ** (self.bits - 1)

    def encode(self, name: str, value: Tensor, context: Context) -> tuple[dict[str, Tensor], dict]:
        flat = value.detach().cpu().reshape(-1).float()
        norm = flat.norm()
        share = flat.abs() * (self.steps / norm) if norm > 0 else torch.zeros_like(flat)
        size = torch.floor(share + torch.rand(share.shape, generator=context.generator)).clamp_(0, self.steps)
        codes = (size * flat.sign() + self.steps).to(torch.int32)
        return {"codes": pack_bits(codes, self.bits + 1), "norm": norm}, {"shape": list(value.shape)}

    def decode(self, name: str, parts: dict[str, Tensor], info: dict[str, Any], context: Context) -> Tensor:
        codes = unpacked(parts["codes"], self.bits + 1, math.prod(info["shape"]))
        if codes.numel() and int(codes.max()) > 2 * self.steps:
            raise ValueError(f"a code is above {2 * self.steps}")
        return ((codes - self.steps) * (parts["norm"] / self.steps)).view(info["shape"])


def quantizer(name: str, bits: int, only: str = "") -> Codec:
    """The codec of "uniform", "nf", "fp" or "qsgd"."""
    return QSGD(bits, only=only) if name == "qsgd" else AbsMax(name, bits, only=only)
