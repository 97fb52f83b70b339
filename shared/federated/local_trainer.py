"""The part of Lightning's `Trainer` that modules touch while they train, for one client at a time.

A full `Trainer.fit` a client and round would cost more than the training of a small model, and refuses to run
twice.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.core.optimizer import LightningOptimizer
from torch import Tensor
from torch.optim import Optimizer

from shared.errors import UserError


class NotOffered(UserError, AttributeError):
    """Local training has no such thing; `hasattr` on it is False."""


class LocalTrainer:
    """`module.trainer` during local training.

    Offered: the attributes set here. Anything else (callbacks, loggers, data modules, checkpoints, validation
    inside the local fit) raises `NotOffered`; a method that needs it overrides `FederatedClient.fit`.
    """

    def __init__(self, model: LightningModule, settings: Any, num_batches: int) -> None:
        self.lightning_module = self.model = model
        self.strategy = LocalStrategy(self)
        self.precision_plugin = self.strategy
        self.max_epochs, self.max_steps = settings.max_epochs, settings.max_steps
        self.accumulate_grad_batches = settings.accumulate_grad_batches
        automatic = model.automatic_optimization
        self.gradient_clip_val = settings.gradient_clip_val if automatic else None
        self.gradient_clip_algorithm = settings.gradient_clip_algorithm if automatic else None
        self.num_training_batches = num_batches
        self.current_epoch = self.global_step = 0
        self.is_last_batch = False
        self.optimizers: list[Optimizer] = []
        self.lr_scheduler_configs: list[Any] = []
        self.callback_metrics: dict[str, Any] = {}
        self.logger, self.loggers, self.callbacks, self.progress_bar_callback = None, [], [], None
        self.training, self.validating, self.testing, self.sanity_checking = True, False, False, False
        self.world_size, self.global_rank, self.local_rank, self.is_global_zero = 1, 0, 0, True
        self.should_stop = False

    @property
    def estimated_stepping_batches(self) -> int:
        steps = math.ceil(self.num_training_batches / self.accumulate_grad_batches) * self.max_epochs
        return steps if self.max_steps < 0 else min(steps, self.max_steps)

    @property
    def logged_metrics(self) -> dict[str, Any]:
        return self.callback_metrics

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        offered = ", ".join(sorted(key for key in vars(self) if key[0] != "_"))
        raise NotOffered(
            f"{type(self.__dict__.get('model')).__name__} uses self.trainer.{name}, which local training of "
            f"a client does not offer. It offers: {offered}. Override FederatedClient.fit for a module that "
            "needs more."
        )


class LocalStrategy:
    """Backward, step and clipping on one device, with the loop's hook between gradients and step."""

    def __init__(self, trainer: LocalTrainer) -> None:
        self._trainer = trainer
        self.scaler: torch.amp.GradScaler | None = None  # set for float16
        self.on_gradients: Callable[[Optimizer], None] = lambda optimizer: None
        self._lightning_optimizers: list[LightningOptimizer] = []

    @property
    def lightning_module(self) -> LightningModule:
        return self._trainer.model

    def use(self, optimizers: list[Optimizer]) -> None:
        self._lightning_optimizers = [LightningOptimizer._to_lightning_optimizer(o, self) for o in optimizers]

    def backward(self, loss: Tensor, optimizer: Optimizer | None, *args: Any, **kwargs: Any) -> None:
        self.lightning_module.backward(self.scaler.scale(loss) if self.scaler else loss, *args, **kwargs)

    def optimizer_step(self, optimizer: Optimizer, closure: Callable[[], Any], **kwargs: Any) -> Any:
        """Closure (forward and backward), hook, update; counted in `global_step`."""

        def with_hook() -> Any:
            result = closure()
            self.on_gradients(optimizer)
            return result

        if self.scaler is None:
            result = optimizer.step(with_hook, **kwargs)
        else:
            result = closure()
            self.scaler.unscale_(optimizer)
            self.on_gradients(optimizer)
            self.scaler.step(optimizer)
            self.scaler.update()
        self._trainer.global_step += 1
        return result

    def clip_gradients(
        self, optimizer: Optimizer, clip_val: float | None = None, gradient_clip_algorithm: Any = "norm"
    ) -> None:
        if not clip_val:
            return
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        if str(getattr(gradient_clip_algorithm, "value", gradient_clip_algorithm)) == "value":
            torch.nn.utils.clip_grad_value_(parameters, clip_val)
        else:
            torch.nn.utils.clip_grad_norm_(parameters, clip_val)

    def reduce(self, tensor: Any, *args: Any, **kwargs: Any) -> Any:
        return tensor

    def barrier(self, *args: Any) -> None:
        """One process: nobody to wait for."""
