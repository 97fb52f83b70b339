"""The LightningDataModule of every language-model task: brown chunks, instruction sets, MetaMathQA, GLUE."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningDataModule
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from projects.nonzero_lora.data import brown, glue, llm_adapters, metamath
from projects.nonzero_lora.data.examples import Example, Question, TextTask
from projects.nonzero_lora.data.sources import source_of
from projects.nonzero_lora.data.tokens import (
    CachedChunks,
    EncodedExamples,
    PlainChunks,
    collate,
    collate_cached,
    encode,
)
from shared.errors import UserError
from shared.training.loader import ResumableLoader
from shared.training.seeding import generator


def load_task(config: Any) -> TextTask:
    """Training and held-out examples and test questions of `config.lm.data` below `config.data.root`."""
    lm, (source, part) = config.lm, source_of(config.lm.data)
    if not config.data.root:
        raise UserError(
            f"lm.data={lm.data} is read from your own copy: give its folder as data.root=/path/to/data. "
            "docs/real_data.md lists the layouts."
        )
    root, tests = Path(config.data.root).expanduser(), list(lm.tests)
    if source == "llm-adapters":
        return llm_adapters.load(root, part, tests)
    if source == "metamath":
        return metamath.load(root, tests, lm.train_examples)
    return glue.load(root, part, tests)


class LanguageModelData(LightningDataModule):
    """Training batches, `heldout` loss batches, and one loader of questions per test set.

    Args:
        config: the whole config; its `lm` block, `seed` (order of the training data) and `runtime` are read.
        train, heldout: data sets whose items `collate_fn` makes into a batch of model inputs and `labels`.
        tests: questions of every test set.
    """

    def __init__(
        self,
        config: Any,
        train: Dataset,
        heldout: Dataset,
        collate_fn: Any,
        tests: dict[str, list[Question]],
    ) -> None:
        super().__init__()
        self.lm, self.seed, self.workers = config.lm, config.seed, config.runtime.num_workers
        self.train, self.heldout, self.collate_fn, self.tests = train, heldout, collate_fn, tests
        if len(train) < 1:
            raise UserError(f"lm.data={config.lm.data} has no training example.")

    def train_dataloader(self) -> DataLoader:
        return ResumableLoader(
            self.train,
            min(self.lm.batch_size, len(self.train)),
            seed=self.seed,
            shuffle=True,
            drop_last=True,
            collate_fn=self.collate_fn,
            num_workers=self.workers,
        )

    def heldout_dataloader(self) -> DataLoader:
        """Batches of the held-out examples, in order."""
        return ResumableLoader(self.heldout, self.lm.test_batch_size, collate_fn=self.collate_fn)

    def test_dataloader(self) -> list[DataLoader]:
        loaders = [self.heldout_dataloader()] if len(self.heldout) else []
        for name, questions in self.tests.items():
            by_length = sorted(questions, key=lambda question: len(question.prompt))  # less padding
            as_batch = functools.partial(question_batch, name)
            loaders.append(ResumableLoader(by_length, self.lm.test_batch_size, collate_fn=as_batch))
        return loaders


def question_batch(test: str, questions: list[Question]) -> dict[str, Any]:
    """`test`, and lists of `prompts`, `answers`, `rules`."""
    return {
        "test": test,
        "prompts": [question.prompt for question in questions],
        "answers": [question.answer for question in questions],
        "rules": [question.rule for question in questions],
    }


def text_data(config: Any, tokenizer: Any, seq2seq: bool) -> LanguageModelData:
    """The data module of a task made of prompts and responses."""
    lm, task = config.lm, load_task(config)
    encode_one = functools.partial(
        encode, tokenizer=tokenizer, max_length=lm.max_length, loss_on=lm.loss_on, seq2seq=seq2seq
    )
    train = task.train[: lm.train_examples or None]
    heldout = sample(task.heldout, lm.heldout_examples)
    tests = {name: questions[: lm.test_examples or None] for name, questions in task.tests.items()}
    return LanguageModelData(
        config,
        EncodedExamples(train, encode_one),
        EncodedExamples(heldout, encode_one),
        functools.partial(collate, pad=tokenizer.pad_token_id),
        tests,
    )


def chunk_data(
    config: Any, hidden: tuple[Tensor, Tensor] | None, ids: tuple[Tensor, Tensor]
) -> LanguageModelData:
    """The data module of running text: training and held-out chunks, as ids or behind cached blocks."""
    if hidden is None:
        pad = functools.partial(collate, pad=0)  # chunks have one length: nothing is padded
        return LanguageModelData(config, PlainChunks(ids[0]), PlainChunks(ids[1]), pad, {})
    sets = [CachedChunks(*pair) for pair in zip(hidden, ids, strict=True)]
    return LanguageModelData(config, *sets, collate_cached, {})


def brown_chunks(config: Any, folder: Path, tokenizer: Any) -> tuple[Tensor, Tensor]:
    """Training (N, T) and held-out (M, T) chunks of token ids, the first that the config asks for."""
    lm = config.lm
    train, heldout = brown.chunks(folder, source_of(lm.data)[1], tokenizer, lm.max_length)
    return train[: lm.train_examples or None], heldout[: lm.heldout_examples]


def sample(examples: list[Example], count: int) -> list[Example]:
    """`count` of the examples, the same for every run, from all over the list."""
    import torch

    order = torch.randperm(len(examples), generator=generator("heldout"))[:count].tolist()
    return [examples[index] for index in sorted(order)]
