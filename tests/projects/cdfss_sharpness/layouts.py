"""Generated files in the published layouts of the benchmark: few, small pictures."""

from pathlib import Path

import numpy as np
from PIL import Image

SIDE = 48


def picture(path: Path, seed: int, size=(SIDE, SIDE)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (*size[::-1], 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)


def disc(seed: int, size=(SIDE, SIDE)) -> np.ndarray:
    """Boolean (H, W): a disc at a place that depends on the seed."""
    stream = np.random.default_rng(seed)
    y, x = np.mgrid[: size[1], : size[0]]
    centre = stream.uniform(0.35, 0.65, 2) * size[::-1]
    return (y - centre[0]) ** 2 + (x - centre[1]) ** 2 < (0.25 * min(size)) ** 2


def mask(path: Path, seed: int, size=(SIDE, SIDE)) -> None:
    """Grey, not just black and white: the threshold is 128."""
    path.parent.mkdir(parents=True, exist_ok=True)
    grey = np.where(disc(seed, size), 140, 120).astype(np.uint8)
    Image.fromarray(grey).save(path)


def write_pascal(root: Path, classes=(1, 20), images: int = 4, base: str = "VOC2012") -> None:
    """`images` pictures with two classes each; class 1 in fold 0, class 20 in fold 3."""
    lists: dict[int, list[str]] = {fold: [] for fold in range(4)}
    palette = [value for colour in range(256) for value in (colour, 255 - colour, colour // 2)]
    for number in range(images):
        name, size = f"2007_00000{number}", (SIDE, SIDE - 8)
        picture(root / base / "JPEGImages" / f"{name}.jpg", number, size)
        labels = np.zeros(size[::-1], np.uint8)
        labels[disc(number, size)] = classes[0]
        labels[:9, :9] = classes[1]
        labels[9:11, :9] = 255
        image = Image.fromarray(labels).convert("P")
        image.putpalette(palette)
        path = root / base / "SegmentationClassAug" / f"{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        image.save(path)
        for label in classes:
            lists[(label - 1) // 5].append(f"{name}__{label:02d}")
    for fold, lines in lists.items():
        path = root / "splits" / "pascal" / "trn" / f"fold{fold}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"{line}\n" for line in lines))


def write_fss(root: Path, classes=("ab_wheel", "zucchini"), images: int = 4) -> None:
    for label, name in enumerate(classes):
        for number in range(1, images + 1):
            picture(root / "FSS-1000" / name / f"{number}.jpg", 10 * label + number)
            mask(root / "FSS-1000" / name / f"{number}.png", 10 * label + number)
    path = root / "splits" / "fss" / "test.txt"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{name}\n" for name in reversed(classes)))


def write_deepglobe(root: Path, images: int = 2) -> None:
    for label in range(1, 7):
        for number in range(images):
            base = root / "Deepglobe" / str(label) / "test"
            picture(base / "origin" / f"{label}{number}_00.jpg", 10 * label + number)
            mask(base / "groundtruth" / f"{label}{number}_00.png", 10 * label + number)


def write_isic(root: Path, images: int = 2) -> None:
    for label in range(1, 4):
        for number in range(images):
            name, seed = f"ISIC_00000{label}{number}", 10 * label + number
            picture(root / "ISIC" / "ISIC2018_Task1-2_Training_Input" / str(label) / f"{name}.jpg", seed)
            mask(root / "ISIC" / "ISIC2018_Task1_Training_GroundTruth" / f"{name}_segmentation.png", seed)


def write_chest(root: Path, images: int = 4) -> None:
    for number in range(images):
        picture(root / "LungSegmentation" / "CXR_png" / f"CHNCXR_000{number}_0.png", number, (SIDE, 60))
        mask(root / "LungSegmentation" / "masks" / f"CHNCXR_000{number}_0_mask.png", number, (SIDE, 60))


def write_all(root: Path) -> None:
    for write in (write_pascal, write_fss, write_deepglobe, write_isic, write_chest):
        write(root)
