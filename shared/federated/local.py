"""Local training: a light loop that honours the contract of `LightningModule` without a `Trainer`.

Honoured: `training_step` (automatic and manual optimisation), every form of `configure_optimizers` with its
schedulers (step, epoch, frequency, plateau), closures, gradient clipping, accumulation, `bf16-mixed` and
`16-mixed`, `log`, `optimizers()`, `manual_backward`, `clip_gradients`, `toggle_optimizer`, `lr_schedulers()`,
batch transfer hooks and the training hooks in `contract.HOOKS`. Not offered: `dataloader_iter`, sharded or
compiled strategies, true half or double precision by flag (make the module half or double), validation inside
the local fit, callbacks.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor

PRECISIONS = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}


@dataclass(frozen=True)
class LocalTraining:
    """How a client trains in one round; the keys are the Trainer's own.

    `precision` None takes what surrounds it: the precision of the Trainer that drives the rounds.
    `keep_optimizer` keeps optimiser and scheduler state in the client's state instead of starting afresh.
    """

    max_epochs: int = 1
    max_steps: int = -1
    gradient_clip_val: float | None = None
    gradient_clip_algorithm: str = "norm"
    accumulate_grad_batches: int = 1
    precision: str | None = None
    keep_optimizer: bool = False


@dataclass
class Report:
    """What local training did: optimiser steps, samples, learning rate (last and summed), means of the log;
    momentum and class of the (first) optimiser."""

    steps: int = 0
    samples: int = 0
    lr: float = 0.0
    lr_sum: float = 0.0
    momentum: float = 0.0
    optimizer: str = ""
    metrics: dict[str, float] = field(default_factory=dict)


@dataclass
class Job:
    """What `train` was asked to do.

    Attributes:
        model: trained in place.   loader: re-iterable, with a length.
        state: the client's; holds optimiser state when `settings.keep_optimizer`.
        extra_loss: (model, batch, loss) -> what is added to the loss (automatic optimisation only).
        gradient: (gradients, parameters) by name -> gradients that the step uses; after unscaling, before
            clipping.
        lr_scale: factor on the learning rates of `configure_optimizers`.
    """

    model: LightningModule
    loader: Any
    settings: LocalTraining
    state: dict[str, Any]
    extra_loss: Callable[[LightningModule, Any, Tensor], Tensor] | None = None
    gradient: Callable[[dict[str, Tensor], dict[str, Tensor]], dict[str, Tensor]] | None = None
    lr_scale: float = 1.0


def train(model: LightningModule, loader: Any, settings: LocalTraining, **details: Any) -> Report:
    """Train `model` in place; the arguments are those of `Job`."""
    return _trainer.get()(Job(model, loader, settings, **details))


def train_alone(job: Job) -> Report:
    """One client by itself: the reference."""
    from shared.federated.local_run import Run

    return Run(job).run()


_trainer: ContextVar[Callable[[Job], Report]] = ContextVar("trainer", default=train_alone)


@contextlib.contextmanager
def trained_by(trainer: Callable[[Job], Report]) -> Iterator[None]:
    """Inside, `train` gives its jobs to `trainer`: how an engine gets the jobs of many clients together."""
    token = _trainer.set(trainer)
    try:
        yield
    finally:
        _trainer.reset(token)
