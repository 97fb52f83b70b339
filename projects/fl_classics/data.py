"""Training and test images, normalised by the training images' own statistics."""

from __future__ import annotations

import functools

from torch.utils.data import Dataset

from shared.data.images import ImageSet, crop_and_flip, image_dataset, load_images


@functools.lru_cache(maxsize=2)
def datasets(name: str, root: str, augment: bool) -> tuple[ImageSet, Dataset, Dataset]:
    """The raw training images, and training and test data sets of (float32 (C, H, W), label).

    Only training images are augmented. All runs of a process share what this returns.
    """
    train, test = (load_images(name, part, root) for part in (True, False))
    mean, std = train.statistics()
    return (
        train,
        image_dataset(train, mean, std, crop_and_flip if augment else None),
        image_dataset(test, mean, std),
    )
