"""Readers of the embedded sets. Each fetches its set into the cache when it is not there yet."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np

from shared.data.fetch import fetch
from shared.errors import UserError, suggest

IDX_UINT8 = 0x08  # the type byte of an IDX file of unsigned bytes


def movie_sentences() -> tuple[list[str], np.ndarray]:
    """Movie-review sentences with the mean score of ten raters.

    Returns:
        10,605 texts and their scores, float64 (10605,), -4 (most negative) .. 4.
    """
    path = fetch("movie-sentences") / "movieReviewSnippets_GroundTruth.txt"
    rows = [line.split("\t", 2) for line in path.read_text("utf-8", "replace").splitlines()]
    return [row[2] for row in rows], np.array([float(row[1]) for row in rows])


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


def brown_genres() -> dict[str, list[str]]:
    """Genre -> file names of the Brown corpus (15 genres, 500 files)."""
    genres: dict[str, list[str]] = {}
    for line in (fetch("brown") / "cats.txt").read_text("ascii").splitlines():
        name, genre = line.split()
        genres.setdefault(genre, []).append(name)
    return genres


@functools.cache
def brown(genre: str) -> tuple[str, ...]:
    """Sentences of one genre of the Brown corpus as plain text, tags stripped.

    Raises:
        UserError: no such genre; the nearest one is offered.
    """
    genres = brown_genres()
    if genre not in genres:
        raise UserError(
            f"expected a genre of the Brown corpus ({', '.join(sorted(genres))}), found '{genre}'."
            f"{suggest(genre, genres)}"
        )
    folder = fetch("brown")
    lines = (line for name in genres[genre] for line in (folder / name).read_text("ascii").splitlines())
    return tuple(plain_text(line) for line in lines if line.strip())


def plain_text(tagged: str) -> str:
    """`The/at jury/nn said/vbd ,/, ``/`` no/at ''/''` as ordinary text, quotes and spacing mended."""
    text = " ".join(token.rsplit("/", 1)[0] for token in tagged.split())
    for written, plain in (("`` ", '"'), (" ''", '"'), ("``", '"'), ("''", '"')):
        text = text.replace(written, plain)
    for mark in (",", ".", ";", ":", "?", "!", ")"):
        text = text.replace(f" {mark}", mark)
    for doubled in (";", "?", "!"):  # the corpus writes these marks twice where a sentence or clause ends
        text = text.replace(f"{doubled}{doubled}", doubled).replace(f"{doubled} {doubled}", doubled)
    if text.endswith("..") and not text.endswith("..."):  # an abbreviation's and the sentence's full stop
        text = text[:-1]
    return text.replace("( ", "(")


def minilm_dir() -> Path:
    """Folder of the MiniLM sentence encoder in Hugging Face's form."""
    return fetch("minilm")


def smollm2_gguf() -> Path:
    """The GGUF file of SmolLM2-135M-Instruct."""
    return fetch("smollm2") / "SmolLM2-135M-Instruct.Q4_1.gguf"
