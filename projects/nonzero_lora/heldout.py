"""The loss on fixed held-out data, followed over the first training steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from torch import nn

from shared.training.logging import record


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Evaluation mode inside; then every part has its own mode back."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training


class HeldOutLoss(Callback):
    """Record `measure(module)`, without dropout, after the given optimiser steps.

    Logs `heldout/step_K` and, against step 0, `heldout/gain_K` (a decrease is positive), both in nats.

    Args:
        measure: the loss of a module on the held-out data.
        steps: numbers of optimiser steps; 0 is before training.
    """

    def __init__(self, measure: Callable[[LightningModule], float], steps: Sequence[int]) -> None:
        self.measure, self.steps = measure, frozenset(steps)
        self.start: float | None = None
        self.last = 0  # the step recorded last: with accumulated gradients several batches share one

    def on_train_start(self, trainer: Trainer, module: LightningModule) -> None:
        if trainer.global_step == 0 and 0 in self.steps:
            self.start = self._measure(module)
            record(module, {"heldout/step_0": self.start, "heldout/loss": self.start})

    def on_train_batch_end(self, trainer: Trainer, module: LightningModule, *batch: Any) -> None:
        step = trainer.global_step
        if step == self.last or step not in self.steps:
            return
        self.last, loss = step, self._measure(module)
        record(module, {f"heldout/step_{step}": loss, "heldout/loss": loss})
        if self.start is not None:
            record(module, {f"heldout/gain_{step}": self.start - loss})

    def state_dict(self) -> dict[str, Any]:
        return {"start": self.start, "last": self.last}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.start, self.last = state["start"], state["last"]

    def _measure(self, module: LightningModule) -> float:
        with evaluating(module):
            return self.measure(module)
