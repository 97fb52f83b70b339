"""Readers of published image sets as they are distributed: CIFAR, SVHN, Tiny-ImageNet, scikit-learn's digits.

Each gives (images uint8 (N, C, H, W), labels int64 (N,)). What is missing, damaged or of another kind is a
`UserError` that names the file.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import pickle
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shared.errors import UserError
from shared.paths import cache_dir

Arrays = tuple[Tensor, Tensor]
DIGITS_TEST, DIGITS_SEED = 500, 0  # a fixed split, whatever the run's seed
TINY_FOLDERS, TINY_SIDE = ("tiny_imagenet", "tiny-imagenet-200"), 64
SVHN_FOLDERS = ("", "svhn", "SVHN")


def cifar10(root: Path, train: bool) -> Arrays:
    """`cifar-10-batches-py`: 3 x 32 x 32, five training batches and one test batch."""
    names = [f"data_batch_{number}" for number in range(1, 6)] if train else ["test_batch"]
    return _cifar([root / "cifar-10-batches-py" / name for name in names], "labels", 10)


def cifar100(root: Path, train: bool) -> Arrays:
    """`cifar-100-python`: 3 x 32 x 32, the fine labels."""
    return _cifar([root / "cifar-100-python" / ("train" if train else "test")], "fine_labels", 100)


def svhn(root: Path, train: bool) -> Arrays:
    """Cropped digits `{train,test}_32x32.mat`: X (32, 32, 3, N), y (N, 1) where 10 stands for the digit 0."""
    from scipy.io import loadmat

    name = f"{'train' if train else 'test'}_32x32.mat"
    path = _first([root / folder / name for folder in SVHN_FOLDERS], "svhn")
    try:
        held = loadmat(path)
        images, labels = np.asarray(held["X"]), np.asarray(held["y"]).reshape(-1)
    except Exception as error:  # scipy raises many classes for a damaged file
        raise _damaged(path, "a MAT file with X and y", error) from None
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[:3] != (32, 32, 3):
        raise UserError(f"{path}: expected X of shape (32, 32, 3, N), uint8; found {_shown(images)}.")
    return _checked(path, images.transpose(3, 2, 0, 1), labels.astype(np.int64) % 10, 10)


def tiny_imagenet(root: Path, train: bool) -> Arrays:
    """Tiny-ImageNet-200: 3 x 64 x 64; class i is line i of `wnids.txt`; the validation part is the test.

    The JPEG files are decoded once; the cache keeps the pixels under the files' names, sizes and times.
    """
    folder = _first([root / name / "wnids.txt" for name in TINY_FOLDERS], "tiny-imagenet").parent
    wnids = (folder / "wnids.txt").read_text().split()
    number = {wnid: place for place, wnid in enumerate(wnids)}
    if train:
        files = [(path, number[w]) for w in wnids for path in sorted((folder / "train" / w).rglob("*.JPEG"))]
    else:
        notes = _first([folder / "val" / "val_annotations.txt"], "tiny-imagenet")
        try:
            rows = [line.split("\t")[:2] for line in notes.read_text().splitlines() if line]
            files = [(folder / "val" / "images" / name, number[wnid]) for name, wnid in rows]
        except (ValueError, KeyError) as error:
            raise _damaged(notes, "lines of file name, wnid and box", error) from None
    if not files:
        raise UserError(f"{folder / 'train'}: expected <wnid>/images/*.JPEG, found none.")
    pixels = _decoded([path for path, _ in files])
    return torch.from_numpy(pixels), torch.tensor([label for _, label in files])


def digits(root: Path, train: bool) -> Arrays:
    """The 1,797 digits of 1 x 8 x 8 that come with scikit-learn, 0 .. 16 scaled to 0 .. 255; 1,297 train."""
    path = digits_file()
    if path is None:
        raise UserError(
            "the digits are a file of the package scikit-learn, which is absent: pip install scikit-learn"
        )
    table = np.loadtxt(path, delimiter=",")  # (1797, 65), the last column is the label
    order = torch.randperm(len(table), generator=torch.Generator().manual_seed(DIGITS_SEED)).numpy()
    rows = table[order[DIGITS_TEST:] if train else order[:DIGITS_TEST]]
    images = np.round(rows[:, :64] * (255 / 16)).astype(np.uint8).reshape(-1, 1, 8, 8)
    return torch.from_numpy(images), torch.from_numpy(rows[:, 64].astype(np.int64))


def digits_file() -> Path | None:
    """Where scikit-learn keeps them; the package is not imported, which would take seconds."""
    found = importlib.util.find_spec("sklearn")
    for folder in (found.submodule_search_locations or []) if found else []:
        path = Path(folder) / "datasets" / "data" / "digits.csv.gz"
        if path.is_file():
            return path
    return None


# CIFAR's files are pickles of Python 2.


class ArraysOnly(pickle.Unpickler):
    """Reads dicts, lists, numbers, strings and numpy arrays; any other object is refused, nothing is run."""

    def find_class(self, module: str, name: str) -> Any:
        made = _ALLOWED.get((module.replace("numpy.core", "numpy._core"), name))
        if made is None:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return made


def _latin1(text: str, encoding: str) -> bytes:
    """What a newer pickle calls to make bytes; no other codec is offered."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"it asks for the codec {encoding}")
    return text.encode("latin1")


