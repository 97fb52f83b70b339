"""Episodes that are composed: a shape with an exact mask on a background, drawn anew for every image."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image
from torch.utils.data import Dataset

from projects.cdfss_sharpness.data.episodes import Episode, normalised
from shared.errors import UserError
from shared.training.seeding import derive_seed

Stream = np.random.Generator


@dataclass(frozen=True)
class Scenes:
    """A domain.

    Attributes:
        name: for messages and random streams.
        classes: their names.
        instances: how many shapes there are of each class.
        compose: (class, instance, stream) -> picture float32 (H, W, 3) of 0..1 and mask boolean (H, W).
    """

    name: str
    classes: tuple[str, ...]
    instances: tuple[int, ...]
    compose: Callable[[int, int, Stream], tuple[np.ndarray, np.ndarray]]


class PastedEpisodes(Dataset):
    """Episode i has class i mod n and is a function of (seed, i); no support repeats the query's shape."""

    def __init__(self, scenes: Scenes, *, count: int, shots: int, seed: int, keep: bool = False) -> None:
        for name, own in zip(scenes.classes, scenes.instances, strict=True):
            if own < 2:
                raise UserError(
                    f"{scenes.name}: class {name!r} has {own} shape{'s' if own != 1 else ''}; an episode "
                    "needs at least 2, one for the query and another one for its support."
                )
        self.scenes, self.count, self.shots, self.seed = scenes, count, shots, seed
        self.kept: dict[int, Episode] | None = {} if keep else None

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Episode:
        if not 0 <= index < self.count:
            raise IndexError(index)
        if self.kept is None:
            return self.compose(index)
        if index not in self.kept:
            self.kept[index] = self.compose(index)
        return self.kept[index]

    def compose(self, index: int) -> Episode:
        stream = np.random.default_rng(derive_seed(self.seed, self.scenes.name, "episode", index))
        label = index % len(self.scenes.classes)
        query, *others = stream.permutation(self.scenes.instances[label]).tolist()
        supports = [others[place] for place in stream.integers(len(others), size=self.shots)]
        shown = [self._image(label, instance, stream) for instance in [query, *supports]]
        images, labels = (torch.stack(part) for part in zip(*shown, strict=True))
        return Episode(images[1:], labels[1:], images[0], labels[0], label)

    def _image(self, label: int, instance: int, stream: Stream) -> tuple[torch.Tensor, torch.Tensor]:
        picture, mask = self.scenes.compose(label, instance, stream)
        return normalised(picture), torch.from_numpy(mask.astype(np.uint8))


def enlarged(shape: np.ndarray, side: int) -> np.ndarray:
    """`shape` (h, w) or (h, w, c) of 0..1, its longer side `side` pixels long; bilinear, float32."""
    channels = shape[..., None] if shape.ndim == 2 else shape
    scale = side / max(shape.shape[:2])
    size = tuple(max(1, round(length * scale)) for length in (shape.shape[1], shape.shape[0]))
    planes = [
        np.asarray(
            Image.fromarray(np.ascontiguousarray(plane, np.float32)).resize(size, Image.Resampling.BILINEAR)
        )
        for plane in np.moveaxis(channels, -1, 0)
    ]
    made = np.stack(planes, -1)
    return made[..., 0] if shape.ndim == 2 else made


def paste(picture: np.ndarray, colour: np.ndarray, alpha: np.ndarray, stream: Stream) -> np.ndarray:
    """Lay `colour` (h, w, 3) or (3,) with `alpha` (h, w) over `picture`, in place, somewhere inside it.

    Returns alpha (H, W) as laid.
    """
    (height, width), (h, w) = picture.shape[:2], alpha.shape
    top, left = stream.integers(height - h + 1), stream.integers(width - w + 1)
    laid = np.zeros((height, width), np.float32)
    laid[top : top + h, left : left + w] = alpha
    part = picture[top : top + h, left : left + w]
    part += alpha[..., None] * (colour - part)
    return laid


def smooth_noise(size: int, coarse: int, stream: Stream) -> np.ndarray:
    """Float32 (size, size) of 0..1: `coarse` x `coarse` random values, enlarged."""
    values = stream.random((coarse, coarse), np.float32)
    return np.asarray(Image.fromarray(values).resize((size, size), Image.Resampling.BICUBIC)).clip(0, 1)


def random_crop(pixels: np.ndarray, size: int, stream: Stream) -> np.ndarray:
    """A square of uint8 `pixels` (H, W, 3) at a random place, float32 of 0..1."""
    top, left = (stream.integers(length - size + 1) for length in pixels.shape[:2])
    return pixels[top : top + size, left : left + size].astype(np.float32) / 255


def grey(picture: np.ndarray) -> np.ndarray:
    """Luma (ITU-R 601) in all three channels."""
    return np.repeat((picture @ np.float32([0.299, 0.587, 0.114]))[..., None], 3, 2)
