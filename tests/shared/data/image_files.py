"""Small made-up image sets in the layouts in which the real ones are distributed."""

from __future__ import annotations

import io
import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np


def pixels(
    count: int, classes: int, shape: tuple[int, int, int], seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Noise whose brightness tells the class, so that something can be learnt; every class in turn."""
    stream = np.random.default_rng(seed)
    labels = np.arange(count) % classes
    images = (
        stream.integers(0, 64, (count, *shape)) + (labels * (191 // max(classes - 1, 1)))[:, None, None, None]
    )
    return images.astype(np.uint8), labels


class Python2Pickler(pickle._Pickler):
    """Writes what Python 2 with its numpy wrote: byte strings as such, the old name of numpy's core."""

    dispatch = dict(pickle._Pickler.dispatch)

    def save_string(self, text: Any) -> None:
        raw = text.encode("latin1") if isinstance(text, str) else text
        self.write(pickle.BINSTRING + struct.pack("<i", len(raw)) + raw)
        self.memoize(text)

    def save_global(self, obj: Any, name: str | None = None) -> None:
        module = obj.__module__.replace("numpy._core", "numpy.core")
        self.write(pickle.GLOBAL + f"{module}\n{name or obj.__qualname__}\n".encode())
        self.memoize(obj)

    dispatch[str] = dispatch[bytes] = save_string
    dispatch[type] = dispatch[type(len)] = dispatch[type(pixels)] = save_global


def python2_pickle(content: Any) -> bytes:
    file = io.BytesIO()
    Python2Pickler(file, protocol=2).dump(content)
    return file.getvalue()


def write_cifar10(root: Path, per_file: int = 20, test: int = 10) -> None:
    folder = root / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    names = {f"data_batch_{number}": per_file for number in range(1, 6)} | {"test_batch": test}
    for seed, (name, count) in enumerate(names.items()):
        images, labels = pixels(count, 10, (3, 32, 32), seed)
        content = {"batch_label": name, "labels": labels.tolist(), "data": images.reshape(count, -1)}
        (folder / name).write_bytes(python2_pickle(content | {"filenames": ["a.png"] * count}))
    (folder / "batches.meta").write_bytes(python2_pickle({"num_cases_per_batch": per_file}))


def write_cifar100(root: Path, train: int = 200, test: int = 100) -> None:
    folder = root / "cifar-100-python"
    folder.mkdir(parents=True)
    for name, count in (("train", train), ("test", test)):
        images, labels = pixels(count, 100, (3, 32, 32), count)
        content = {"fine_labels": labels.tolist(), "coarse_labels": (labels // 5).tolist()}
        (folder / name).write_bytes(python2_pickle(content | {"data": images.reshape(count, -1)}))
    (folder / "meta").write_bytes(python2_pickle({"fine_label_names": ["x"] * 100}))


def write_svhn(root: Path, train: int = 40, test: int = 20) -> None:
    """In SVHN the label of the digit 0 is 10."""
    from scipy.io import savemat

    root.mkdir(parents=True, exist_ok=True)
    for name, count in (("train", train), ("test", test)):
        images, labels = pixels(count, 10, (3, 32, 32), count)
        named = np.where(labels == 0, 10, labels).astype(np.uint8)[:, None]
        savemat(root / f"{name}_32x32.mat", {"X": images.transpose(2, 3, 1, 0), "y": named})


def write_tiny_imagenet(
    root: Path, classes: int = 3, each: int = 2, folder: str = "tiny-imagenet-200"
) -> None:
    """JPEG files; the wnids are not in alphabetical order, one image is grey."""
    from PIL import Image

    top = root / folder
    wnids = [f"n{9000 - 7 * number:08d}" for number in range(classes)]
    top.mkdir(parents=True)
    (top / "wnids.txt").write_text("\n".join(wnids) + "\n")
    for label, wnid in enumerate(wnids):
        images = top / "train" / wnid / "images"
        images.mkdir(parents=True)
        for number in range(each):
            grey = label == number == 0
            level = 20 + 60 * label
            image = Image.new("L" if grey else "RGB", (64, 64), level if grey else (level,) * 3)
            image.save(images / f"{wnid}_{number}.JPEG")
        (images.parent / f"{wnid}_boxes.txt").write_text(f"{wnid}_0.JPEG\t0\t0\t62\t62\n")
    (top / "val" / "images").mkdir(parents=True)
    lines = []
    for number, label in enumerate(reversed(range(classes))):
        image = Image.new("RGB", (64, 64), (20 + 60 * label,) * 3)
        image.save(top / "val" / "images" / f"val_{number}.JPEG")
        lines.append(f"val_{number}.JPEG\t{wnids[label]}\t0\t0\t62\t62\n")
    (top / "val" / "val_annotations.txt").write_text("".join(lines))
