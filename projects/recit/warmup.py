"""The spatial warm-up: the image is enlarged to n x n patches, and their embeddings change places.

Each patch then sees a smaller piece of the scene. n and the permutation are drawn once for a batch.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from shared.errors import UserError


def check_grids(smallest: int, largest: int) -> None:
    """Raise a `UserError` unless 1 <= smallest <= largest."""
    if not 1 <= smallest <= largest:
        raise UserError(
            "recit.smallest and recit.largest are sides of grids of patches, 1 <= smallest <= largest; "
            f"found {smallest} and {largest}."
        )


def draw_grid(smallest: int, largest: int) -> int:
    """n, uniform over smallest .. largest, both included (the paper: 14 .. 32)."""
    check_grids(smallest, largest)
    return int(torch.randint(smallest, largest + 1, ()))


def enlarge(images: Tensor, grid: int, patch: int) -> Tensor:
    """Images (B, C, H, W) at grid * patch pixels a side, bilinear; of that size already: themselves."""
    side = grid * patch
    if images.shape[-2:] == (side, side):
        return images
    return interpolate(images, size=(side, side), mode="bilinear", align_corners=False)


def shuffle_tokens(tokens: Tensor, images: Tensor | None = None) -> Tensor:
    """Patch embeddings (B, L, D) in one random order for the whole batch."""
    return tokens[:, torch.randperm(tokens.shape[1], device=tokens.device)]
