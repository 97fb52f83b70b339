"""SGD, Adam and AdamW for K models at once, each with its own rates, step counts and state.

The formulas and their order are those of `torch.optim`; the lanes' own optimisers hold the settings (where
schedulers change them) and receive the state in the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Adam, AdamW, Optimizer

from shared.federated.engines.vectorized.linear import Descent
from shared.federated.engines.vectorized.refusal import Refusal
from shared.federated.engines.vectorized.rows import Rows

Factor = float | Tensor  # a number for all lanes, or (K,) with one for each

KEPT = {SGD: ("momentum_buffer",), Adam: ("exp_avg", "exp_avg_sq"), AdamW: ("exp_avg", "exp_avg_sq")}


class LaneOptimizer:
    """Args:
    optimizers: one a lane, of one type, with the same groups of parameters.
    groups: for each group the numbers of its parameters; `params` and `grads` are keyed by these.
    """

    def __init__(self, optimizers: Sequence[Optimizer], groups: Sequence[Sequence[int]]) -> None:
        self.optimizers, self.groups, self.kind = list(optimizers), groups, type(optimizers[0])
        if self.kind not in KEPT or any(type(o) is not self.kind for o in optimizers):
            raise Refusal(f"the optimiser is {self.kind.__name__}")
        for number in range(len(groups)):
            for key in ("maximize", "nesterov", "decoupled_weight_decay", "amsgrad"):
                values = {bool(o.param_groups[number].get(key)) for o in optimizers}
                if len(values) > 1 or (key == "amsgrad" and True in values):
                    raise Refusal(f"the optimiser's {key} is not the same for all clients or not offered")
        self.steps = {key: [0] * len(optimizers) for group in groups for key in group}
        self.state: dict[int, dict[str, Tensor]] = {key: {} for key in self.steps}

    @torch.no_grad()
    def step(self, rows: Rows, params: dict[int, Tensor], grads: dict[int, Tensor | None]) -> None:
        """Change `params` (k, ...) of the lanes `rows` in place, those that have a gradient."""
        update = self._sgd if self.kind is SGD else self._adam
        for number, group in enumerate(self.groups):
            settings = [self.optimizers[lane].param_groups[number] for lane in rows.lanes]
            sign = -1.0 if settings[0]["maximize"] else 1.0
            found = {key: grads[key] if sign > 0 else -grads[key] for key in group if grads[key] is not None}
            for key in found:
                for lane in rows.lanes:
                    self.steps[key][lane] += 1
            if found:
                update(rows, params, found, settings)

    def rates(self, rows: Rows) -> list[tuple[float, float] | None]:
        """For each group the rate and weight decay of plain SGD, where the lanes agree on it; else None."""
        found: list[tuple[float, float] | None] = []
        for number in range(len(self.groups)):
            settings = [self.optimizers[lane].param_groups[number] for lane in rows.lanes]
            values = {(float(s["lr"]), s["weight_decay"]) for s in settings}
            plain = self.kind is SGD and not any(s["momentum"] or s["maximize"] for s in settings)
            found.append(values.pop() if plain and len(values) == 1 else None)
        return found

    def descents(
        self, rates: Sequence[tuple[float, float] | None], params: dict[int, Tensor]
    ) -> dict[int, Descent]:
        """By the `id` of each weight matrix the step of plain SGD, to be done in backward."""
        return {
            id(params[key]): Descent(*rate)
            for group, rate in zip(self.groups, rates, strict=True)
            if rate is not None
            for key in group
            if params[key].dim() == 3
        }

    def _sgd(
        self, rows: Rows, params: dict[int, Tensor], grads: dict[int, Tensor], settings: list[dict[str, Any]]
    ) -> None:
        like = next(iter(grads.values()))
        names = ("lr", "weight_decay", "momentum")
        lr, decay, momentum = (_one([float(s[name]) for s in settings], like) for name in names)
        for key, grad in grads.items():
            p = params[key]
            if _used(decay):
                grad = _plus(grad, p, decay)
            if _used(momentum):
                steps = [self.steps[key][lane] for lane in rows.lanes]
                fresh = [1.0 if t == 1 else 1 - s["dampening"] for t, s in zip(steps, settings, strict=True)]
                with rows.of(self._kept(key, "momentum_buffer", p)) as buffer:
                    buffer.mul_(_column(momentum, p))
                    _plus_(buffer, grad, _one(fresh, p))
                    grad = _plus(grad, buffer, momentum) if settings[0]["nesterov"] else buffer
                    _plus_(p, grad, -lr)
            else:
                _plus_(p, grad, -lr)

    def _adam(
        self, rows: Rows, params: dict[int, Tensor], grads: dict[int, Tensor], settings: list[dict[str, Any]]
    ) -> None:
        like = next(iter(grads.values()))
        rates = [float(s["lr"]) for s in settings]
        firsts, seconds = ([float(s["betas"][i]) for s in settings] for i in (0, 1))
        first, second = _one(firsts, like), _one(seconds, like)
        decay, eps = (_one([float(s[name]) for s in settings], like) for name in ("weight_decay", "eps"))
        kept = _one([1 - lr * s["weight_decay"] for lr, s in zip(rates, settings, strict=True)], like)
        for key, grad in grads.items():
            p = params[key]
            if _used(decay) and settings[0].get("decoupled_weight_decay"):
                p.mul_(_column(kept, p))
            elif _used(decay):
                grad = _plus(grad, p, decay)
            steps = [self.steps[key][lane] for lane in rows.lanes]
            size = _one([lr / (1 - b**t) for lr, b, t in zip(rates, firsts, steps, strict=True)], p)
            scale = _one([(1 - b**t) ** 0.5 for b, t in zip(seconds, steps, strict=True)], p)
            with (
                rows.of(self._kept(key, "exp_avg", p)) as mean,
                rows.of(self._kept(key, "exp_avg_sq", p)) as square,
            ):
                mean.lerp_(grad, _column(1 - first, p))
                square.mul_(_column(second, p)).addcmul_(grad, grad * _column(1 - second, p))
                denominator = square.sqrt().div_(_column(scale, p)).add_(_column(eps, p))
                _plus_(p, mean / denominator, -size)

    def _kept(self, key: int, name: str, p: Tensor) -> Tensor:
        """(K, ...)"""
        found = self.state[key]
        if name not in found:
            found[name] = p.new_zeros(len(self.optimizers), *p.shape[1:])
        return found[name]

    def restore(self, originals: dict[int, Sequence[Tensor]]) -> None:
        """Go on with the state that the lanes' own optimisers have; `originals`: their parameters."""
        for key, tensors in originals.items():
            for lane, (optimizer, p) in enumerate(zip(self.optimizers, tensors, strict=True)):
                saved = optimizer.state.get(p, {})
                present = [name for name in KEPT[self.kind] if saved.get(name) is not None]
                for name in present:
                    self._kept(key, name, p[None])[lane] = saved[name]
                if present:
                    self.steps[key][lane] = int(saved.get("step", 1))

    def hand_over(self, originals: dict[int, Sequence[Tensor]]) -> None:
        """Give the state to the lanes' own optimisers."""
        for key, tensors in originals.items():
            for lane, (optimizer, p) in enumerate(zip(self.optimizers, tensors, strict=True)):
                if self.steps[key][lane] and self.state[key]:
                    own = {name: stacked[lane].clone() for name, stacked in self.state[key].items()}
                    if self.kind is not SGD:
                        own = {"step": torch.tensor(float(self.steps[key][lane])), **own}
                    optimizer.state[p] = own


def _one(values: Sequence[float], p: Tensor) -> Factor:
    """A number where the lanes agree."""
    if all(value == values[0] for value in values):
        return values[0]
    return torch.tensor(values, dtype=p.dtype, device=p.device)


def _used(factor: Factor) -> bool:
    return isinstance(factor, Tensor) or factor != 0.0


def _column(factor: Factor, p: Tensor) -> Factor:
    """(k, 1, ..., 1), to meet a tensor like p (k, ...)."""
    return factor.view(-1, *[1] * (p.dim() - 1)) if isinstance(factor, Tensor) else factor


def _plus(a: Tensor, b: Tensor, factor: Factor) -> Tensor:
    if isinstance(factor, Tensor):
        return torch.addcmul(a, b, _column(factor, b))
    return torch.add(a, b, alpha=factor)


def _plus_(a: Tensor, b: Tensor, factor: Factor) -> None:
    if isinstance(factor, Tensor):
        a.addcmul_(b, _column(factor, b))
    else:
        a.add_(b, alpha=factor)
