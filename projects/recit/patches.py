"""Breaking the continuity of image tokens: the paper's four simple ways (its section 2.2, equations 9 to 13).

They act on pixels, on any division of the image into rows x columns of pseudo-patches; with the division of
the network itself a shuffle of pixels is a shuffle of patch embeddings. One permutation is drawn for each
image [reconstructed]. The fourth way, no position embedding (RPE), is a switch of the network.
"""

from __future__ import annotations

import torch
from torch import Tensor

from shared.errors import UserError
from shared.vision.fourier import amplitude_and_phase, from_amplitude_and_phase

Pieces = int | tuple[int, int]


def to_patches(images: Tensor, pieces: Pieces) -> Tensor:
    """Images (B, C, H, W) cut into rows x columns patches: (B, L, C, H / rows, W / columns), row by row.

    Raises:
        UserError: the pieces do not divide the image.
    """
    rows, columns = _pair(pieces)
    height, width = images.shape[-2:]
    if min(rows, columns) < 1 or height % rows or width % columns:
        raise UserError(
            f"expected an image that {rows} x {columns} pieces divide, found {height} x {width} pixels."
        )
    cut = images.unflatten(-1, (columns, -1)).unflatten(-3, (rows, -1))  # (B, C, rows, h, columns, w)
    return cut.permute(0, 2, 4, 1, 3, 5).flatten(1, 2)


def from_patches(patches: Tensor, pieces: Pieces) -> Tensor:
    """The inverse of `to_patches`."""
    rows, columns = _pair(pieces)
    grid = patches.unflatten(1, (rows, columns))
    return grid.permute(0, 3, 1, 4, 2, 5).flatten(-2).flatten(2, 3)


def shuffle_patches(images: Tensor, pieces: Pieces, order: Tensor | None = None) -> Tensor:
    """SP: patch k of the result is patch order[k] of the image."""
    patches = to_patches(images, pieces)
    return from_patches(_taken(patches, _order(patches, order)), pieces)


def shuffle_amplitudes(images: Tensor, pieces: Pieces, order: Tensor | None = None) -> Tensor:
    """SPA: patch k keeps its phase and gets the amplitude of patch order[k] (2-D transform, each channel)."""
    return _exchange(images, pieces, order, amplitudes=True)


def shuffle_phases(images: Tensor, pieces: Pieces, order: Tensor | None = None) -> Tensor:
    """SPP: patch k keeps its amplitude and gets the phase of patch order[k]."""
    return _exchange(images, pieces, order, amplitudes=False)


def draw_order(count: int, length: int, device: torch.device | None = None) -> Tensor:
    """A random permutation of `length` for each of `count` images: (count, length)."""
    return torch.rand(count, length, device=device).argsort(dim=1)


def _exchange(images: Tensor, pieces: Pieces, order: Tensor | None, amplitudes: bool) -> Tensor:
    patches = to_patches(images, pieces)
    amplitude, phase = amplitude_and_phase(patches, (-2, -1))
    order = _order(patches, order)
    if amplitudes:
        amplitude = _taken(amplitude, order)
    else:
        phase = _taken(phase, order)
    mixed = from_amplitude_and_phase(amplitude, phase, (-2, -1))
    return from_patches(mixed, pieces).to(images.dtype)


def _order(patches: Tensor, order: Tensor | None) -> Tensor:
    return draw_order(*patches.shape[:2], patches.device) if order is None else order


def _taken(patches: Tensor, order: Tensor) -> Tensor:
    return patches[torch.arange(len(patches), device=patches.device)[:, None], order]


def _pair(pieces: Pieces) -> tuple[int, int]:
    return (pieces, pieces) if isinstance(pieces, int) else pieces
