"""Texts as padded token batches, with labels where the loss counts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from projects.nonzero_lora.data.examples import Example
from shared.errors import UserError, suggest

IGNORED = -100  # label of positions that the loss leaves out
LOSS_ON = ("response", "all")

Row = tuple[list[int], list[int]]  # token ids and labels


def encode(example: Example, tokenizer: Any, max_length: int, loss_on: str, seq2seq: bool) -> Row:
    """Token ids and labels of one example.

    A decoder reads prompt, response and end mark in one; the prompt is encoded on its own, exactly as it is
    when an answer is generated. An encoder-decoder reads the prompt and writes the response. Both are cut at
    `max_length` tokens.
    """
    if loss_on not in LOSS_ON:
        raise UserError(
            f"lm.loss_on takes {' or '.join(LOSS_ON)}; found '{loss_on}'.{suggest(loss_on, LOSS_ON)}"
        )
    prompt = tokenizer(example.prompt)["input_ids"]
    response = tokenizer(example.response, add_special_tokens=False)["input_ids"] + [tokenizer.eos_token_id]
    if seq2seq:
        return prompt[:max_length], response[:max_length]
    ids = (prompt + response)[:max_length]
    masked = min(len(prompt), len(ids)) if loss_on == "response" else 0
    return ids, [IGNORED] * masked + ids[masked:]


def collate(rows: Sequence[Row], pad: int) -> dict[str, Tensor]:
    """`input_ids`, `attention_mask` (B, T) and `labels` (B, S), padded on the right."""
    ids = _pad([row[0] for row in rows], pad)
    mask = _pad([[1] * len(row[0]) for row in rows], 0)
    return {"input_ids": ids, "attention_mask": mask, "labels": _pad([row[1] for row in rows], IGNORED)}


class EncodedExamples(Dataset[Row]):
    """Examples encoded when they are asked for: a set of 170,000 needs no waiting."""

    def __init__(self, examples: Sequence[Example], encode_one: Callable[[Example], Row]) -> None:
        self.examples, self.encode_one = examples, encode_one

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, index: int) -> Row:
        return self.encode_one(self.examples[index])


class CachedChunks(Dataset[tuple[Tensor, Tensor]]):
    """Chunks of equal length: what enters the upper blocks (N, T, D), and the token ids (N, T)."""

    def __init__(self, hidden: Tensor, ids: Tensor) -> None:
        self.hidden, self.ids = hidden, ids

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.hidden[index], self.ids[index]


class PlainChunks(Dataset[Row]):
    """Chunks of equal length as token ids (N, T), all of them labels."""

    def __init__(self, ids: Tensor) -> None:
        self.ids = ids

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> Row:
        return self.ids[index].tolist(), self.ids[index].tolist()


def collate_cached(rows: Sequence[tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
    """`inputs_embeds` (B, T, D) and `labels` (B, T)."""
    return {
        "inputs_embeds": torch.stack([row[0] for row in rows]),
        "labels": torch.stack([row[1] for row in rows]),
    }


def _pad(rows: Sequence[Sequence[int]], value: int) -> Tensor:
    longest = max(map(len, rows))
    return torch.tensor([[*row, *[value] * (longest - len(row))] for row in rows])
