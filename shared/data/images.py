"""Image classification sets in one form, embedded and real, and as data sets for training."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset

from shared.data import image_readers
from shared.data.requirements import Requirement, requirement
from shared.errors import UserError, suggest

Augment = Callable[[Tensor], Tensor]  # (B, C, H, W) uint8 -> the same; draws from torch's global stream


@dataclass(frozen=True)
class ImageSet:
    """`images` uint8 (N, C, H, W), `labels` int64 (N,) of 0 .. `classes` - 1. Shared by all callers: read."""

    images: Tensor
    labels: Tensor
    classes: int

    def __len__(self) -> int:
        return len(self.labels)

    def statistics(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Mean and standard deviation of each channel of pixels in 0 .. 1, over all images."""
        counts = torch.stack([torch.bincount(c.reshape(-1), minlength=256) for c in self.images.unbind(1)])
        shares = counts.double() / counts.sum(1, keepdim=True)  # (C, 256)
        values = torch.arange(256, dtype=torch.float64) / 255
        mean = shares @ values
        std = (shares @ values**2 - mean**2).sqrt()
        return tuple(mean.tolist()), tuple(std.tolist())


@dataclass(frozen=True)
class _Known:
    read: Callable[[Path, bool], image_readers.Arrays]
    classes: int
    entry: str  # of the catalogue; "": it comes with a package
    embedded: bool = False


def _fashion_mnist(root: Path, train: bool) -> image_readers.Arrays:
    from shared.data.embedded import fashion_mnist

    images, labels = fashion_mnist(train)
    return torch.from_numpy(images)[:, None], torch.from_numpy(labels).long()


KNOWN = {
    "fashion-mnist": _Known(_fashion_mnist, 10, "fashion-mnist", embedded=True),
    "digits": _Known(image_readers.digits, 10, "", embedded=True),
    "cifar10": _Known(image_readers.cifar10, 10, "cifar-10"),
    "cifar100": _Known(image_readers.cifar100, 100, "cifar-100"),
    "svhn": _Known(image_readers.svhn, 10, "svhn"),
    "tiny-imagenet": _Known(image_readers.tiny_imagenet, 200, "tiny-imagenet"),
}


def load_images(name: str, train: bool, root: str = "") -> ImageSet:
    """The training or test part of a set of `KNOWN`; Tiny-ImageNet's test part is its validation part.

    Args:
        root: the folder below which the real sets lie in their published layout (`data.root`).

    Raises:
        UserError: an unknown name, no root for a real set, a file that is missing or damaged.
    """
    known = _known(name)
    if not known.embedded and not root:
        raise UserError(f"{name} is a real set, and data.root is not set. {requirement(known.entry).get}")
    return _load(name, train, "" if known.embedded else str(Path(root).expanduser()))


def image_requirements(name: str, root: str = "") -> list[Requirement]:
    """What a run on `name` needs, for a project's `requirements(config)`."""
    known = _known(name)
    if known.entry:
        return [requirement(known.entry, root)]
    layout = "the file digits.csv.gz of the package scikit-learn"
    return [Requirement(name, "data", image_readers.digits_file(), layout, "pip install scikit-learn")]


class ImageDataset(Dataset):
    """Items: (float32 (C, H, W) normalised by `mean` and `std`, int label); `labels` int64 (N,).

    Args:
        mean, std: of each channel, for pixels in 0 .. 1; one number stands for all channels.
        augment: applied to whole batches of raw pixels, before normalisation. Without it `normalised` gives
            the same samples as a `TensorDataset`, which loaders and engines slice without touching items.
    """

    def __init__(
        self, image_set: ImageSet, mean: Sequence[float], std: Sequence[float], augment: Augment | None = None
    ) -> None:
        self.images, self.labels, self.augment = image_set.images, image_set.labels, augment
        self.mean, self.std = (_channels(values, self.images.shape[1]) for values in (mean, std))

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[tuple[Tensor, int]]:
        """One batch; torch's loaders and `Subset` call it."""
        places = torch.as_tensor(indices)
        return list(zip(self.batch(places), self.labels[places].tolist(), strict=True))

    def batch(self, places: Tensor) -> Tensor:
        """Augmented, normalised images (B, C, H, W)."""
        pixels = self.images[places]
        return self._scaled(pixels if self.augment is None else self.augment(pixels))

    def normalised(self) -> TensorDataset:
        """All samples without augmentation, as two tensors: images float32 (N, C, H, W) and labels."""
        return TensorDataset(self._scaled(self.images), self.labels)

    def _scaled(self, pixels: Tensor) -> Tensor:
        return pixels.float().div_(255).sub_(self.mean).div_(self.std)


def image_dataset(
    image_set: ImageSet, mean: Sequence[float], std: Sequence[float], augment: Augment | None = None
) -> Dataset:
    """A `TensorDataset` of normalised images, or with `augment` an `ImageDataset`."""
    dataset = ImageDataset(image_set, mean, std, augment)
    return dataset.normalised() if augment is None else dataset


def crop_and_flip(pixels: Tensor, padding: int = 4) -> Tensor:
    """The usual augmentation: zero padding, a random crop of the old size, a flip with probability 1/2."""
    count, _, height, width = pixels.shape
    padded = torch.nn.functional.pad(pixels, (padding,) * 4)
    top, left = torch.randint(2 * padding + 1, (2, count))
    left = left[:, None, None]
    rows = (top[:, None] + torch.arange(height))[:, :, None]  # (B, H, 1)
    columns = torch.arange(width).expand(count, 1, width)
    columns = left + torch.where(torch.rand(count, 1, 1) < 0.5, columns, columns.flip(-1))  # (B, 1, W)
    return padded.movedim(1, -1)[torch.arange(count)[:, None, None], rows, columns].movedim(-1, 1)


@functools.lru_cache(maxsize=4)
def _load(name: str, train: bool, root: str) -> ImageSet:
    known = KNOWN[name]
    images, labels = known.read(Path(root), train)
    return ImageSet(images, labels, known.classes)


def _known(name: str) -> _Known:
    if name not in KNOWN:
        raise UserError(f"unknown image set '{name}'.{suggest(name, KNOWN)} Known: {', '.join(KNOWN)}.")
    return KNOWN[name]


def _channels(values: Sequence[float], channels: int) -> Tensor:
    values = [values] if isinstance(values, (int, float)) else list(values)
    if len(values) not in (1, channels):
        raise UserError(f"expected one number for each of {channels} channels, found {len(values)}.")
    return torch.tensor(values, dtype=torch.float32).view(-1, 1, 1)
