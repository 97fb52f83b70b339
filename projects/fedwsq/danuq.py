"""DANUQ: the local update in units of a shared scale, each value as the nearest of a few normal levels."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from projects.fedwsq.levels import danuq_table, nearest
from shared.errors import UserError
from shared.federated.codecs import Codec, Context
from shared.federated.codecs.quantise import pack_bits, unpack_bits
from shared.training.seeding import generator

CHOICES = (1, 2, 4)  # bits of mixed allocations; their mean is 7/3
ALLOCATIONS = ("none", "fixed", "dynamic")


def quantise(update: Tensor, scale: Tensor | float, table: Tensor) -> Tensor:
    """Places (int32) of `update` / `scale` in `table`; the update is not centred."""
    return nearest(update / scale, table)


def dequantise(codes: Tensor, scale: Tensor | float, table: Tensor) -> Tensor:
    """The reconstructed update. The official code multiplies by the scale that it divided by, the shared one;
    a third party's reading of the paper's Algorithm 1 takes the client's own."""
    return scale * table[codes.long()]


class DANUQ(Codec):
    """An entry model/<name> as B-bit codes of its difference to what was received, packed.

    Both ends read the scale from the downlink entry scales/<name>. Nothing but the codes travels in here; the
    client's own deviation is an entry of the reply. B is `bits`, or what the client put into its state under
    "bits" (mixed allocations); the message says which.
    """

    unbiased = False
    needs_reference = True

    def __init__(self, bits: int, *, levels: str = "published", only: str = "") -> None:
        super().__init__(only)
        self.bits, self.levels = bits, levels
        danuq_table(bits, levels)  # no such table: said here

    def encode(self, name: str, value: Tensor, context: Context) -> tuple[dict[str, Tensor], dict]:
        received, scale = self._known(name, context)
        bits = int(context.state.get("bits", self.bits))
        codes = quantise(value.detach().cpu() - received, scale, danuq_table(bits, self.levels))
        return {"codes": pack_bits(codes, bits)}, {"bits": bits}

    def decode(self, name: str, parts: dict[str, Tensor], info: dict[str, Any], context: Context) -> Tensor:
        received, scale = self._known(name, context)
        codes = unpacked(parts["codes"], info["bits"], received.numel())
        table = danuq_table(info["bits"], self.levels)
        return received + dequantise(codes, scale, table).view_as(received)

    def _known(self, name: str, context: Context) -> tuple[Tensor, Tensor]:
        received, scale = context.tensor(name), context.tensor(name.replace("model/", "scales/", 1))
        if received is None or scale is None:
            raise LookupError(f"the downlink held no value or no scale of '{name}'")
        return received, scale


def unpacked(packed: Tensor, bits: int, count: int) -> Tensor:
    """`count` codes (int32) of `bits` bits each.

    Raises:
        ValueError: not the bytes that `count` codes take.
    """
    if packed.dtype != torch.uint8 or packed.numel() != math.ceil(bits * count / 8):
        raise ValueError(f"{count} codes of {bits} bits are no {packed.numel()} bytes of {packed.dtype}")
    return unpack_bits(packed, bits, count)


def quantised_names(model: nn.Module) -> list[str]:
    """Entries that are quantised: the weights of all convolutions but the first, which is the stem."""
    convolutions = [name for name, module in model.named_modules() if isinstance(module, nn.Conv2d)]
    return [f"{name}.weight" for name in convolutions[1:]]


def pattern(names: Iterable[str]) -> str:
    """The `only` of codecs that act on these entries of the group "model"."""
    return f"^model/(?:{'|'.join(map(re.escape, names))})$"


def allocated_bits(allocation: str, bits: int, *, seed: int, client: int, round: int) -> int:
    """B of a client: `bits` ("none"), or 1, 2 or 4, drawn once ("fixed", FBA) or every round ("dynamic")."""
    if allocation == "none":
        return bits
    when = [round] if allocation == "dynamic" else []
    drawn = torch.randint(len(CHOICES), (), generator=generator(seed, "bits", client, *when))
    return CHOICES[int(drawn)]


def check_allocation(allocation: str) -> None:
    if allocation not in ALLOCATIONS:
        raise UserError(f"quantizer.allocation takes {', '.join(ALLOCATIONS)}, found '{allocation}'.")


def uplink_bits(model: nn.Module, bits: float) -> float:
    """B a quantised value, 32 a quantised layer for its deviation, 32 any other value of the model."""
    names, held = set(quantised_names(model)), model.state_dict()
    packed = sum(held[name].numel() for name in names)
    rest = sum(value.numel() for name, value in held.items() if name not in names)
    return bits * packed + 32 * len(names) + 32 * rest