_ALLOWED: dict[tuple[str, str], Callable] = {
    ("numpy._core.multiarray", "_reconstruct"): np._core.multiarray._reconstruct,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("_codecs", "encode"): _latin1,
}


def _cifar(paths: Sequence[Path], key: str, classes: int) -> Arrays:
    parts = []
    for path in paths:
        _first([path], "cifar-10" if classes == 10 else "cifar-100")
        try:
            with path.open("rb") as file:
                held = ArraysOnly(file, encoding="latin1").load()
            images, labels = np.asarray(held["data"]), np.asarray(held[key], dtype=np.int64)
        except Exception as error:  # a damaged pickle can raise nearly everything
            raise _damaged(path, f"a pickled dict with data and {key}", error) from None
        if images.dtype != np.uint8 or images.ndim != 2 or images.shape[1] != 3072:
            raise UserError(f"{path}: expected data of shape (N, 3072), uint8; found {_shown(images)}.")
        parts.append(_checked(path, images.reshape(-1, 3, 32, 32), labels, classes))
    return torch.cat([images for images, _ in parts]), torch.cat([labels for _, labels in parts])


def _decoded(paths: Sequence[Path]) -> np.ndarray:
    """Pixels (N, 3, 64, 64) of JPEG files, kept in the cache."""
    name = hashlib.sha256()
    for path in paths:
        try:
            seen = path.stat()
        except OSError as error:
            raise _damaged(path, "an image", error) from None
        name.update(f"{path} {seen.st_size} {seen.st_mtime_ns}\n".encode())
    kept = cache_dir() / "decoded" / f"{name.hexdigest()[:16]}.npy"
    if kept.is_file():
        try:
            return np.load(kept, allow_pickle=False)
        except (ValueError, OSError, EOFError):
            kept.unlink()  # damaged: decode again
    from PIL import Image

    pixels = np.empty((len(paths), 3, TINY_SIDE, TINY_SIDE), np.uint8)
    for place, path in enumerate(paths):
        try:
            with Image.open(path) as image:
                colours = np.asarray(image.convert("RGB"))  # some of the files are grey
        except (OSError, SyntaxError, ValueError) as error:
            raise _damaged(path, "a JPEG image", error) from None
        if colours.shape[:2] != (TINY_SIDE, TINY_SIDE):
            raise UserError(f"{path}: expected an image of 64 x 64, found {colours.shape[:2]}.")
        pixels[place] = colours.transpose(2, 0, 1)
    kept.parent.mkdir(parents=True, exist_ok=True)
    partial = kept.with_suffix(f".{os.getpid()}.partial")
    with partial.open("wb") as file:
        np.save(file, pixels)
    partial.replace(kept)
    return pixels


def _checked(path: Path, images: np.ndarray, labels: np.ndarray, classes: int) -> Arrays:
    if len(images) != len(labels) or labels.ndim != 1:
        raise UserError(f"{path}: {len(images)} images have labels of shape {labels.shape}.")
    if len(labels) and not 0 <= labels.min() <= labels.max() < classes:
        found = f"{labels.min()} .. {labels.max()}"
        raise UserError(f"{path}: expected labels 0 .. {classes - 1}, found {found}.")
    return torch.from_numpy(np.ascontiguousarray(images)), torch.from_numpy(labels)


def _first(paths: Sequence[Path], entry: str) -> Path:
    """The first that exists."""
    for path in paths:
        if path.is_file():
            return path
    from shared.data.catalogue import requirement

    wanted = " or ".join(map(str, paths))
    raise UserError(f"expected {wanted}, found no such file. Get it: {requirement(entry).get}")


def _damaged(path: Path, expected: str, error: Exception) -> UserError:
    reason = "truncated" if isinstance(error, (EOFError, zlib.error)) else str(error).splitlines()[0:1]
    shown = reason if isinstance(reason, str) else (reason or [type(error).__name__])[0]
    return UserError(f"{path} cannot be read as {expected} ({shown}). Get the file again.")


def _shown(array: np.ndarray) -> str:
    return f"{array.shape}, {array.dtype}"
