"""Photographs and textures of scikit-image by name, and random crops of them."""

from __future__ import annotations

import functools

import numpy as np
import torch
from PIL import Image

from shared.data.fetch import fetch
from shared.errors import UserError, suggest

# Fourteen pictures that look alike all over, so that a crop tells which one it is from.
TEXTURES = (
    *("astronaut", "brick", "cell", "chelsea", "coffee", "coins", "grass", "gravel"),
    *("hubble_deep_field", "ihc", "moon", "page", "retina", "text"),
)
PHOTOGRAPHS = (*TEXTURES, "camera", "clock_motion", "motorcycle_left", "motorcycle_right", "rocket")


@functools.lru_cache(maxsize=len(PHOTOGRAPHS))
def photograph(name: str) -> np.ndarray:
    """The picture `name` as uint8 (H, W, 3); grey ones have three equal channels. Not to be written to.

    Raises:
        UserError: not one of `PHOTOGRAPHS`.
    """
    if name not in PHOTOGRAPHS:
        raise UserError(
            f"there is no photograph '{name}'.{suggest(name, PHOTOGRAPHS)} "
            f"There are: {', '.join(PHOTOGRAPHS)}."
        )
    folder = fetch("skimage-photos")
    path = next(path for path in (folder / f"{name}.png", folder / f"{name}.jpg") if path.is_file())
    with Image.open(path) as image:
        pixels = np.asarray(image.convert("RGB"))
    pixels.setflags(write=False)
    return pixels


def crops(
    name: str, number: int, size: int, stream: torch.Generator | None = None, *, grey: bool = False
) -> np.ndarray:
    """Square crops at uniform random places: uint8 (number, size, size, 3), without the last axis if `grey`.

    Grey values are the luma of ITU-R 601, rounded.

    Raises:
        UserError: no such photograph, or it is smaller than `size`.
    """
    pixels = photograph(name)
    height, width = pixels.shape[:2]
    if not 1 <= size <= min(height, width):
        raise UserError(
            f"photograph '{name}' has {height} x {width} pixels; expected crops of 1 to "
            f"{min(height, width)}, found {size}."
        )
    tops = torch.randint(height - size + 1, (number,), generator=stream).tolist()
    lefts = torch.randint(width - size + 1, (number,), generator=stream).tolist()
    cut = np.empty((number, size, size, 3), np.uint8)
    for place, (top, left) in enumerate(zip(tops, lefts, strict=True)):
        cut[place] = pixels[top : top + size, left : left + size]
    return (cut @ np.array([0.299, 0.587, 0.114])).round().astype(np.uint8) if grey else cut
