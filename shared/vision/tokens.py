"""A timm vision transformer whose patch tokens can be edited on their way, by hooks: its code stays timm's.

The hook sits between the patch embedding and the position embedding. Nothing is hooked in the plain forward,
so that it is timm's own, bit for bit.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import interpolate

from shared.errors import UserError

# (patch embeddings (B, L, D) without positions, images (B, C, H, W)) -> patch embeddings of the same shape.
Edit = Callable[[Tensor, Tensor], Tensor]
DINO_OFFSET = 0.1  # DINO adds it to the grid's side, a guard against rounding down


class TokenViT(nn.Module):
    """Wraps a timm `VisionTransformer`; images of any size that its patches divide.

    Args:
        vit: with an absolute position embedding and without a classification head (`num_classes=0`), so that
            it returns its pooled feature, the CLS token for the models of DINO.
    """

    def __init__(self, vit: nn.Module) -> None:
        super().__init__()
        if getattr(vit, "pos_embed", None) is None or getattr(vit, "dynamic_img_size", False):
            raise UserError(
                f"expected a timm vision transformer with an absolute position embedding and "
                f"dynamic_img_size=False, found {type(vit).__name__}."
            )
        vit.patch_embed.strict_img_size = False  # other sizes: the positions are interpolated here
        self.vit = vit

    @property
    def patch(self) -> int:
        """Side of a patch in pixels."""
        return self.vit.patch_embed.patch_size[0]

    @property
    def width(self) -> int:
        """D, the length of a token."""
        return self.vit.embed_dim

    def forward(self, images: Tensor, edit: Edit | None = None, positions: bool = True) -> Tensor:
        """Features (B, D) of images (B, C, H, W).

        Args:
            edit: what is done to the patch embeddings before positions are added.
            positions: False: none are added, to no token.

        Raises:
            UserError: the patches do not divide the images.
        """
        grid = self.grid(images)
        with edited(self.vit, edit):
            if not positions:
                plain = torch.zeros_like(self._positions(grid))
            elif grid == self.vit.patch_embed.grid_size:
                return self.vit(images)
            else:
                plain = self._positions(grid)
            return functional_call(self.vit, {"pos_embed": plain}, (images,))

    def grid(self, images: Tensor) -> tuple[int, int]:
        """Rows and columns of patches of images (B, C, H, W)."""
        height, width = images.shape[-2:]
        if height % self.patch or width % self.patch or not height or not width:
            raise UserError(
                f"expected images whose sides are multiples of the patch ({self.patch} pixels), found "
                f"{height} x {width}. Resize or crop them."
            )
        return height // self.patch, width // self.patch

    def _positions(self, grid: tuple[int, int]) -> Tensor:
        prefix = 0 if self.vit.no_embed_class else self.vit.num_prefix_tokens
        return resize_positions(self.vit.pos_embed, self.vit.patch_embed.grid_size, grid, prefix)


def resize_positions(
    positions: Tensor,
    old: tuple[int, int],
    new: tuple[int, int],
    prefix: int = 1,
    offset: float = DINO_OFFSET,
) -> Tensor:
    """Position embedding (1, prefix + old, D) for another grid, bicubic: (1, prefix + new, D).

    The `prefix` positions (of CLS) stay. For an equal grid it is `positions` itself. Differentiable.

    Args:
        offset: added to the new sides before the scale is computed, as DINO does; 0: the exact scale.
    """
    if positions.shape[1] != prefix + old[0] * old[1]:
        raise UserError(
            f"expected {prefix} + {old[0]} x {old[1]} positions, found {positions.shape[1]}. "
            "Is it the position embedding of another grid?"
        )
    if tuple(old) == tuple(new):
        return positions
    plane = positions[:, prefix:].unflatten(1, tuple(old)).permute(0, 3, 1, 2)
    if offset:
        scale = tuple((side + offset) / before for side, before in zip(new, old, strict=True))
        plane = interpolate(plane, scale_factor=scale, mode="bicubic", align_corners=False)
    else:
        plane = interpolate(plane, size=tuple(new), mode="bicubic", align_corners=False)
    return torch.cat([positions[:, :prefix], plane.permute(0, 2, 3, 1).flatten(1, 2)], dim=1)


@contextlib.contextmanager
def edited(vit: nn.Module, edit: Edit | None) -> Iterator[None]:
    """Within this context the patch embeddings of `vit` pass through `edit`."""
    if edit is None:
        yield
        return
    handle = vit.patch_embed.register_forward_hook(lambda module, given, tokens: edit(tokens, given[0]))
    try:
        yield
    finally:
        handle.remove()


@contextlib.contextmanager
def collected(vit: nn.Module, blocks: Sequence[int]) -> Iterator[dict[int, Tensor]]:
    """Within this context every forward fills the given dict: block number -> its tokens (B, 1 + L, D).

    Raises:
        UserError: a block that `vit` does not have; -1 is the last.
    """
    tokens: dict[int, Tensor] = {}
    depth = len(vit.blocks)
    if wrong := [number for number in blocks if not -depth <= number < depth]:
        raise UserError(f"expected blocks 0 to {depth - 1} (or negative, from the end), found {wrong}.")

    def keep(number: int) -> Callable[..., None]:
        return lambda module, given, found: tokens.__setitem__(number, found)

    handles = [vit.blocks[number].register_forward_hook(keep(number)) for number in blocks]
    try:
        yield tokens
    finally:
        for handle in handles:
            handle.remove()
