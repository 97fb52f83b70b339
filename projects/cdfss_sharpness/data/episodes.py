"""Episodes: a query, K support images of the same class, and their masks."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import interpolate
from torch.utils.data import Dataset

from shared.errors import UserError
from shared.training.seeding import derive_seed

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet
THRESHOLD = 128  # grey value from which a pixel of a mask is foreground


class Episode(NamedTuple):
    """One episode, or a batch of them with a leading axis. Labels: 0, 1 and 255 (ignored)."""

    support: Tensor  # (K, 3, H, W) normalised
    support_labels: Tensor  # (K, H, W) uint8
    query: Tensor  # (3, H, W)
    query_labels: Tensor  # (H, W) uint8
    label: int  # number of the class in its set


@dataclass(frozen=True)
class ImagePool:
    """The images of a set, class by class.

    Attributes:
        name: for messages.
        classes: their names.
        members: for each class its images, as `read` takes them.
        read: (image, class) -> an RGB picture and its labels, uint8 (H, W) of 0, 1 and 255.
    """

    name: str
    classes: tuple[str, ...]
    members: tuple[tuple[Hashable, ...], ...]
    read: Callable[[Hashable, int], tuple[Image.Image, np.ndarray]]

    def check(self) -> None:
        """Raise a `UserError` naming the first class that has no image to be support for another."""
        for name, own in zip(self.classes, self.members, strict=True):
            if len(set(own)) < 2:
                raise UserError(
                    f"{self.name}: class {name!r} has {len(own)} image{'s' if len(own) != 1 else ''}; an "
                    "episode needs at least 2, a query and another one as its support. Add images of "
                    "this class or leave the class out."
                )


class PoolEpisodes(Dataset):
    """Episodes drawn from a pool; episode i is a function of (seed, i).

    Args:
        order: the (class, image) that is the query of each episode; None: class i mod n, image at random.
        count: number of episodes; None: as many as `order` has. Longer than `order`, it starts again.
        size: images are resized (not cropped) to size x size, masks to the nearest pixel.

    Supports are drawn one by one among the other images of the class, so two of them may be the same.
    """

    def __init__(
        self,
        pool: ImagePool,
        *,
        shots: int,
        size: int,
        seed: int,
        count: int | None = None,
        order: Sequence[tuple[int, Hashable]] | None = None,
    ) -> None:
        if shots < 1:
            raise UserError(f"episodes.shots is a number of support images from 1 on, found {shots}.")
        pool.check()
        self.pool, self.shots, self.size, self.seed, self.order = pool, shots, size, seed, order
        self.count = count if count is not None else len(order or ())

    def __len__(self) -> int:
        return self.count

    def draw(self, index: int) -> tuple[int, Hashable, list[Hashable]]:
        """Class, query and supports of an episode."""
        stream = np.random.default_rng(derive_seed(self.seed, self.pool.name, "episode", index))
        if self.order is None:
            label = index % len(self.pool.classes)
            query = self.pool.members[label][stream.integers(len(self.pool.members[label]))]
        else:
            label, query = self.order[index % len(self.order)]
        others = [image for image in self.pool.members[label] if image != query]
        return label, query, [others[place] for place in stream.integers(len(others), size=self.shots)]

    def __getitem__(self, index: int) -> Episode:
        if not 0 <= index < self.count:
            raise IndexError(index)
        label, query, supports = self.draw(index)
        shown = [self._load(image, label) for image in supports]
        for image, (_, labels) in zip(supports, shown, strict=True):
            if not bool((labels == 1).any()):
                raise UserError(
                    f"{self.pool.name}: the mask of {image} has no foreground (class "
                    f"{self.pool.classes[label]!r}), so it cannot be a support image. Mend or remove it."
                )
        image, labels = self._load(query, label)
        support, support_labels = (torch.stack(part) for part in zip(*shown, strict=True))
        return Episode(support, support_labels, image, labels, label)

    def _load(self, image: Hashable, label: int) -> tuple[Tensor, Tensor]:
        picture, labels = self.pool.read(image, label)
        return as_input(picture, self.size), nearest(labels, self.size)


def as_input(picture: Image.Image, size: int) -> Tensor:
    """Float32 (3, size, size), normalised by ImageNet's statistics."""
    resized = picture.convert("RGB").resize((size, size), Image.Resampling.BILINEAR)
    return normalised(np.asarray(resized, np.float32) / 255)


def normalised(pixels: np.ndarray) -> Tensor:
    """(H, W, 3) of 0..1 -> float32 (3, H, W)."""
    scaled = (pixels - np.float32(MEAN)) / np.float32(STD)
    return torch.from_numpy(np.ascontiguousarray(scaled.transpose(2, 0, 1), dtype=np.float32))


def nearest(labels: np.ndarray, size: int) -> Tensor:
    """`labels` (H, W) at size x size by the nearest pixel: uint8."""
    wide = torch.from_numpy(np.array(labels, dtype=np.uint8))[None, None]
    return interpolate(wide, (size, size), mode="nearest")[0, 0]


def shuffled(entries: Sequence[tuple[int, Hashable]], count: int, seed: int) -> list[tuple[int, Hashable]]:
    """`count` entries: every one once in random order, then again in another order."""
    stream = np.random.default_rng(derive_seed(seed, "order"))
    rounds = -(-count // len(entries))
    places = np.concatenate([stream.permutation(len(entries)) for _ in range(rounds)])
    return [entries[place] for place in places[:count]]
