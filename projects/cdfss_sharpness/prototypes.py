"""Prototypes by masked average pooling, and cosine scores of pixels against them."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, interpolate

SCALE = 10.0  # of the cosine scores
IGNORED = 255  # label of pixels that belong to neither side


def masked_average(features: Tensor, mask: Tensor) -> Tensor:
    """MAP: mean (N, C) of `features` (N, C, h, w) under the float `mask` (N, H, W), shrunk bilinearly.

    An empty mask gives zeros.
    """
    weight = resized(mask[:, None].to(features.dtype), features.shape[-2:])  # (N, 1, h, w)
    return (features * weight).sum((2, 3)) / (weight.sum((2, 3)) + 1e-5)


def foreground_and_background(features: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Prototypes (N, C) of the pixels with label 1 and of those with label 0; `labels` (N, H, W)."""
    return masked_average(features, labels == 1), masked_average(features, labels == 0)


def cosine_scores(features: Tensor, foreground: Tensor, background: Tensor) -> Tensor:
    """10 [cos(X, B), cos(X, F)] for every pixel of X (N, C, h, w): (N, 2, h, w), background first.

    Prototypes are (N, C), or maps (N, C, h, w) with one for every pixel.
    """
    sides = [background, foreground]
    sides = [side[..., None, None] if side.ndim == 2 else side for side in sides]
    return SCALE * torch.stack([cosine_similarity(features, side, dim=1) for side in sides], 1)


def resized(maps: Tensor, size: tuple[int, int] | torch.Size) -> Tensor:
    """Bilinear with aligned corners, as everywhere in SSP."""
    return interpolate(maps, tuple(size), mode="bilinear", align_corners=True)
