"""Sentences behind the frozen lower blocks, computed once for all runs and kept in the cache.

The blocks below the adapted ones never change, so their output is data: training from it equals training the
whole encoder and costs a third.
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from shared.paths import cache_dir
from shared.text.minilm import embed

VERSION = 1  # raise it when what is computed here changes, so that old files are not taken for new ones
CHUNK = 64  # sentences computed at once


@dataclass(frozen=True)
class Batch:
    """`hidden` (B, T, D) behind the lower blocks, `mask` (B, T) true at words, `label` (B)."""

    hidden: Tensor
    mask: Tensor
    label: Tensor

    def to(self, device: Any) -> Batch:
        """The same batch on `device`; Lightning calls it."""
        return Batch(self.hidden.to(device), self.mask.to(device), self.label.to(device))


@dataclass(frozen=True)
class Features:
    """All sentences: `hidden` (N, T, D) padded with zeros, `lengths` (N), `labels` (N)."""

    hidden: Tensor
    lengths: Tensor
    labels: Tensor

    def batch(self, indices: Tensor) -> Batch:
        """The sentences `indices`, padded to the longest among them."""
        lengths = self.lengths[indices]
        longest = int(lengths.max())
        return Batch(
            self.hidden[indices, :longest], torch.arange(longest) < lengths[:, None], self.labels[indices]
        )


def compute(encoder: Any, sentences: Sequence[Sequence[int]], labels: Sequence[int], blocks: int) -> Features:
    """Run the embedding and the first `blocks` blocks over `sentences` (word-piece ids)."""
    lengths = torch.tensor([len(sentence) for sentence in sentences])
    hidden = torch.zeros(len(sentences), int(lengths.max()), encoder.config.hidden_size)
    order = lengths.argsort(stable=True)
    for indices in order.split(CHUNK):
        longest = int(lengths[indices].max())
        ids = torch.zeros(len(indices), longest, dtype=torch.long)
        for row, index in enumerate(indices.tolist()):
            ids[row, : lengths[index]] = torch.tensor(sentences[index])
        mask = torch.arange(longest) < lengths[indices, None]
        hidden[indices, :longest] = embed(encoder, ids, mask, blocks) * mask[..., None]
    return Features(hidden, lengths, torch.tensor(labels))


@functools.lru_cache(maxsize=2)
def digest(path: Path, stamp: tuple[int, int]) -> str:
    """Hash of a file's content; `stamp` (size, time) makes a changed file a new question."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def cached(parts: Sequence[Path | str | int | float], make: Callable[[], Features]) -> Features:
    """`make()`, or what it gave before for the same `parts`; files among `parts` count by content.

    One process computes, others wait for it; an unreadable file is computed again.
    """
    texts = [
        digest(part, (part.stat().st_size, part.stat().st_mtime_ns)) if isinstance(part, Path) else repr(part)
        for part in parts
    ]
    key = hashlib.sha256("\n".join([str(VERSION), torch.__version__, *texts]).encode()).hexdigest()[:16]
    path = cache_dir() / "features" / f"nonzero_lora-{key}.safetensors"
    path.parent.mkdir(parents=True, exist_ok=True)
    found = _read(path)
    if found is None:
        with FileLock(path.with_suffix(".lock")):
            found = _read(path)
            if found is None:
                features = make()
                partial = path.with_suffix(f".{os.getpid()}.partial")
                save_file(vars(features), partial)
                partial.replace(path)
                found = features
    return found


def _read(path: Path) -> Features | None:
    try:
        return Features(**load_file(path))
    except (FileNotFoundError, SafetensorError):
        return None
