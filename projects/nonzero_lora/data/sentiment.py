"""Movie-review sentences with human scores, two classes by the sign of the score, a fixed split."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningDataModule
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from projects.nonzero_lora.data.features import Batch, Features, cached, compute
from shared.data.catalogue import fetch
from shared.errors import UserError
from shared.text.minilm import load_encoder, load_tokenizer
from shared.training.loader import ResumableLoader
from shared.training.seeding import generator

FILE = "movieReviewSnippets_GroundTruth.txt"
SPLIT_SEED = 0
TEST_BATCH = 64
GROUP = 4  # training batches whose sentences are sorted by length together: less padding, still shuffled


def read_scores(path: Path) -> list[tuple[float, str]]:
    """Mean human score (-4 .. 4) and text of every line `id <tab> score <tab> text`.

    Raises:
        UserError: the file is absent or a line has another form.
    """
    if not path.is_file():
        raise UserError(
            f"expected the movie sentences at {path}. Fetch them with: "
            "python scripts/download_data.py movie-sentences"
        )
    rows = []
    for number, line in enumerate(path.read_text("utf-8", "replace").splitlines(), 1):
        try:
            _, score, text = line.split("\t", 2)
            rows.append((float(score), text))
        except ValueError:
            raise UserError(
                f"{path}, line {number}: expected id, score and text between tabs, found {line[:60]!r}."
            ) from None
    return rows


def select(
    rows: Sequence[tuple[float, str]], tokenizer: Any, min_score: float, max_tokens: int
) -> tuple[list[list[int]], list[int]]:
    """Word-piece ids and labels (1 = positive) of the clear and short sentences.

    Args:
        min_score: a sentence whose |score| is at most this is left out as neutral.
        max_tokens: longer sentences, counted in word pieces with both end marks, are left out whole.
    """
    clear = [(score, text) for score, text in rows if abs(score) > min_score]
    ids = tokenizer([text for _, text in clear])["input_ids"] if clear else []
    kept = [
        (piece, int(score > 0))
        for piece, (score, _) in zip(ids, clear, strict=True)
        if len(piece) <= max_tokens
    ]
    return [piece for piece, _ in kept], [label for _, label in kept]


def plan_batches(lengths: Tensor, batch_size: int, steps: int, stream: torch.Generator) -> list[Tensor]:
    """Indices of `steps` training batches, similar lengths together.

    Each epoch is a random order, cut into groups of `GROUP` batches; a group is sorted by length and cut into
    batches, which come in random order. Sentences that fill no batch are skipped.

    Args:
        lengths: (N) of the training sentences.
    """
    if len(lengths) < batch_size:
        raise UserError(
            f"expected at least a batch of {batch_size} training sentences, found {len(lengths)}."
        )
    plan: list[Tensor] = []
    while len(plan) < steps:
        order = torch.randperm(len(lengths), generator=stream)
        for group in order[: len(order) // batch_size * batch_size].split(GROUP * batch_size):
            batches = group[lengths[group].argsort(stable=True)].split(batch_size)
            plan += [batches[i] for i in torch.randperm(len(batches), generator=stream).tolist()]
    return plan[:steps]


class PlannedBatches(Dataset[Batch]):
    """Item k is the k-th batch of a plan, ready made."""

    def __init__(self, features: Features, plan: Sequence[Tensor]) -> None:
        self.features, self.plan = features, plan

    def __len__(self) -> int:
        return len(self.plan)

    def __getitem__(self, number: int) -> Batch:
        return self.features.batch(self.plan[number])


class SentimentData(LightningDataModule):
    """Cached features of all sentences and their fixed split; one epoch is the whole planned training.

    Args:
        config: a `SentimentConfig`.
        seed: of the training order; the split is the same for every seed.
    """

    def __init__(self, config: Any, seed: int) -> None:
        super().__init__()
        self.config, self.seed = config, seed
        self.features: Features | None = None

    def setup(self, stage: str | None = None) -> None:
        if self.features is not None:
            return
        c = self.config
        self.features = load_features(c.blocks, c.min_score, c.max_tokens)
        count = len(self.features.labels)
        if not c.heldout_sentences <= c.test_sentences < count:
            raise UserError(
                f"sentiment: expected heldout_sentences <= test_sentences < {count} usable sentences; found "
                f"{c.heldout_sentences} and {c.test_sentences}."
            )
        order = torch.randperm(count, generator=torch.Generator().manual_seed(SPLIT_SEED))
        self.test, self.train = order[: c.test_sentences], order[c.test_sentences :]
        self.heldout = self._by_length(self.test[: c.heldout_sentences])

    def train_dataloader(self) -> DataLoader:
        stream = generator("sentiment", self.seed)
        plan = plan_batches(
            self.features.lengths[self.train], self.config.batch_size, self.config.steps, stream
        )
        return _loader(PlannedBatches(self.features, [self.train[batch] for batch in plan]))

    def test_dataloader(self) -> DataLoader:
        return _loader(self._by_length(self.test))

    def _by_length(self, indices: Tensor) -> PlannedBatches:
        order = indices[self.features.lengths[indices].argsort(stable=True)]
        return PlannedBatches(self.features, order.split(TEST_BATCH))


@functools.lru_cache(maxsize=1)
def load_features(blocks: int, min_score: float, max_tokens: int) -> Features:
    """All usable sentences behind MiniLM's lower blocks; computed by the first run, read by the others."""
    folder, text = fetch("minilm"), fetch("movie-sentences") / FILE

    def make() -> Features:
        encoder = load_encoder(folder)
        sentences, labels = select(read_scores(text), load_tokenizer(folder), min_score, max_tokens)
        if not sentences:
            raise UserError(f"no sentence has |score| > {min_score} and at most {max_tokens} word pieces.")
        return compute(encoder, sentences, labels, len(encoder.encoder.layer) - blocks)

    files = (folder / "model.safetensors", folder / "tokenizer.json", text)
    return cached((*files, blocks, min_score, max_tokens), make)


def _loader(batches: PlannedBatches) -> DataLoader:
    return ResumableLoader(batches, 1, collate_fn=_only)


def _only(items: list[Batch]) -> Batch:
    return items[0]
