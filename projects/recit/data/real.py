"""The paper's sets in their published layouts: full-size miniImageNet and the four targets of BSCD-FSL."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path

from projects.recit.data.pools import Pool, pool_of_files
from shared.errors import UserError

ISIC = ("MEL", "NV", "BCC", "AKIEC", "BKL", "DF", "VASC")
CHESTX = ("Atelectasis", "Cardiomegaly", "Effusion", "Infiltration", "Mass", "Nodule", "Pneumothorax")
PARTS = {"base": "train", "val": "val", "novel": "test"}


def mini_imagenet(root: Path, part: str) -> Pool:
    """`mini_imagenet_full_size/{train,val,test}/<wnid>/*.JPEG`: 64, 16 and 20 classes of 600 images."""
    folder = root / "mini_imagenet_full_size" / PARTS[part]
    return _folders("mini-imagenet", [folder], (".jpeg", ".jpg"))


def crop_diseases(root: Path, part: str = "novel") -> Pool:
    """`CropDiseases/dataset/train/<class>/*.JPG`; the folder `test` beside it is not used."""
    return _folders("crop-diseases", [root / "CropDiseases" / "dataset" / "train"], (".jpg", ".jpeg"))


def eurosat(root: Path, part: str = "novel") -> Pool:
    """`EuroSAT/2750/<class>/<class>_k.jpg`."""
    return _folders("eurosat", [root / "EuroSAT" / "2750", root / "eurosat" / "2750"], (".jpg",))


def isic(root: Path, part: str = "novel") -> Pool:
    """ISIC 2018 task 3: images and a table with a column for each of seven diagnoses, of which one is 1."""
    folder = root / "ISIC"
    table = folder / "ISIC2018_Task3_Training_GroundTruth" / "ISIC2018_Task3_Training_GroundTruth.csv"
    head, *rows = _table(table)
    if head[1:] != list(ISIC):
        raise UserError(f"{table}: expected the columns image, {', '.join(ISIC)}; found {', '.join(head)}.")
    images, names = [], []
    for number, row in enumerate(rows, 2):
        try:
            values = [float(value) for value in row[1:]]
        except ValueError:
            values = []
        if len(values) != len(ISIC):
            raise UserError(f"{table}, line {number}: expected a name and 7 numbers, found {','.join(row)}.")
        images.append(folder / "ISIC2018_Task3_Training_Input" / f"{row[0]}.jpg")
        names.append(ISIC[max(range(len(ISIC)), key=values.__getitem__)])
    return pool_of_files("isic", _present("isic", images), names, list(ISIC))


def chestx(root: Path, part: str = "novel") -> Pool:
    """NIH ChestX-ray8: rows of the table with exactly one label, and that one of seven."""
    folder = root / "ChestX"
    table = folder / "Data_Entry_2017.csv"
    images, names = [], []
    for number, row in enumerate(_table(table)[1:], 2):
        if len(row) < 2:
            raise UserError(
                f"{table}, line {number}: expected a file and its labels, found {','.join(row)!r}."
            )
        if row[1] in CHESTX:  # several labels are joined by a bar, and so are none of these
            images.append(folder / "images" / row[0])
            names.append(row[1])
    return pool_of_files("chestx", _present("chestx", images), names, list(CHESTX))


READERS: dict[str, Callable[[Path, str], Pool]] = {
    "mini-imagenet": mini_imagenet,
    "crop-diseases": crop_diseases,
    "eurosat": eurosat,
    "isic": isic,
    "chestx": chestx,
}


def _folders(name: str, places: list[Path], endings: tuple[str, ...]) -> Pool:
    """Class folders below the first of `places` that exists."""
    folder = next((place for place in places if place.is_dir()), None)
    if folder is None:
        raise UserError(f"{name}: expected a folder of classes at {places[0]}, found none.")
    files = [path for path in sorted(folder.glob("*/*")) if path.suffix.lower() in endings]
    if not files:
        raise UserError(f"{name}: expected {folder}/<class>/*{endings[0]}, found no such file.")
    return pool_of_files(name, files, [path.parent.name for path in files])


def _table(path: Path) -> list[list[str]]:
    if not path.is_file():
        raise UserError(f"expected the table {path}, found no such file.")
    with path.open(newline="", encoding="utf-8-sig") as stream:
        rows = [row for row in csv.reader(stream) if row]
    if len(rows) < 2:
        raise UserError(f"{path}: expected a head and rows below it, found {len(rows)} lines.")
    return rows


def _present(name: str, images: list[Path]) -> list[Path]:
    """`images`, when all of them are there."""
    folders = {path.parent for path in images}
    there = {path for folder in folders if folder.is_dir() for path in folder.iterdir()}
    if absent := [path for path in images if path not in there]:
        raise UserError(
            f"{name}: {len(absent)} of {len(images)} images of the table are missing, the first is "
            f"{absent[0]}. Unpack all parts of the set."
        )
    return images
