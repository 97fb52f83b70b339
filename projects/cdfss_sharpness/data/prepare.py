"""Bring two downloads into the benchmark's layout.

python -m projects.cdfss_sharpness.data.prepare deepglobe DOWNLOAD ROOT   tiles and binary masks
python -m projects.cdfss_sharpness.data.prepare isic CLASS_TABLE ROOT     images into folders by lesion type

DOWNLOAD holds `<id>_sat.jpg` and `<id>_mask.png` of 2448 x 2448 pixels. Tiles are encoded as JPEG again, so
they are not bit for bit those that the benchmark's authors released; prefer theirs. CLASS_TABLE is a CSV file
with the columns ID and Class, and ROOT/ISIC/ISIC2018_Task1-2_Training_Input holds the images, not yet sorted.
"""

from __future__ import annotations

import argparse
import csv
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from shared.errors import UserError, fail_cleanly

PARTS = 6  # tiles along each side
RAREST = 0.048  # share of a tile that its rarest colour has to exceed
COLOURS = {  # RGB -> number of the folder, in the order of the benchmark's own script
    (255, 255, 0): 1,
    (0, 255, 255): 2,
    (255, 0, 255): 3,
    (0, 255, 0): 4,
    (0, 0, 255): 5,
    (255, 255, 255): 6,
}
LESION_FOLDERS = {"nevus": 1, "seborrheic_keratosis": 2, "melanoma": 3, "1": 1, "2": 2, "3": 3}


def tiles(pixels: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """The 6 x 6 tiles of (H, W, 3) with their names, row and column."""
    height, width = pixels.shape[:2]
    for row in range(PARTS):
        for column in range(PARTS):
            down = slice(row * height // PARTS, (row + 1) * height // PARTS)
            across = slice(column * width // PARTS, (column + 1) * width // PARTS)
            yield f"{row}{column}", pixels[down, across]


def kept(mask: np.ndarray) -> bool:
    """Whether a tile of a colour mask (h, w, 3) has several colours, each on more than 4.8 % of it."""
    _, counts = np.unique(mask.reshape(-1, 3), axis=0, return_counts=True)
    return len(counts) > 1 and counts.min() / counts.sum() > RAREST


def deepglobe(download: Path, root: Path) -> int:
    """Write ROOT/Deepglobe/<1..6>/test/{origin,groundtruth}; return the number of masks."""
    pictures = sorted(download.glob("*_sat.jpg"))
    if not pictures:
        raise UserError(f"expected <id>_sat.jpg and <id>_mask.png in {download}, found none.")
    written = 0
    for picture in pictures:
        name = picture.stem.removesuffix("_sat")
        beside = download / f"{name}_mask.png"
        if not beside.is_file():
            continue  # the parts for validation and testing have no masks
        image, mask = (np.asarray(Image.open(path).convert("RGB")) for path in (picture, beside))
        if image.shape != mask.shape:
            raise UserError(f"{picture} is {image.shape}, its mask {mask.shape}; expected equal shapes.")
        for (place, tile), (_, colours) in zip(tiles(image), tiles(mask), strict=True):
            if kept(colours):
                written += _write(root / "Deepglobe", f"{name}_{place}", tile, colours)
    return written


def _write(base: Path, name: str, tile: np.ndarray, colours: np.ndarray) -> int:
    """Save a tile into the folder of every class on it, with that class's mask."""
    written = 0
    for colour, number in COLOURS.items():
        mask = (colours == np.array(colour, np.uint8)).all(2)
        if mask.any():
            for part, array, ending in (
                ("origin", tile, "jpg"),
                ("groundtruth", mask.astype(np.uint8) * 255, "png"),
            ):
                folder = base / str(number) / "test" / part
                folder.mkdir(parents=True, exist_ok=True)
                Image.fromarray(array).save(folder / f"{name}.{ending}", quality=95)
            written += 1
    return written


def isic(table: Path, root: Path) -> int:
    """Copy the images into ROOT/ISIC/ISIC2018_Task1-2_Training_Input/<1..3>; return their number."""
    folder = root / "ISIC" / "ISIC2018_Task1-2_Training_Input"
    if not table.is_file():
        raise UserError(f"expected a CSV file with the columns ID and Class, found nothing at {table}.")
    with table.open(newline="", encoding="utf-8-sig") as file:
        rows = list(csv.DictReader(file))
    if not rows or not {"ID", "Class"} <= set(rows[0]):
        raise UserError(f"{table}: expected the columns ID and Class, found {list(rows[0]) if rows else []}.")
    for row in rows:
        kind = row["Class"].strip().lower().replace(" ", "_")
        if kind not in LESION_FOLDERS:
            raise UserError(
                f"{table}: expected a class of {', '.join(LESION_FOLDERS)}, found {row['Class']!r}."
            )
        image = folder / f"{Path(row['ID'].strip()).stem}.jpg"
        if not image.is_file():
            raise UserError(f"{table} names {image.name}; expected it in {folder}, found none.")
        target = folder / str(LESION_FOLDERS[kind])
        target.mkdir(exist_ok=True)
        shutil.copy2(image, target / image.name)
    return len(rows)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, prog="prepare"
    )
    parser.add_argument("set", choices=("deepglobe", "isic"))
    parser.add_argument("source", type=Path, help="the download, or the table of classes")
    parser.add_argument("root", type=Path, help="data.root")
    options = parser.parse_args(arguments)
    count = {"deepglobe": deepglobe, "isic": isic}[options.set](options.source, options.root)
    print(f"{options.set}: {count} images written below {options.root}")
    return 0


if __name__ == "__main__":
    sys.exit(fail_cleanly(main))
