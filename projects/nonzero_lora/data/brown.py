"""One genre of the Brown corpus as running text, cut into chunks of equal length."""

from __future__ import annotations

import re
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from shared.errors import UserError, suggest

HELDOUT_EVERY = 6  # every sixth file is held out, so that no text is on both sides


def genres(folder: Path) -> dict[str, list[Path]]:
    """Files of every genre, as `cats.txt` lists them (`<file> <genre>` a line).

    Raises:
        UserError: the corpus is not there.
    """
    listing = folder / "cats.txt"
    if not listing.is_file():
        raise UserError(
            f"expected the Brown corpus in {folder}. Fetch it with: python scripts/download_data.py brown"
        )
    found: dict[str, list[Path]] = {}
    for line in listing.read_text("utf-8").splitlines():
        if line.strip():
            name, genre = line.split()[:2]
            found.setdefault(genre, []).append(folder / name)
    return found


def plain_text(tagged: str) -> str:
    """`word/tag` text as it is printed: tags gone, quotes and punctuation attached, one paragraph a line."""
    lines = []
    for line in tagged.splitlines():
        words = [token.rpartition("/")[0] for token in line.split()]
        text = " ".join(words).replace("``", '"<').replace("''", '>"')
        text = re.sub(r"([;?!]) (?=\1)", "", text)  # the corpus doubles these
        text = re.sub(r" (?=[,.;:?!)\]'])", "", text)
        text = re.sub(r"(?<=[(\[]) ", "", text)
        text = text.replace('"< ', '"').replace(' >"', '"').replace('"<', '"').replace('>"', '"')
        if text:
            lines.append(text)
    return "\n".join(lines)


def chunks(folder: Path, genre: str, tokenizer: Any, length: int) -> tuple[Tensor, Tensor]:
    """Token ids of a genre: training (N, length) and held-out (M, length) chunks, from different files.

    Chunks come from the files in turn, so that a few of them already cover many files.
    """
    by_genre = genres(folder)
    if genre not in by_genre:
        raise UserError(
            f"lm.data: brown has the genres {', '.join(sorted(by_genre))}; found '{genre}'."
            + suggest(genre, by_genre)
        )
    sides: tuple[list[list[list[int]]], list[list[list[int]]]] = ([], [])
    for number, path in enumerate(by_genre[genre]):
        ids = tokenizer(plain_text(path.read_text("utf-8")), add_special_tokens=False)["input_ids"]
        pieces = [ids[start : start + length] for start in range(0, len(ids) - length + 1, length)]
        sides[number % HELDOUT_EVERY == 0].append(pieces)
    train, heldout = (
        torch.tensor([piece for piece in chain(*zip_longest(*side)) if piece is not None], dtype=torch.long)
        for side in sides
    )
    if not len(train) or not len(heldout):
        raise UserError(f"lm.max_length: no chunk of {length} tokens fits the files of '{genre}'; use less.")
    return train, heldout
