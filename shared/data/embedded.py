"""Readers of embedded sets that more than one project uses; each fetches its set when it is not there yet."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from shared.data.fetch import fetch
from shared.errors import UserError

IDX_UINT8 = 0x08  # the type byte of an IDX file of unsigned bytes


def fashion_mnist(train: bool) -> tuple[np.ndarray, np.ndarray]:
    """Fashion-MNIST: images uint8 (60000 or 10000, 28, 28) and labels uint8 (same number), 0..9."""
    folder, part = fetch("fashion-mnist"), "train" if train else "t10k"
    return read_idx(folder / f"{part}-images-idx3-ubyte"), read_idx(folder / f"{part}-labels-idx1-ubyte")


def read_idx(path: Path) -> np.ndarray:
    """Array of an IDX file of unsigned bytes: two zero bytes, the type, the number of axes, their lengths."""
    raw = path.read_bytes()
    if len(raw) < 4 or raw[:2] != b"\0\0" or raw[2] != IDX_UINT8:
        raise UserError(f"expected an IDX file of unsigned bytes, found {path} beginning with {raw[:4]!r}.")
    head = 4 + 4 * raw[3]
    shape = np.frombuffer(raw[4:head], ">u4").tolist()
    if len(raw) - head != np.prod(shape, dtype=np.int64):
        raise UserError(f"{path}: expected {shape} values, found {len(raw) - head} bytes.")
    return np.frombuffer(raw, np.uint8, offset=head).reshape(shape).copy()
