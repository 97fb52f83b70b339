"""A pool: the labelled images of one domain, from which batches and episodes are drawn."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor
from torch.utils.data import Dataset
from torchvision.transforms import v2

from shared.errors import UserError
from shared.training.loader import SeededSampler
from shared.training.seeding import derive_seed

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # ImageNet
JITTER = 0.4


@dataclass(frozen=True)
class Pool:
    """Attributes:
    name: of the domain.
    images: paths of files, or one tensor (N, 3, H, W), ready for the network.
    labels: int64 (N,), 0 .. len(classes) - 1.
    classes: their names.
    """

    name: str
    images: list[Path] | Tensor
    labels: Tensor
    classes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.labels)


def pool_of_files(name: str, images: list[Path], names: list[str], classes: list[str] | None = None) -> Pool:
    """The pool of files whose classes are `names`, one for each.

    Args:
        classes: in the order of their labels; default: sorted.

    Raises:
        UserError: there is none.
    """
    if not images:
        raise UserError(f"{name}: expected images, found none.")
    classes = classes or sorted(set(names))
    number = {each: place for place, each in enumerate(classes)}
    return Pool(name, images, torch.tensor([number[each] for each in names]), tuple(classes))


class PoolDataset(Dataset):
    """Items: (image float32 (3, H, W), label, place in the pool).

    Args:
        transform: of a PIL image; not used where the pool holds a tensor.
        seed: for a transform that draws random numbers: they are a function of (seed, epoch, place).

    Keys are places, or pairs (epoch, place), as `EpochSampler` gives them.
    """

    def __init__(self, pool: Pool, transform: Callable[[Image.Image], Tensor], seed: int = 0) -> None:
        self.pool, self.transform, self.seed = pool, transform, seed

    def __len__(self) -> int:
        return len(self.pool)

    def __getitem__(self, key: int | tuple[int, int]) -> tuple[Tensor, int, int]:
        epoch, place = key if isinstance(key, tuple) else (0, key)
        label = int(self.pool.labels[place])
        if isinstance(self.pool.images, Tensor):
            return self.pool.images[place], label, place
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive_seed(self.seed, "augment", epoch, place))
            return self.transform(open_image(self.pool.images[place])), label, place


class EpochSampler(SeededSampler):
    """Pairs (epoch, place) in the seeded random order of that epoch."""

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return ((self.epoch, place) for place in super().__iter__())


def open_image(path: Path) -> Image.Image:
    """An RGB image; a file that is none is a `UserError` with its path."""
    try:
        with Image.open(path) as image:
            return image.convert("RGB")
    except (OSError, UnidentifiedImageError) as error:
        raise UserError(f"{path} cannot be read as an image ({error}). Get the set again.") from None


def test_transform(size: int) -> v2.Compose:
    """Squeeze to 1.15 times the size (rounded down) on both sides, cut out the centre, normalise."""
    return v2.Compose([v2.Resize((int(1.15 * size),) * 2), v2.CenterCrop(size), *_to_tensor()])


def train_transform(size: int) -> v2.Compose:
    """Random crop, jitter of brightness, contrast and colour, random flip, normalise."""
    return v2.Compose([v2.RandomResizedCrop(size), Jitter(), v2.RandomHorizontalFlip(), *_to_tensor()])


class Jitter(torch.nn.Module):
    """Brightness, contrast and colour in this order, each with a factor uniform in 0.6 .. 1.4."""

    def forward(self, image: Image.Image) -> Image.Image:
        from PIL import ImageEnhance

        factors = (1 + JITTER * (2 * torch.rand(3) - 1)).tolist()
        enhancers = (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color)
        for enhancer, factor in zip(enhancers, factors, strict=True):
            image = enhancer(image).enhance(factor)
        return image


def _to_tensor() -> list[torch.nn.Module]:
    return [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]
