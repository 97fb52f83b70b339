"""Tux Paint stamps (`stamps` in the catalogue): drawings and photographs cut out by their alpha channel."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from shared.data.catalogue import fetch
from shared.errors import UserError

MIRRORED = "_mirror"  # end of the name of a picture that repeats another one


@dataclass(frozen=True, eq=False)
class Stamp:
    """One cut-out. Shared by all callers: read only.

    Attributes:
        name: of the file, without its ending.
        folders: from the widest to the narrowest, for instance ("animals", "mammals", "cats").
        image: uint8 (H, W, 4), colour that is not multiplied by alpha, and alpha.
        caption: in English, "" where there is none.
    """

    name: str
    folders: tuple[str, ...]
    image: np.ndarray
    caption: str

    @property
    def category(self) -> str:
        """The widest folder: one of 16, such as animals, food, town."""
        return self.folders[0]

    @property
    def kind(self) -> str:
        """The two widest folders, such as animals/birds; the category where there is no second one."""
        return "/".join(self.folders[:2])

    @property
    def mask(self) -> np.ndarray:
        """Boolean (H, W): where the stamp covers what lies below."""
        return self.image[..., 3] >= 128


@functools.lru_cache(maxsize=8)
def load(max_side: int | None = None, min_side: int = 1, folder: Path | None = None) -> tuple[Stamp, ...]:
    """All stamps in the order of their paths, mirrored copies left out.

    Args:
        max_side: larger pictures are shrunk to this many pixels along their longer side.
        min_side: pictures whose shorter side has fewer pixels (before shrinking) are left out.
        folder: where they lie; None: the catalogue's, fetched when it is not in the cache.

    Raises:
        UserError: the folder holds no stamp, or max_side is not positive.
    """
    if max_side is not None and max_side < 1:
        raise UserError(f"max_side is a number of pixels from 1 on, found {max_side}.")
    root = Path(folder) if folder is not None else fetch("stamps")
    paths = [path for path in sorted(root.rglob("*.png")) if not path.stem.endswith(MIRRORED)]
    paths = [path for path in paths if path.parent != root]
    if not paths:
        raise UserError(
            f"expected <class>/.../<name>.png below {root}, found none. "
            "Get the stamps with: python scripts/download_data.py stamps"
        )
    found = (_read(path, root, max_side, min_side) for path in paths)
    return tuple(stamp for stamp in found if stamp is not None)


def cut_out(
    stamps: tuple[Stamp, ...], least: float = 0.05, most: float = 0.98, centre: bool = False
) -> tuple[Stamp, ...]:
    """Those with a real mask: the share of covered pixels lies from `least` to `most`.

    Args:
        centre: also crop each to the box around its mask.
    """
    chosen = [stamp for stamp in stamps if least <= stamp.mask.mean() <= most]
    return tuple(_cropped(stamp) if centre else stamp for stamp in chosen)


def _read(path: Path, root: Path, max_side: int | None, min_side: int) -> Stamp | None:
    with Image.open(path) as opened:
        if min(opened.size) < min_side:
            return None
        image = opened.convert("RGBA")
    if max_side is not None and max(image.size) > max_side:
        scale = max_side / max(image.size)
        image = image.resize([max(1, round(side * scale)) for side in image.size], Image.Resampling.BOX)
    return Stamp(path.stem, path.parent.relative_to(root).parts, np.asarray(image), _caption(path))


def _caption(path: Path) -> str:
    """The first line of the text beside the picture; the lines below it are translations."""
    beside = path.with_suffix(".txt")
    if not beside.is_file():
        return ""
    lines = beside.read_text(encoding="utf-8", errors="replace").splitlines()
    return lines[0].strip() if lines else ""


def _cropped(stamp: Stamp) -> Stamp:
    rows, columns = np.nonzero(stamp.mask)
    box = slice(rows.min(), rows.max() + 1), slice(columns.min(), columns.max() + 1)
    return Stamp(stamp.name, stamp.folders, stamp.image[box], stamp.caption)
