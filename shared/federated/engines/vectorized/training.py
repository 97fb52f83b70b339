"""The local training of many clients as one: a step is one forward and one backward pass for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor
from torch.utils._pytree import tree_unflatten

from shared.federated.engines.vectorized import lanes as batches
from shared.federated.engines.vectorized.capture import Agreed, Capture, rows_of
from shared.federated.engines.vectorized.gradients import clip
from shared.federated.engines.vectorized.lanes import Lane
from shared.federated.engines.vectorized.optimizers import LaneOptimizer
from shared.federated.engines.vectorized.randomness import Randomness
from shared.federated.engines.vectorized.refusal import Refusal
from shared.federated.engines.vectorized.rows import Rows
from shared.federated.engines.vectorized.rules import LaneOperations
from shared.federated.engines.vectorized.snapshot import Snapshot
from shared.federated.engines.vectorized.tape import Repeated, Tape, reads_index
from shared.federated.engines.vectorized.template import Template
from shared.federated.local import Job, Report

TAPES = 64  # kept from earlier rounds at most


def train_together(
    jobs: Sequence[Job], streams: Sequence[Randomness], tapes: dict[Any, Tape] | None = None
) -> list[Report]:
    """Train the models of `jobs` in place, as `train_alone` would each; `streams` are the clients' own.

    `tapes` holds what earlier steps came down to, by kind of step, and receives that of these.

    Raises:
        Refusal: there is no batched form. Jobs and streams are as they were.
    """
    order = sorted(range(len(jobs)), key=lambda i: -len(jobs[i].loader) * jobs[i].settings.max_epochs)
    lanes: list[Lane] = []
    try:
        for i in order:  # who works longest comes first: those still at work stay neighbours
            lanes.append(Lane(jobs[i], streams[i]))
        together = _Together(lanes, {} if tapes is None else tapes)
        together.run()
        reports = together.finish()
    except Exception as error:
        for lane in lanes:
            lane.give_back()
        if isinstance(error, Refusal):
            raise
        reason = str(error).strip().partition("\n")[0]
        raise Refusal(f"{type(error).__name__}: {reason}") from error
    found = dict(zip(order, reports, strict=True))
    return [found[i] for i in range(len(jobs))]


class _Together:
    def __init__(self, lanes: list[Lane], tapes: dict[Any, Tape]) -> None:
        self.lanes, self.tapes = lanes, tapes
        for lane in lanes:
            _check(lane)
            lane.run.prepare()
            for optimizer in lane.run.trainer.optimizers:
                optimizer._opt_called = True  # or its schedulers warn that it never steps
        self.model, self.job, self.settings = lanes[0].job.model, lanes[0].job, lanes[0].job.settings
        jobs = [lane.job for lane in lanes]
        if any(job.settings != self.settings for job in jobs):
            raise Refusal("the clients train with different settings")
        for name in ("extra_loss", "gradient"):
            if len({getattr(job, name) is None for job in jobs}) > 1:
                raise Refusal(f"some clients have {name} and others not", structural=True)
        self.template = template = Template()
        template.add([job.model for job in jobs], type(self.model).__name__)
        self.extra_loss = template.add([job.extra_loss for job in jobs], "what extra_loss reads")
        self.gradient = template.add([job.gradient for job in jobs], "what gradient reads")
        entries = {id(tensor) for tensor in (*self.model.parameters(), *self.model.buffers())}
        for slot in template.slots:
            slot.in_model = id(slot.tensors[0]) in entries
        self.numbers = {id(slot.tensors[0]): number for number, slot in enumerate(template.slots)}
        if any(
            len({id(slot.tensors[i]) for slot in template.slots}) < len(template.slots)
            for i in range(len(lanes))
        ):
            raise Refusal("clients tie their parameters in different ways")
        self.stacks = [torch.stack([t.detach() for t in slot.tensors]) for slot in template.slots]
        self.optimizer = LaneOptimizer([lane.run.trainer.optimizers[0] for lane in lanes], self._groups())
        self.trained = [key for group in self.optimizer.groups for key in group]
        if not all(template.slots[key].in_model for key in self.trained):
            raise Refusal("the optimiser holds a tensor that is no parameter of the module")
        self.originals = {key: template.slots[key].tensors for key in self.trained}
        self.optimizer.restore(self.originals)
        self.names = {
            name: self.numbers[id(p)]
            for name, p in self.model.named_parameters()
            if self.numbers.get(id(p)) in self.originals
        }
        self.early = self.job.gradient is None and not self.settings.gradient_clip_val
        self.first, self.own_optimizer = True, False
        self.repeated: dict[Any, Repeated] = {}
        self.calls: dict[Any, list] = {}  # of `log` in a step of each kind
        self.by_index = lanes[0].run.takes_index and reads_index(self.model.training_step)
        self.trainer, self.capture = Agreed(), Capture()
        self.model.trainer, self.model.log = self.trainer, self.capture.log

    def run(self) -> None:
        """Step whoever has a batch, always as many as have batches of one kind."""
        while True:
            kinds: dict[Any, list[int]] = {}
            for number, lane in enumerate(self.lanes):
                lane.load()
                if not lane.finished:
                    kinds.setdefault(lane.batch.kind, []).append(number)
            if not kinds:
                return
            # Few have an odd batch (a last one): they go first and join the others again.
            self._step(min(kinds.values(), key=len))

    def finish(self) -> list[Report]:
        """Put the results into the lanes' models, optimisers and reports."""
        with torch.no_grad():
            for slot, stack in zip(self.template.slots, self.stacks, strict=True):
                if slot.in_model:
                    for tensor, value in zip(slot.tensors, stack, strict=True):
                        tensor.copy_(value)
        self.optimizer.hand_over(self.originals)
        first = self.lanes[0].run
        self.model.trainer = first.trainer
        first.recorder.attach(self.model)
        for lane in self.lanes:
            lane.end()
        return [lane.run.finish() for lane in self.lanes]

    def _step(self, members: list[int]) -> None:
        rows, lanes = Rows(members), [self.lanes[number] for number in members]
        leaves, spec, size = batches.stack([lane.batch for lane in lanes])
        parts = [rows.take(stack) for stack in self.stacks]
        grads, logged = self._gradients(rows, lanes, parts, leaves, spec)
        self.optimizer.step(rows, {key: parts[key] for key in self.trained}, grads)
        for slot, stack, part in zip(self.template.slots, self.stacks, parts, strict=True):
            if slot.in_model:
                rows.put(stack, part)
        for lane, values in zip(lanes, logged, strict=True):
            lane.stepped(size, values)

    def _gradients(
        self, rows: Rows, lanes: list[Lane], parts: list[Tensor], leaves: list[Any], spec: Any
    ) -> tuple[dict[int, Tensor | None], list]:
        """Of what is trained (None: unused, or changed already); what each lane logged."""
        rates = self.optimizer.rates(rows) if self.early else None
        kind = (tuple(rows.lanes), lanes[0].batch.kind, repr(rates))
        if kind not in self.repeated:
            self.repeated[kind] = Repeated(self.tapes.get(kind))
        repeated = self.repeated[kind]
        new = repeated.tape is None
        leading = [part.detach() for part in parts]
        for key in self.trained:
            leading[key].requires_grad_(new)

        def differentiate() -> list[Tensor | None]:
            losses, values = self._losses(rows, lanes, leading, leaves, spec, rates)
            trained = [leading[key] for key in self.trained]
            found = torch.autograd.grad(losses.sum(), trained, allow_unused=True)
            grads = dict(zip(self.trained, found, strict=True))
            if self.job.gradient is not None:
                self._change([part.detach() for part in leading], grads)
            clip(grads, self.settings.gradient_clip_val, self.settings.gradient_clip_algorithm)
            return [*grads.values(), *values]

        before = Randomness.capture(lanes[0].run.device) if new else None
        versions = [tensor._version for tensor in leading]
        found = repeated.run(differentiate, [*leading, *(x for x in leaves if isinstance(x, Tensor))])
        self.first = False
        if before is not None:
            if before != Randomness.capture(before.device):
                before.restore()
                raise Refusal("the step draws random numbers for all clients at once")
            for slot, tensor, version in zip(self.template.slots, leading, versions, strict=True):
                if tensor._version != version and not slot.in_model:
                    raise Refusal(f"the step changes {slot.name}, which is no parameter or buffer")
            calls = self.capture.calls
            if self.by_index or self.trainer.asked or any(value is not None for _, value, _ in calls):
                repeated.refuse("the step reads or logs what is no tensor")
            if self.own_optimizer:
                repeated.refuse("the module keeps its optimiser, and may read its rate")
            if calls != self.calls.setdefault(kind, calls):
                repeated.refuse("what is logged differs from step to step")
            self.calls[kind] = calls
            if repeated.tape is not None and not repeated.tape.foreign:
                self.tapes[kind] = repeated.tape
                if len(self.tapes) > TAPES:
                    self.tapes.pop(next(iter(self.tapes)))
        values = found[len(self.trained) :]
        grads = dict(zip(self.trained, found, strict=False))
        return grads, rows_of(self.calls[kind], values, len(lanes))

    def _losses(
        self, rows: Rows, lanes: list[Lane], parts: list[Tensor], leaves: list[Any], spec: Any, rates: Any
    ) -> tuple[Tensor, list[Tensor]]:
        """(K,) losses; (K, ...) of every tensor that was logged."""
        index = Agreed.value([lane.index for lane in lanes], "batch_idx")
        self.trainer.ask([lane.run.trainer for lane in lanes])
        self.capture.start()
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]

        def loss_of(parts: list[Tensor], tensors: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
            given = iter(tensors)
            batch: Any = [next(given) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
            batch = batch if spec is None else tree_unflatten(batch, spec)
            with self.template.holding(parts):
                model, extra_loss = self.model, None
                if self.job.extra_loss is not None:
                    extra_loss = self.template.root(self.extra_loss, parts)
                before = Snapshot(model, extra_loss, self.job.state) if self.first else None
                outputs = (
                    model.training_step(batch, index)
                    if lanes[0].run.takes_index
                    else model.training_step(batch)
                )
                loss = outputs["loss"] if isinstance(outputs, dict) else outputs
                if loss is None:
                    raise Refusal("training_step returns no loss")
                if extra_loss is not None:
                    loss = loss + extra_loss(model, batch, loss)
                if before is not None:
                    _refuse_changes(before)
                    self.own_optimizer = before.optimizer
            return loss, self.capture.tensors

        descents = self.optimizer.descents(rates, {key: parts[key] for key in self.trained}) if rates else {}
        with torch.enable_grad(), LaneOperations([lane.generator for lane in lanes], descents):
            losses, values = torch.vmap(loss_of)(parts, tensors)
        if losses.dim() != 1:
            raise Refusal("the loss is not a single number")
        return losses, values

    def _change(self, parts: list[Tensor], grads: dict[int, Tensor | None]) -> None:
        """Let the client's `gradient` act on the gradients of all lanes."""
        present = {name: key for name, key in self.names.items() if grads[key] is not None}

        def hooked(parts: list[Tensor], mine: dict[str, Tensor]) -> dict[str, Tensor]:
            with self.template.holding(parts):
                hook = self.template.root(self.gradient, parts)
                before = Snapshot(hook) if self.first else None
                changed = hook(mine, {name: parts[key] for name, key in present.items()})
                if before is not None:
                    _refuse_changes(before)
                return changed

        with torch.no_grad():
            found = torch.vmap(hooked)(parts, {name: grads[key] for name, key in present.items()})
        grads.update({self.names[name]: grad for name, grad in found.items()})

    def _groups(self) -> list[list[int]]:
        """The slots of the parameters in each group of the optimisers."""
        groups = []
        for lane, optimizer in [(i, lane.run.trainer.optimizers[0]) for i, lane in enumerate(self.lanes)]:
            numbers = {id(slot.tensors[lane]): key for key, slot in enumerate(self.template.slots)}
            found = [
                [numbers.get(id(p), -1) for p in group["params"] if p.requires_grad]
                for group in optimizer.param_groups
            ]
            groups.append(found)
        if any(found != groups[0] for found in groups) or any(-1 in group for group in groups[0]):
            raise Refusal("the optimisers hold different parameters", structural=True)
        return groups[0]


def _check(lane: Lane) -> None:
    run, model, settings = lane.run, lane.job.model, lane.job.settings
    name = type(model).__name__
    if not model.automatic_optimization:
        raise Refusal(f"{name} uses manual optimisation")
    own = sorted(run.hooks) + [
        hook
        for hook in ("optimizer_step", "optimizer_zero_grad", "configure_gradient_clipping", "backward")
        if is_overridden(hook, model)
    ]
    if own:
        raise Refusal(f"{name} overrides {', '.join(own)}")
    if settings.accumulate_grad_batches != 1:
        raise Refusal("gradients are accumulated")
    if settings.precision not in (None, "32-true") or torch.is_autocast_enabled(run.device.type):
        raise Refusal("the precision is mixed")
    if any(m._backward_hooks or m._backward_pre_hooks for m in model.modules()):
        raise Refusal(f"{name} has backward hooks")


def _refuse_changes(before: Snapshot) -> None:
    """What a step leaves in Python objects would be there for one client only."""
    if change := before.change():
        before.restore()
        raise Refusal(f"the step changes {change}")
