"""One client's place in a batched training: its batches, its random stream, its bookkeeping."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import TreeSpec, tree_flatten

from shared.federated import contract
from shared.federated.data import Batches
from shared.federated.engines.vectorized.randomness import Randomness
from shared.federated.engines.vectorized.refusal import Refusal
from shared.federated.local import Job
from shared.federated.local_run import Run


@dataclass
class Batch:
    """A client's next batch: its leaves and how they nest, or tensors and which of their rows.

    Batches with equal `kind` can be stacked.
    """

    kind: Any
    leaves: list[Any]
    spec: TreeSpec | None
    rows: Tensor | None


class Lane:
    """A job on its way through its batches, in step with `shared.federated.local_run.Run`."""

    def __init__(self, job: Job, randomness: Randomness) -> None:
        if type(job.loader) is not Batches:
            raise Refusal(f"the batches come from a {type(job.loader).__name__}")
        self.job, self._stream = job, randomness
        self.randomness = replace(randomness)
        self.run = Run(job)
        self.generator = randomness.generator()
        shuffle = job.loader.shuffle
        self._before = None if shuffle is None else shuffle.get_state()
        self._batches: Iterator[Batch] | None = None
        self.batch: Batch | None = None
        self.index, self.finished = -1, False

    def load(self) -> None:
        """Have the next batch in `batch`, or be finished."""
        trainer = self.run.trainer
        while self.batch is None and not self.finished:
            if self._batches is None:
                self.run.recorder.start_epoch()
                self._batches, self.index = self._read(), -1
            self.batch = next(self._batches, None)
            if self.batch is not None:
                self.index += 1
                trainer.is_last_batch = self.index + 1 == trainer.num_training_batches
                return
            self._end_epoch()

    def stepped(self, size: int, logged: Sequence[tuple[str, Any, dict]]) -> None:
        """Note what a training step did to this client."""
        run, self.batch = self.run, None
        run.note_lr()
        run.trainer.global_step += 1
        run.report.samples += size
        for name, value, settings in logged:
            run.recorder.log(name, value, **settings)
        if run.trainer.lr_scheduler_configs:
            run.schedule("step", self.index)
        if run.done():
            self._end_epoch()
            self.finished = True

    def give_back(self) -> None:
        """The job as it was before: another may train it."""
        if self._before is not None:
            self.job.loader.shuffle.set_state(self._before)

    def end(self) -> None:
        """The client's own code goes on with its stream where training left it."""
        self.randomness.take_over(self.generator)
        vars(self._stream).update(vars(self.randomness))

    def _end_epoch(self) -> None:
        run = self.run
        run.schedule("epoch", run.trainer.current_epoch)
        self._batches = None
        if run.done() or run.trainer.current_epoch + 1 >= run.settings.max_epochs:
            self.finished = True
        else:
            run.trainer.current_epoch += 1

    def _read(self) -> Iterator[Batch]:
        loader = self.job.loader
        if loader.source is not None:
            tensors = list(loader.source[0])
            for rows in loader.rows():
                yield Batch(len(rows), tensors, None, rows)
            return
        batches = iter(loader)
        while True:
            with self._drawing():
                batch = next(batches, None)
            if batch is None:
                return
            leaves, spec = tree_flatten(batch)
            yield Batch((str(spec), *map(_kind, leaves)), leaves, spec, None)

    @contextlib.contextmanager
    def _drawing(self) -> Iterator[None]:
        """What reads samples may draw from the client's streams."""
        outer = Randomness.capture(self.randomness.device)
        self.randomness.take_over(self.generator)
        self.randomness.restore()
        try:
            yield
        finally:
            self.randomness = Randomness.capture(self.randomness.device)
            self.generator = self.randomness.generator()
            outer.restore()


def _kind(leaf: Any) -> Any:
    """Equal for leaves that can be stacked, or are the same for all clients."""
    if isinstance(leaf, Tensor):
        return leaf.shape, leaf.dtype
    if isinstance(leaf, np.ndarray) and not leaf.dtype.hasobject:
        return leaf.shape, leaf.dtype, leaf.tobytes()
    return (type(leaf), leaf) if isinstance(leaf, (type(None), bool, int, float, str, bytes)) else _Only(leaf)


@dataclass(eq=False)
class _Only:
    """Equal to itself alone, as long as it is kept."""

    leaf: Any


def stack(batches: Sequence[Batch]) -> tuple[list[Any], TreeSpec | None, int]:
    """Leaves of K batches of one kind, tensors as (K, B, ...); how they nest (None: a flat list); B."""
    first = batches[0]
    if first.rows is None:
        leaves = [
            torch.stack(parts) if isinstance(parts[0], Tensor) else parts[0]
            for parts in zip(*(batch.leaves for batch in batches), strict=True)
        ]
        return leaves, first.spec, contract.batch_size(first.leaves)
    if all(b.leaves[i] is leaf for b in batches for i, leaf in enumerate(first.leaves)):
        rows, shape = torch.cat([b.rows for b in batches]), (len(batches), len(first.rows))
        leaves = [leaf.index_select(0, rows).unflatten(0, shape) for leaf in first.leaves]
    else:
        leaves = [
            torch.stack([leaf.index_select(0, b.rows) for leaf, b in zip(parts, batches, strict=True)])
            for parts in zip(*(b.leaves for b in batches), strict=True)
        ]
    return leaves, None, len(first.rows)
