"""Representations that lose little or nothing: difference to what was received, and a narrower float."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from shared.errors import UserError
from shared.federated.codecs import Codec, Context


class Delta(Codec):
    """Send x - received instead of x, where a tensor of that name and shape was received.

    What follows in the chain (clip, noise, quantise) then acts on the update. Floats round: decode(encode(x))
    is within one unit in the last place of x.
    """

    needs_reference = True

    def encode(self, name: str, value: Tensor, context: Context) -> tuple[dict[str, Tensor], dict] | None:
        received = context.tensor(name)
        if received is None or received.shape != value.shape:
            return None
        return {"delta": value.cpu() - received.cpu()}, {}

    def decode(self, name: str, parts: dict[str, Tensor], info: dict[str, Any], context: Context) -> Tensor:
        return context.tensor(name) + parts["delta"]


class Cast(Codec):
    """Send in a narrower float ("float16" or "bfloat16"); the receiver widens it again."""

    unbiased = False

    def __init__(self, dtype: str = "bfloat16", *, only: str = "") -> None:
        super().__init__(only)
        if dtype not in ("float16", "bfloat16"):
            raise UserError(f"Cast takes float16 or bfloat16, found {dtype!r}.")
        self.dtype = dtype

    def encode(self, name: str, value: Tensor, context: Context) -> tuple[dict[str, Tensor], dict]:
        return {"cast": value.to(getattr(torch, self.dtype))}, {"from": str(value.dtype).split(".")[-1]}

    def decode(self, name: str, parts: dict[str, Tensor], info: dict[str, Any], context: Context) -> Tensor:
        return parts["cast"].to(getattr(torch, info["from"]))
