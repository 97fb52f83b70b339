"""Init[A], Init[B], Init[AB] and the reset of a LoRA adapter: the paper's contribution.

Notation: a frozen weight W (m, n) with n = in_features, A (r, n), B (m, r), and
Y = X (W_eff + (alpha / r) B A)^T with W_eff = W - reset * (alpha / r) B0 A0.

The layers themselves are peft's. Nothing here depends on a model family: every adapted `nn.Linear` or Hugging
Face `Conv1D` is treated alike.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import torch
from peft.tuners.lora import LoraLayer
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from shared.errors import UserError
from shared.training.seeding import generator

PEFT_PREFIX = "base_model.model."  # what `get_peft_model` puts before every name


@dataclass(frozen=True)
class InitScheme:
    """Entries of A0 are uniform in +-c_a / sqrt(n), those of B0 in +-c_b / sqrt(n).

    Both widths use n = in_features: B's own fan-in is r, and 1 / sqrt(r) would make B0 A0 sqrt(n / r) too
    large. c = 1 is the width of peft's default A (variance 1 / (3 n)).
    """

    c_a: float
    c_b: float
    reset: bool = False

    def __post_init__(self) -> None:
        if not (self.c_a >= 0 and self.c_b >= 0 and math.isfinite(self.c_a + self.c_b)):
            raise UserError(
                f"c_a and c_b must be finite and not negative; found c_a={self.c_a}, c_b={self.c_b}."
            )
        if self.c_a == self.c_b == 0:
            raise UserError(
                "c_a and c_b are both 0: no gradient would reach A or B. Make one of them positive."
            )


INIT_A = InitScheme(1, 0)
INIT_B = InitScheme(0, 1)
INIT_AB = InitScheme(1, 1)
INIT_AB_RESET = InitScheme(1, 1, reset=True)


def draw(name: str, layer: LoraLayer, scheme: InitScheme, seed: int, adapter: str) -> tuple[Tensor, Tensor]:
    """A0 (r, n) and B0 (m, r) of one layer, float32, from a generator of its own named by (seed, layer name).

    Both are always drawn, A0 first, and only then scaled: all schemes of a seed share the same draws.
    """
    rank, bound = layer.r[adapter], 1 / math.sqrt(layer.in_features)
    stream = generator("lora", seed, name)
    a = torch.empty(rank, layer.in_features).uniform_(-bound, bound, generator=stream)
    b = torch.empty(layer.out_features, rank).uniform_(-bound, bound, generator=stream)
    return scheme.c_a * a, scheme.c_b * b


@torch.no_grad()
def initialise(model: nn.Module, scheme: InitScheme, seed: int, adapter: str = "default") -> None:
    """Start the LoRA factors of every adapted layer of `model` by `scheme`, in place.

    Args:
        model: holds peft's LoRA layers (`attach`, `inject_adapter_in_model` or `get_peft_model`), not merged.
        seed: of the factors; a layer's draw depends on (seed, its name) and on nothing else.

    Raises:
        UserError: no adapted layer, a merged one, or one of a kind that is not supported.
    """
    for name, layer in lora_layers(model, adapter):
        if layer.merged:
            raise UserError(f"the adapter of '{name}' is merged; call unmerge(model) before initialising.")
        if scheme.c_b and layer.use_dora[adapter]:
            raise UserError("a non-zero B0 is not defined for DoRA, whose magnitudes were taken at B = 0.")
        a, b = draw(name, layer, scheme, seed, adapter)
        factor_a, factor_b = layer.lora_A[adapter].weight, layer.lora_B[adapter].weight
        factor_a.copy_(a)
        factor_b.copy_(b)
        if scheme.reset:
            # Of the factors as stored: when they are bfloat16 the layer multiplies the rounded ones.
            product = factor_b.float() @ factor_a.float()
            add_to_weight(layer, -layer.scaling[adapter] * product)


def add_to_weight(layer: LoraLayer, delta: Tensor) -> None:
    """W <- W + delta with delta (m, n) in float32, rounded once to the dtype of W."""
    weight = layer.get_base_layer().weight  # (m, n), or (n, m) in a Conv1D
    if layer.fan_in_fan_out:
        delta = delta.T
    weight.data.copy_(weight.float() + delta.to(weight.device))


def base_weight(layer: LoraLayer) -> Tensor:
    """The layer's frozen weight as (m, n), whatever its layout in memory."""
    weight = layer.get_base_layer().weight.detach()
    return weight.T if layer.fan_in_fan_out else weight


def lora_layers(model: nn.Module, adapter: str = "default") -> Iterator[tuple[str, LoraLayer]]:
    """Name and layer of everything that carries `adapter`; names as in the model before peft wrapped it.

    Raises:
        UserError: there is none, or one is neither `nn.Linear` nor `Conv1D`.
    """
    found = False
    for name, layer in model.named_modules():
        if not isinstance(layer, LoraLayer) or adapter not in layer.r:
            continue
        if not isinstance(layer.get_base_layer(), (nn.Linear, Conv1D)):
            kind = type(layer.get_base_layer()).__name__
            raise UserError(
                f"'{name}' is a {kind}; the initialisation is defined for Linear and Conv1D layers."
            )
        found = True
        yield name.removeprefix(PEFT_PREFIX), layer
    if not found:
        raise UserError(f"the model has no LoRA layer of an adapter called '{adapter}': attach one first.")


def match_layers(model: nn.Module, patterns: Sequence[str]) -> list[str]:
    """Names of the `nn.Linear` / `Conv1D` layers that a pattern picks.

    A pattern is a whole name, the last parts of one ("query", "self.query") or a glob over the whole name
    ("layers.2[0-9].*.q_proj").

    Raises:
        UserError: a pattern picks nothing; the nearest layer names are listed.
    """
    names = [name for name, module in model.named_modules() if isinstance(module, (nn.Linear, Conv1D))]
    picked: set[str] = set()
    for pattern in patterns:
        hits = [n for n in names if n == pattern or n.endswith(f".{pattern}") or fnmatchcase(n, pattern)]
        if not hits:
            raise UserError(
                f"adapter.targets: '{pattern}' matches no linear layer of {type(model).__name__}."
                f" Nearest names: {', '.join(_nearest(pattern, names)) or 'none, it has no linear layer'}."
            )
        picked.update(hits)
    if not picked:
        raise UserError("adapter.targets is empty: name at least one layer, for example [query, value].")
    return [name for name in names if name in picked]


def _nearest(pattern: str, names: Sequence[str], count: int = 5) -> list[str]:
    """Names whose end looks most like `pattern`."""
    parts = pattern.count(".") + 1

    def likeness(name: str) -> float:
        return difflib.SequenceMatcher(None, pattern, ".".join(name.split(".")[-parts:])).ratio()

    return sorted(names, key=likeness, reverse=True)[:count]
