"""Attaching an adapter to any model by name pattern: the paper's starts and the baselines.

The layers, their forward pass and merging are peft's; so are rsLoRA, DoRA and PiSSA. MiLoRA's start is
written out below. LoRA+ differs from LoRA in the optimiser alone (`optimisation.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import torch
from peft import LoraConfig, inject_adapter_in_model
from torch import nn
from transformers.pytorch_utils import Conv1D

from projects.nonzero_lora.config import check_adapter
from projects.nonzero_lora.initialisation import (
    InitScheme,
    add_to_weight,
    base_weight,
    initialise,
    lora_layers,
    match_layers,
)
from shared.errors import UserError

OWN_START = ("dora", "pissa", "milora", "full")  # methods that c_a, c_b and reset do not apply to


def scheme_of(config: Any) -> InitScheme:
    """The `InitScheme` of an `AdapterConfig`."""
    return InitScheme(float(config.c_a), float(config.c_b), bool(config.reset))


def attach(model: nn.Module, config: Any, seed: int) -> nn.Module:
    """Freeze `model`, give the layers that `config.targets` names an adapter, and start it; returns `model`.

    Only the factors train afterwards (and DoRA's magnitudes; with method "full" every weight of the model).

    Args:
        config: an `AdapterConfig`.
        seed: of the adapter's start.

    Raises:
        UserError: a target that matches nothing, a rank above a layer's size, an unknown method.
    """
    check_adapter(config)
    scheme = scheme_of(config)
    if config.method in OWN_START and scheme != InitScheme(1, 0):
        raise UserError(
            f"adapter.method={config.method} brings its own start; leave c_a=1, c_b=0, reset=false "
            f"(found c_a={config.c_a}, c_b={config.c_b}, reset={config.reset})."
        )
    model.requires_grad_(config.method == "full")
    if config.method == "full":
        return model
    inject_adapter_in_model(_peft_config(model, config), model)
    if config.method in ("lora", "rslora", "dora"):
        initialise(model, scheme, seed)
    elif config.method == "milora":
        start_from_minor_components(model)
    return model


def merge(model: nn.Module, adapter: str = "default") -> None:
    """W <- W_eff + (alpha / r) B A in every adapted layer: inference then costs nothing extra."""
    for _, layer in lora_layers(model, adapter):
        layer.merge(adapter_names=[adapter])


def unmerge(model: nn.Module, adapter: str = "default") -> None:
    """Undo `merge`."""
    for _, layer in lora_layers(model, adapter):
        if layer.merged:
            layer.unmerge()


@torch.no_grad()
def start_from_minor_components(model: nn.Module, adapter: str = "default") -> None:
    """MiLoRA: the factors are the r smallest singular directions of W, taken out of the frozen weight.

    W = U S V^T; B0 = U_r S_r^(1/2) / sqrt(s), A0 = S_r^(1/2) V_r^T / sqrt(s) with s = alpha / r, so that
    W_eff + s B0 A0 = W (Wang et al. 2024, arXiv 2406.09044).
    """
    for _, layer in lora_layers(model, adapter):
        rank, scale = layer.r[adapter], layer.scaling[adapter]
        u, s, vt = torch.linalg.svd(base_weight(layer).float(), full_matrices=False)
        root = (s[-rank:] / scale).sqrt()
        layer.lora_B[adapter].weight.copy_(u[:, -rank:] * root)
        layer.lora_A[adapter].weight.copy_(root[:, None] * vt[-rank:])
        product = layer.lora_B[adapter].weight.float() @ layer.lora_A[adapter].weight.float()
        add_to_weight(layer, -scale * product)


def trainable_parameters(model: nn.Module) -> int:
    """Number of trained values: r (m + n) a layer for LoRA, whatever its start."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


def exactly(names: Iterable[str]) -> str:
    """peft's `target_modules` for these layers and no others.

    Of a list peft also takes every layer whose name ends in ".<entry>", of whatever kind.
    """
    return "|".join(re.escape(name) for name in names)


def _peft_config(model: nn.Module, config: Any) -> LoraConfig:
    names = match_layers(model, list(config.targets))
    for name in names:
        sides = tuple(model.get_submodule(name).weight.shape)
        if config.rank > min(sides):
            raise UserError(
                f"adapter.rank={config.rank} is above the smaller side of '{name}' {sides}: "
                f"use {min(sides)} or less."
            )
    return LoraConfig(
        r=config.rank,
        lora_alpha=config.alpha,
        lora_dropout=config.dropout,
        target_modules=exactly(names),
        fan_in_fan_out=any(isinstance(model.get_submodule(name), Conv1D) for name in names),
        use_rslora=config.method == "rslora",
        use_dora=config.method == "dora",
        init_lora_weights="pissa" if config.method == "pissa" else True,
    )
