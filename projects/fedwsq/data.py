"""Images, their augmentation, and who has which: the balanced Dirichlet deal and published split files."""

from __future__ import annotations

import ast
import logging
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from shared.data.images import ImageSet, image_dataset, load_images
from shared.errors import UserError
from shared.federated.data import FederatedData
from shared.federated.partition import Partition
from shared.federated.settings import federated_data, labels_of, validation_places
from shared.training.seeding import derive_seed

log = logging.getLogger(__name__)

STATISTICS = {  # mean and deviation of the channels (official code); other sets take their own
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
    "cifar100": ((0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)),
    "tiny-imagenet": ((0.4802, 0.4481, 0.3975), (0.2770, 0.2691, 0.2821)),
}
DEGREES, PADDING = 10, 4
SPLIT = "split:"


def datasets(config: Any) -> tuple[ImageSet, Dataset, Dataset]:
    """(training images, training set, test set). Only training images are augmented.

    The official code crops test images to their own size, which leaves them as they are.
    """
    name, root = config.federation.dataset, config.data.root
    images = load_images(name, train=True, root=root)
    mean, std = STATISTICS.get(name) or images.statistics()
    train = image_dataset(images, mean, std, augment if config.augment else None)
    return images, train, image_dataset(load_images(name, train=False, root=root), mean, std)


def augment(pixels: Tensor) -> Tensor:
    """RandomRotation(10), RandomCrop(size, padding=4) and a flip, drawn for each image of (B, C, H, W) uint8.

    As torchvision's: nearest pixels, zeros from outside, the crop after the rotation.
    """
    count, _, height, width = pixels.shape
    angles = torch.deg2rad((torch.rand(count) * 2 - 1) * DEGREES)[:, None, None]
    top, left = torch.randint(2 * PADDING + 1, (2, count, 1, 1)) - PADDING
    flipped = torch.rand(count, 1, 1) < 0.5
    rows, columns = torch.arange(height)[:, None], torch.arange(width)[None, :]
    columns = torch.where(flipped, columns.flip(-1), columns)  # (B, 1, W)
    y, x = rows + top, columns + left  # where the crop takes its pixels from, in the rotated image
    inside = _within(y, x, height, width)
    y, x = y - (height - 1) / 2, x - (width - 1) / 2
    source_y = (y * angles.cos() + x * angles.sin() + (height - 1) / 2).round().long()
    source_x = (x * angles.cos() - y * angles.sin() + (width - 1) / 2).round().long()
    inside = inside & _within(source_y, source_x, height, width)
    source_y, source_x = source_y.clamp(0, height - 1), source_x.clamp(0, width - 1)
    taken = pixels[torch.arange(count)[:, None, None], :, source_y, source_x]  # (B, H, W, C)
    return (taken * inside[..., None]).movedim(-1, 1)


def balanced_dirichlet(labels: Any, clients: int, alpha: float, *, seed: int) -> Partition:
    """Client by client: p ~ Dir(alpha), then floor(n / N) of the samples left, drawn with weight p[label].

    The deal of the official code. It differs from `shared.federated.partition.balanced_dirichlet`, where
    clients take turns: here the last clients get what the others have left. Drawing without replacement takes
    the n / N smallest of -log(u) / weight (Efraimidis and Spirakis 2006); samples of weight 0 come last, so a
    deal is exact for every alpha.
    """
    values = np.asarray(labels).astype(np.int64)
    if not alpha > 0:
        raise UserError(f"a Dirichlet concentration must be positive, found {alpha}.")
    if not 1 <= clients <= len(values):
        raise UserError(f"{clients} clients cannot share {len(values)} samples.")
    stream = np.random.default_rng(derive_seed(seed, "fedwsq", "balanced_dirichlet"))
    left, size, dealt = np.arange(len(values)), len(values) // clients, []
    classes, values = np.unique(values, return_inverse=True)
    for _ in range(clients):
        mix = stream.dirichlet(np.full(len(classes), alpha))
        left = stream.permutation(left)
        with np.errstate(divide="ignore"):
            keys = np.log(stream.exponential(size=len(left))) - np.log(mix)[values[left]]
        order = np.argsort(keys, kind="stable")
        dealt.append(np.sort(left[order[:size]]))
        left = left[order[size:]]
    return Partition(dealt)


def read_split(path: Path, clients: int, samples: int) -> Partition:
    """A published split, `dirichlet<alpha>_clients<N>.txt`: one Python dict {client: [places]} as text.

    The published files of alpha <= 0.03 hold some samples twice and leave others out; that is logged.

    Raises:
        UserError: missing, not such a dict, or of other clients or samples.
    """
    try:
        held = ast.literal_eval(path.read_text().strip())
        dealt = {int(client): np.asarray(places, dtype=np.int64) for client, places in held.items()}
    except OSError as error:
        raise UserError(f"expected a split file at {path}, found none ({error.strerror}).") from None
    except (
        ValueError,
        SyntaxError,
        TypeError,
        AttributeError,
        OverflowError,
        RecursionError,
        MemoryError,
    ) as error:
        reason = str(error).splitlines()[0][:100]
        raise UserError(
            f"{path} cannot be read as a dict {{client: [places]}} ({type(error).__name__}: {reason})."
        ) from None
    if sorted(dealt) != list(range(clients)):
        raise UserError(
            f"{path} is of {len(dealt)} clients, expected 0 .. {clients - 1} (federation.clients)."
        )
    everything = np.concatenate([dealt[client].reshape(-1) for client in range(clients)])
    if len(everything) and not 0 <= everything.min() <= everything.max() < samples:
        raise UserError(
            f"{path} deals samples {everything.min()} to {everything.max()}; the set has {samples}."
        )
    distinct = len(np.unique(everything))
    if distinct < len(everything):
        log.warning("%s deals %d samples, %d of them distinct.", path, len(everything), distinct)
    return Partition([dealt[client].reshape(-1) for client in range(clients)])


def dealt(labels: np.ndarray, config: Any, seed: int) -> Partition | None:
    """The deals of this paper: `balanced_dirichlet`, and `split:<path>`; None for those of the house."""
    f = config.federation
    if f.partition.startswith(SPLIT):
        if f.train_images or f.validation_images:
            raise UserError(
                "a split file deals the whole set: leave train_images and validation_images at 0."
            )
        return read_split(Path(f.partition.removeprefix(SPLIT)).expanduser(), f.clients, len(labels))
    if f.partition != "balanced_dirichlet":
        return None
    own = seed if f.partition_seed is None else f.partition_seed
    places = np.arange(len(labels))
    if f.validation_images:
        places = np.setdiff1d(places, validation_places(len(labels), f.validation_images))
    if f.train_images:
        stream = np.random.default_rng(derive_seed(own, "train_images"))
        places = np.sort(stream.permutation(places)[: f.train_images])
    parts = balanced_dirichlet(labels[places], f.clients, f.alpha, seed=own)
    return Partition([places[mine] for mine in parts.places])


def federation(train: Dataset, test: Dataset, config: Any) -> FederatedData:
    """The federation that the config describes."""
    parts = dealt(labels_of(train), config, config.seed)
    return federated_data(train, test, config.federation, config.seed, partition=parts)


def _within(y: Tensor, x: Tensor, height: int, width: int) -> Tensor:
    return (y >= 0) & (y < height) & (x >= 0) & (x < width)
