"""The encoder of a config: a timm vision transformer with editable tokens."""

from __future__ import annotations

from typing import Any

import timm
import torch
from torch import nn

from shared.errors import UserError
from shared.training.seeding import generator
from shared.vision.tokens import TokenViT

EMBEDDED = "vit-s"


def make_encoder(config: Any) -> TokenViT:
    """The encoder of `config.network`, without a head: images -> CLS features (B, D).

    Raises:
        UserError: an unknown model, no weights on this disk, or more blocks than it has.
    """
    own = config.network
    if own.name == EMBEDDED:
        from shared.vision import vit_s

        encoder = TokenViT(vit_s.load(own.image_size, own.blocks or 12))
    else:
        encoder = TokenViT(_timm_model(own))
    if own.cls_token == "random":
        fix_random_cls(encoder.vit, config.seed)
    return encoder.train()  # as every module of a run begins


def fix_random_cls(vit: nn.Module, seed: int) -> None:
    """The flavour of CD-CLS: a CLS token that is drawn anew (normal, standard deviation 0.02) and fixed."""
    with torch.no_grad():
        vit.cls_token.copy_(0.02 * torch.randn(vit.cls_token.shape, generator=generator("cls", seed)))
    vit.cls_token.requires_grad_(False)


def _timm_model(own: Any) -> nn.Module:
    shape = {
        "patch_size": own.patch,
        "embed_dim": own.width,
        "depth": own.depth,
        "num_heads": own.heads,
    }
    try:
        vit = timm.create_model(
            own.name,
            pretrained=own.pretrained,
            num_classes=0,
            img_size=own.image_size,
            **({} if own.pretrained else {"weight_init": "jax"}),
            **{key: value for key, value in shape.items() if value},
        )
    except (RuntimeError, OSError, AssertionError, TypeError, ValueError) as error:
        raise UserError(
            f"network.name={own.name} cannot be made with {dict(own)}: {type(error).__name__}: {error}. "
            "Expected a vision transformer of timm, with its weights in the Hugging Face cache if pretrained."
        ) from None
    if own.blocks > len(vit.blocks):
        raise UserError(f"network.blocks: {own.name} has {len(vit.blocks)} blocks, found {own.blocks}.")
    if own.blocks:
        vit.blocks = vit.blocks[: own.blocks]
    return vit
