"""The loop of local training: what a `Trainer` does between `on_train_start` and `on_train_end`."""

from __future__ import annotations

import contextlib
import copy
from functools import partial
from typing import Any

import torch
from lightning.fabric.utilities.apply_func import move_data_to_device
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from lightning.pytorch.utilities.model_helpers import is_overridden
from lightning.pytorch.utilities.signature_utils import is_param_in_hook_signature
from torch import Tensor
from torch.optim import Optimizer

from shared.errors import UserError
from shared.federated import contract
from shared.federated.local import PRECISIONS, Job, Report
from shared.federated.local_trainer import LocalTrainer
from shared.federated.recorder import Recorder


class Run:
    """One client's local training, from `prepare` over its epochs to `finish`."""

    def __init__(self, job: Job) -> None:
        self.model, self.loader, self.settings, self.state = job.model, job.loader, job.settings, job.state
        self.extra_loss, self.gradient, self.lr_scale = job.extra_loss, job.gradient, job.lr_scale
        model = self.model
        if self.extra_loss is not None and not model.automatic_optimization:
            raise UserError(
                f"{type(model).__name__} uses manual optimisation: no loss term can be added from outside. "
                "Use the `gradient` hook, or override FederatedClient.fit."
            )
        if is_param_in_hook_signature(model.training_step, "dataloader_iter", explicit=True):
            raise UserError(
                f"{type(model).__name__}.training_step takes dataloader_iter; take a batch instead."
            )
        self.takes_index = is_param_in_hook_signature(model.training_step, "batch_idx", min_args=2)
        self.trainer = LocalTrainer(model, self.settings, len(self.loader))
        self.recorder = Recorder()
        self.report = Report()
        self.hooks = {name for name in contract.HOOKS if is_overridden(name, model)}
        self.custom_step = is_overridden("optimizer_step", model)
        self.custom_clip = is_overridden("configure_gradient_clipping", model)
        self.custom_zero = is_overridden("optimizer_zero_grad", model)
        self.device = next((p.device for p in model.parameters()), torch.device("cpu"))

    def run(self) -> Report:
        self.prepare()
        trainer = self.trainer
        with self._precision() as self.mixed, torch.enable_grad():
            self._hook("on_train_start")
            for epoch in range(self.settings.max_epochs):
                trainer.current_epoch = epoch
                self._epoch()
                if self.done():
                    break
            self._hook("on_train_end")
        return self.finish()

    def prepare(self) -> None:
        """Connect the module; make its optimisers, at this round's rates, with the state that was kept."""
        model, trainer = self.model, self.trainer
        model.trainer = trainer
        self.recorder.attach(model)
        try:
            trainer.optimizers, trainer.lr_scheduler_configs = contract.optimizers(model)
        except MisconfigurationException as error:
            raise UserError(f"{type(model).__name__}.configure_optimizers: {error}") from error
        trainer.strategy.use(trainer.optimizers)
        trainer.strategy.on_gradients = self._on_gradients
        self.named = [self._named(optimizer) for optimizer in trainer.optimizers] if self.gradient else []
        self._scale_rates()
        self._restore()

    def finish(self) -> Report:
        """Keep the optimisers' state if asked to; say what was done."""
        self._keep()
        trainer = self.trainer
        group = trainer.optimizers[0].param_groups[0] if trainer.optimizers else {}
        self.report.momentum = float(group.get("momentum", 0.0))
        self.report.optimizer = type(trainer.optimizers[0]).__name__ if trainer.optimizers else ""
        self.report.steps = trainer.global_step
        self.report.metrics = self.recorder.means()
        return self.report

    def _epoch(self) -> None:
        self.recorder.start_epoch()
        self._hook("on_train_epoch_start")
        batches = len(self.loader)
        for index, batch in enumerate(self.loader):
            self.trainer.is_last_batch = index + 1 == batches
            batch = self._move(batch)
            if self._hook("on_train_batch_start", batch, index) == -1:
                break
            try:
                outputs = self._step(batch, index)
            except ValueError as error:
                raise contract.explained(error) from error
            if self.mixed:
                torch.clear_autocast_cache()  # the weights changed under a surrounding autocast
            self.report.samples += contract.batch_size(batch)
            if "on_train_batch_end" in self.hooks:
                self.model.on_train_batch_end(self._as_lightning_passes(outputs), batch, index)
            if self.model.automatic_optimization and self._steps_now(index):
                self.schedule("step", index)
            if self.done():
                break
        self._hook("on_train_epoch_end")
        if self.model.automatic_optimization:
            self.schedule("epoch", self.trainer.current_epoch)

    def _step(self, batch: Any, index: int) -> Any:
        if not self.model.automatic_optimization:
            self.note_lr()
            return self._training_step(batch, index)
        closure = partial(self._closure, batch, index)
        if not self._steps_now(index):
            closure()
            return self.outputs
        self.note_lr()
        if self.custom_step:
            wrapped = self.trainer.strategy._lightning_optimizers[0]
            self.model.optimizer_step(self.trainer.current_epoch, index, wrapped, closure)
        else:
            self.trainer.strategy.optimizer_step(self.trainer.optimizers[0], closure)
        return self.outputs

    def _closure(self, batch: Any, index: int) -> Any:
        outputs = self.outputs = self._training_step(batch, index)
        loss = outputs["loss"] if isinstance(outputs, dict) else outputs
        if index % self.settings.accumulate_grad_batches == 0:
            self._zero_grad(index)
        if loss is None:
            return None  # as in Lightning: nothing to learn from this batch
        if self.extra_loss is not None:
            loss = loss + self.extra_loss(self.model, batch, loss)
        if self.settings.accumulate_grad_batches > 1:
            loss = loss / self.settings.accumulate_grad_batches
        self._hook("on_before_backward", loss)
        self.trainer.strategy.backward(loss, None)
        self._hook("on_after_backward")
        return loss

    def _training_step(self, batch: Any, index: int) -> Any:
        return self.model.training_step(batch, index) if self.takes_index else self.model.training_step(batch)

    def _zero_grad(self, index: int) -> None:
        optimizer = self.trainer.optimizers[0]
        self._hook("on_before_zero_grad", optimizer)
        if self.custom_zero:
            self.model.optimizer_zero_grad(self.trainer.current_epoch, index, optimizer)
        else:
            optimizer.zero_grad()

    def _on_gradients(self, optimizer: Optimizer) -> None:
        if self.gradient is not None:
            params = self.named[self.trainer.optimizers.index(optimizer)]
            grads = {name: p.grad for name, p in params.items() if p.grad is not None}
            with torch.no_grad():
                changed = self.gradient(grads, {name: params[name].detach() for name in grads})
            for name, grad in changed.items():
                params[name].grad = grad
        self._hook("on_before_optimizer_step", optimizer)
        settings = self.settings
        if self.custom_clip and self.model.automatic_optimization:
            self.model.configure_gradient_clipping(
                optimizer, settings.gradient_clip_val, settings.gradient_clip_algorithm
            )
        elif settings.gradient_clip_val and self.model.automatic_optimization:
            self.trainer.strategy.clip_gradients(
                optimizer, settings.gradient_clip_val, settings.gradient_clip_algorithm
            )

    def _as_lightning_passes(self, outputs: Any) -> dict[str, Any]:
        found = {"loss": outputs} if isinstance(outputs, Tensor) else dict(outputs or {})
        if "loss" in found:
            shared = self.settings.accumulate_grad_batches if self.model.automatic_optimization else 1
            found["loss"] = found["loss"].detach() / shared
        return found

    def _steps_now(self, index: int) -> bool:
        return (index + 1) % self.settings.accumulate_grad_batches == 0 or self.trainer.is_last_batch

    def done(self) -> bool:
        reached = 0 <= self.settings.max_steps <= self.trainer.global_step
        return reached or self.trainer.should_stop

    def schedule(self, interval: str, index: int) -> None:
        for config in self.trainer.lr_scheduler_configs:
            if config.interval != interval or (index + 1) % config.frequency:
                continue
            value = None
            if config.reduce_on_plateau:
                self.trainer.callback_metrics = self.recorder.watched()
                if config.monitor not in self.trainer.callback_metrics:
                    raise UserError(
                        f"a scheduler watches '{config.monitor}', which training_step does not log; it "
                        f"logs {', '.join(self.trainer.callback_metrics) or 'nothing'}."
                    )
                value = self.trainer.callback_metrics[config.monitor]
            self.model.lr_scheduler_step(config.scheduler, value)

    def _move(self, batch: Any) -> Any:
        if "on_before_batch_transfer" in self.hooks:
            batch = self.model.on_before_batch_transfer(batch, 0)
        if "transfer_batch_to_device" in self.hooks:
            batch = self.model.transfer_batch_to_device(batch, self.device, 0)
        elif self.device.type != "cpu":
            batch = move_data_to_device(batch, self.device)
        if "on_after_batch_transfer" in self.hooks:
            batch = self.model.on_after_batch_transfer(batch, 0)
        return batch

    def _hook(self, name: str, *args: Any) -> Any:
        return getattr(self.model, name)(*args) if name in self.hooks else None

    def note_lr(self) -> None:
        if self.trainer.optimizers:
            self.report.lr = float(self.trainer.optimizers[0].param_groups[0]["lr"])
            self.report.lr_sum += self.report.lr

    def _named(self, optimizer: Optimizer) -> dict[str, Tensor]:
        held = {id(p) for group in optimizer.param_groups for p in group["params"]}
        return {name: p for name, p in self.model.named_parameters() if id(p) in held}

    @contextlib.contextmanager
    def _precision(self):
        kind, precision = self.device.type, self.settings.precision
        if precision not in (None, "32-true", *PRECISIONS):
            raise UserError(
                f"local precision takes 32-true, {', '.join(PRECISIONS)} or null; found {precision!r}."
            )
        context: Any = contextlib.nullcontext()
        if precision is not None:
            context = torch.autocast(kind, PRECISIONS.get(precision), enabled=precision in PRECISIONS)
        with context:
            mixed = torch.is_autocast_enabled(kind)
            if mixed and torch.get_autocast_dtype(kind) == torch.float16:
                self.trainer.strategy.scaler = torch.amp.GradScaler(kind)
            yield mixed

    def _scale_rates(self) -> None:
        """The round's factor on every learning rate, before any schedule of the client's own acts."""
        if self.lr_scale == 1.0:
            return
        for optimizer in self.trainer.optimizers:
            for group in optimizer.param_groups:
                for key in ("lr", "initial_lr"):
                    if key in group:
                        group[key] *= self.lr_scale
        for config in self.trainer.lr_scheduler_configs:
            if hasattr(config.scheduler, "base_lrs"):
                config.scheduler.base_lrs = [rate * self.lr_scale for rate in config.scheduler.base_lrs]

    def _restore(self) -> None:
        kept = self.state.get("optimizer") if self.settings.keep_optimizer else None
        if kept:
            kept = copy.deepcopy(kept)  # the optimiser goes on in place
            for optimizer, saved in zip(self.trainer.optimizers, kept["optimizers"], strict=True):
                optimizer.load_state_dict(saved)
            for config, saved in zip(self.trainer.lr_scheduler_configs, kept["schedulers"], strict=True):
                config.scheduler.load_state_dict(saved)

    def _keep(self) -> None:
        if self.settings.keep_optimizer:
            self.state["optimizer"] = {
                "optimizers": [optimizer.state_dict() for optimizer in self.trainer.optimizers],
                "schedulers": [
                    contract.plain(c.scheduler.state_dict()) for c in self.trainer.lr_scheduler_configs
                ],
            }
