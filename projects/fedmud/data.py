"""The image sets of the experiments as federations: normalisation, augmentation, partition."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch.utils.data import Dataset, Subset

from projects.fedmud.partitions import label_count, label_dirichlet
from shared.data.images import Augment, ImageSet, crop_and_flip, image_dataset, load_images
from shared.errors import UserError, suggest
from shared.federated import sampling
from shared.federated.data import FederatedData
from shared.federated.partition import Partition, iid
from shared.federated.settings import validation_places
from shared.training.seeding import derive_seed

PARTITIONS = ("iid", "labeldir", "labelcnt")
Constants = tuple[tuple[float, ...], tuple[float, ...]]  # mean, std of each channel, or one for all


@dataclass(frozen=True)
class ImageData:
    """How a set is normalised, for training and for testing, and augmented; None: by the training images."""

    train: Constants | None = None
    test: Constants | None = None
    augment: Augment | None = None


IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
CIFAR100 = ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762))
SETS = {  # test images of the first two by their own statistics, as the official code has it
    "fashion-mnist": ImageData(((0.2860,), (0.3530,)), ((0.2868,), (0.3524,))),
    "svhn": ImageData(((0.4496,), (0.1995,)), ((0.4560,), (0.2244,))),
    "cifar10": ImageData(IMAGENET, IMAGENET, crop_and_flip),
    "cifar100": ImageData(CIFAR100, CIFAR100, crop_and_flip),
    "digits": ImageData(),
}


def federation(config: Any) -> tuple[FederatedData, ImageSet]:
    """The data of `config.federation`, and the training images (for their shape and number of classes).

    Raises:
        UserError: an unknown set or partition, or settings that do not go together.
    """
    settings = config.federation
    if settings.dataset not in SETS:
        raise UserError(
            f"federation.dataset takes {', '.join(SETS)}; found {settings.dataset!r}."
            + suggest(settings.dataset, SETS)
        )
    source = SETS[settings.dataset]
    images = load_images(settings.dataset, True, config.data.root)
    constants = source.train or images.statistics()
    train = image_dataset(images, *constants, augment=source.augment)
    if settings.validation_images:
        places = validation_places(len(images), settings.validation_images)
        test: Dataset = Subset(image_dataset(images, *constants), places.tolist())
    else:
        test = image_dataset(
            load_images(settings.dataset, False, config.data.root), *(source.test or constants)
        )
    data = FederatedData(
        train,
        deal(images.labels.numpy(), settings, config.seed),
        rounds=settings.rounds,
        sampler=sampling.uniform(settings.clients, settings.per_round, seed=config.seed),
        batch_size=settings.batch_size,
        test=test,
        seed=config.seed,
    )
    return data, images


def deal(labels: np.ndarray, settings: Any, seed: int) -> Partition:
    """The clients' places among all `labels`, validation images and those beyond `train_images` left out."""
    own = seed if settings.partition_seed is None else settings.partition_seed
    places = np.arange(len(labels))
    if settings.validation_images:
        places = np.setdiff1d(places, validation_places(len(labels), settings.validation_images))
    if settings.train_images:
        if settings.train_images > len(places):
            raise UserError(
                f"federation.train_images={settings.train_images}, but there are {len(places)} images."
            )
        stream = np.random.default_rng(derive_seed(own, "train_images"))
        places = np.sort(stream.permutation(places)[: settings.train_images])
    dealt = _dealer(settings)(labels[places], own)
    return Partition([places[mine] for mine in dealt.places])


def _dealer(settings: Any) -> Callable[[np.ndarray, int], Partition]:
    count, least = settings.clients, settings.min_size
    dealers: dict[str, Callable[[np.ndarray, int], Partition]] = {
        "iid": lambda y, s: iid(len(y), count, seed=s),
        "labeldir": lambda y, s: label_dirichlet(y, count, settings.alpha, seed=s, min_size=least),
        "labelcnt": lambda y, s: label_count(y, count, settings.labels_per_client, seed=s),
    }
    if settings.partition not in dealers:
        raise UserError(
            f"federation.partition takes {', '.join(PARTITIONS)}; found {settings.partition!r}."
            + suggest(settings.partition, PARTITIONS)
        )
    return dealers[settings.partition]
