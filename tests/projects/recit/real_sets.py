"""The paper's sets in their published layouts, generated: a few images of coloured noise in each class."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
from PIL import Image

from projects.recit.data.real import CHESTX, ISIC

IMAGES = 8  # of each class


def write_image(
    path: Path, seed: int, label: int, size: tuple[int, int] = (30, 24), mode: str = "RGB"
) -> None:
    """Noise around a colour that tells the class."""
    path.parent.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng([seed, label])
    colour = np.array([40 + 30 * (label % 7), 40 + 25 * (label // 7), 128])
    pixels = (colour + random.normal(0, 25, (size[1], size[0], 3))).clip(0, 255).astype(np.uint8)
    Image.fromarray(pixels).convert(mode).save(path)


def write_mini_imagenet(root: Path, classes: int = 6, images: int = IMAGES) -> None:
    for part, first in (("train", 0), ("val", 100), ("test", 200)):
        for label in range(classes):
            for number in range(images):
                name = f"n{first + label:08d}"
                folder = root / "mini_imagenet_full_size" / part / name
                write_image(folder / f"{name}_{number}.JPEG", number + first, label)


def write_crop_diseases(root: Path, classes: int = 7, images: int = IMAGES) -> None:
    for label in range(classes):
        for number in range(images):
            ending = "JPG" if number % 2 else "jpg"
            write_image(
                root / "CropDiseases/dataset/train" / f"Apple___{label}" / f"{number}.{ending}", number, label
            )
    write_image(root / "CropDiseases/dataset/test/Apple___0/other.JPG", 0, 0)


def write_eurosat(root: Path, classes: int = 7, images: int = IMAGES) -> None:
    for label in range(classes):
        for number in range(images):
            write_image(
                root / "EuroSAT/2750" / f"Land{label}" / f"Land{label}_{number}.jpg", number, label, (64, 64)
            )


def write_isic(root: Path, images: int = IMAGES) -> None:
    folder = root / "ISIC"
    rows = []
    for label in range(len(ISIC)):
        for number in range(images):
            name = f"ISIC_{label:03d}{number:04d}"
            write_image(folder / "ISIC2018_Task3_Training_Input" / f"{name}.jpg", number, label)
            rows.append([name, *(float(place == label) for place in range(len(ISIC)))])
    table = folder / "ISIC2018_Task3_Training_GroundTruth" / "ISIC2018_Task3_Training_GroundTruth.csv"
    _write_table(table, ["image", *ISIC], rows)


def write_chestx(root: Path, images: int = IMAGES) -> None:
    """Beside rows with one of the seven labels: several labels, no finding, pneumonia."""
    rows = []
    for label, name in enumerate(CHESTX):
        for number in range(images):
            file = f"{label:04d}{number:04d}_000.png"
            write_image(root / "ChestX/images" / file, number, label, mode="L")
            rows.append([file, name, number])
    for number, labels in enumerate(("Mass|Nodule", "No Finding", "Pneumonia", "Effusion|Pneumonia")):
        rows.append([f"other{number}.png", labels, 0])  # without an image: nobody asks for it
    _write_table(root / "ChestX/Data_Entry_2017.csv", ["Image Index", "Finding Labels", "Follow-up #"], rows)


def write_all(root: Path) -> None:
    write_mini_imagenet(root)
    write_crop_diseases(root)
    write_eurosat(root)
    write_isic(root)
    write_chestx(root)


def _write_table(path: Path, head: list[str], rows: list[list]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as stream:
        csv.writer(stream).writerows([head, *rows])
