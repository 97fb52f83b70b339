"""The source and the four targets of the benchmark, in the layouts in which they are published."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from PIL import Image

from projects.cdfss_sharpness.data.episodes import THRESHOLD, ImagePool
from projects.cdfss_sharpness.prototypes import IGNORED
from shared.errors import UserError

VOC_CLASSES = (
    *("aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow"),
    *("diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train"),
    "tvmonitor",
)
FOLDS = 4
LAND = ("agriculture", "urban", "rangeland", "forest", "water", "barren")  # Deepglobe/1 .. 6
LESIONS = ("nevus", "seborrheic keratosis", "melanoma")  # ISIC folders 1 .. 3
SPLITS_SOURCE = "the folder data/splits of the GitHub repository slei109/PATNet"
Entries = list[tuple[int, str]]


def pascal(root: Path, splits: Path) -> tuple[ImagePool, Entries]:
    """PASCAL VOC 2012 with SBD masks, all 20 classes: the training lists of the four folds joined.

    Returns the pool, and its (class, image id) entries in the lists' order.
    """
    base = next(
        (path for path in (root / "VOC2012", root / "VOCdevkit" / "VOC2012") if path.is_dir()),
        root / "VOC2012",
    )
    entries = [entry for fold in range(FOLDS) for entry in _fold(splits / f"pascal/trn/fold{fold}.txt")]
    members: list[list[str]] = [[] for _ in VOC_CLASSES]
    for label, image in entries:
        members[label].append(image)
    present = [label for label, own in enumerate(members) if own]
    place = {label: number for number, label in enumerate(present)}

    def read(image: str, number: int) -> tuple[Image.Image, np.ndarray]:
        labels = np.asarray(_open(base / f"SegmentationClassAug/{image}.png"))
        if labels.ndim != 2:
            raise UserError(
                f"{base}/SegmentationClassAug/{image}.png: expected class numbers 0..20 and 255 in one "
                f"channel, found an image of shape {labels.shape}."
            )
        own = present[number] + 1
        marks = np.where(labels == own, 1, np.where(labels == IGNORED, IGNORED, 0))
        return _open(base / f"JPEGImages/{image}.jpg"), marks

    pool = ImagePool(
        "PASCAL VOC 2012",
        tuple(VOC_CLASSES[label] for label in present),
        tuple(tuple(members[label]) for label in present),
        read,
    )
    return pool, [(place[label], image) for label, image in entries]


def fss1000(root: Path, splits: Path) -> tuple[ImagePool, Entries]:
    """The 240 test classes of FSS-1000; every image is the query of one episode."""
    names = sorted(_lines(splits / "fss/test.txt"))
    folders = [root / "FSS-1000" / name for name in names]
    members = [_listed(folder, "*.jpg", "FSS-1000") for folder in folders]
    pool = _with_masks("FSS-1000", names, members, lambda image: image.with_suffix(".png"))
    return pool, [(label, image) for label, own in enumerate(members) for image in own]


def deepglobe(root: Path) -> ImagePool:
    """Tiles of DeepGlobe land cover; a tile with several classes lies in the folder of each."""
    folders = [root / "Deepglobe" / str(number + 1) / "test" for number in range(len(LAND))]
    members = [_listed(folder / "origin", "*.jpg", "DeepGlobe") for folder in folders]
    return _with_masks(
        "DeepGlobe", LAND, members, lambda image: image.parent.parent / f"groundtruth/{image.stem}.png"
    )


def isic(root: Path) -> ImagePool:
    """ISIC 2018 task 1 by lesion type; masks are read from the flat folder of the ground truth."""
    folder = root / "ISIC" / "ISIC2018_Task1-2_Training_Input"
    truth = root / "ISIC" / "ISIC2018_Task1_Training_GroundTruth"
    members = [_listed(folder / str(number + 1), "*.jpg", "ISIC 2018") for number in range(len(LESIONS))]
    return _with_masks("ISIC 2018", LESIONS, members, lambda image: truth / f"{image.stem}_segmentation.png")


def chest(root: Path) -> ImagePool:
    """Lungs in chest X-rays: one class, an image for each mask `<id>_mask.png`."""
    base = root / "LungSegmentation"
    masks = _listed(base / "masks", "*_mask.png", "Chest X-ray")
    images = [base / "CXR_png" / f"{mask.stem.removesuffix('_mask')}.png" for mask in masks]
    return _with_masks(
        "Chest X-ray", ("lung",), [images], lambda image: base / "masks" / f"{image.stem}_mask.png"
    )


def _with_masks(name: str, classes: Iterable[str], members: list, mask_of) -> ImagePool:
    """A pool of image paths whose masks are grey pictures."""

    def read(image: Path, number: int) -> tuple[Image.Image, np.ndarray]:
        grey = np.asarray(_open(mask_of(image)).convert("L"))
        return _open(image), (grey >= THRESHOLD).astype(np.uint8)

    return ImagePool(name, tuple(classes), tuple(tuple(own) for own in members), read)


def _open(path: Path) -> Image.Image:
    try:
        with Image.open(path) as image:
            image.load()
            return image
    except FileNotFoundError:
        raise UserError(f"expected the picture {path}, found none. Is the data set complete?") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read as a picture ({error}); unpack the set again.") from None


def _listed(folder: Path, pattern: str, name: str) -> list[Path]:
    found = sorted(folder.glob(pattern))
    if not found:
        raise UserError(f"{name}: expected {pattern} in {folder}, found none.")
    return found


@functools.lru_cache(maxsize=16)
def _lines(path: Path) -> tuple[str, ...]:
    if not path.is_file():
        raise UserError(f"expected the list {path}, found none. It comes from {SPLITS_SOURCE}.")
    return tuple(line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip())


def _fold(path: Path) -> Entries:
    entries = []
    for line in _lines(path):
        image, _, number = line.rpartition("__")
        if not image or not number.isdigit() or not 1 <= int(number) <= len(VOC_CLASSES):
            raise UserError(f"{path}: expected lines <image id>__<class 1..20>, found {line!r}.")
        entries.append((int(number) - 1, image))
    return entries
