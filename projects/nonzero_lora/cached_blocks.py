"""The frozen lower blocks of a LLaMA-type model, run once; what trains is the rest of the model."""

from __future__ import annotations

import hashlib
from pathlib import Path

import torch
from torch import Tensor, nn

from projects.nonzero_lora.data.features import Features, cached
from shared.errors import UserError

BATCH = 8  # chunks computed at once


def check(model: nn.Module, blocks: int) -> None:
    """Raise a `UserError` unless the lower `blocks` blocks of `model` can be cached."""
    if model.config.model_type != "llama":
        raise UserError(
            f"lm.cached_blocks is for LLaMA-type models, found {model.config.model_type}; set it to 0."
        )
    count = len(model.model.layers)
    if not 1 <= blocks < count:
        raise UserError(f"lm.cached_blocks must leave a block to train: 0 to {count - 1}; found {blocks}.")


@torch.no_grad()
def lower_output(model: nn.Module, ids: Tensor, blocks: int) -> Tensor:
    """What leaves block `blocks` - 1 for the token ids (N, T) of full chunks: (N, T, D) float32."""
    inner = model.model
    layers, norm = inner.layers, inner.norm
    try:
        inner.layers, inner.norm = layers[:blocks], nn.Identity()
        return torch.cat(
            [inner(input_ids=part, use_cache=False).last_hidden_state.float() for part in ids.split(BATCH)]
        )
    finally:
        inner.layers, inner.norm = layers, norm


def drop_lower(model: nn.Module, blocks: int) -> None:
    """Take the lower `blocks` blocks out of `model`, which is fed `inputs_embeds` from then on.

    The blocks left count from 0 again. A0 and B0 are drawn by layer name, so a run with cached blocks starts
    from other draws than the same run without.
    """
    model.model.layers = model.model.layers[blocks:]


def cached_output(model: nn.Module, weights: Path, ids: Tensor, blocks: int) -> Tensor:
    """`lower_output`, from the cache when it was computed before for the same weights, text and blocks."""
    text = hashlib.sha256(ids.numpy().tobytes()).hexdigest()

    def make() -> Features:
        hidden = lower_output(model, ids, blocks)
        return Features(hidden, torch.full((len(ids),), ids.shape[1]), ids)

    return cached((weights, "language model", text, str(tuple(ids.shape)), blocks), make).hidden
