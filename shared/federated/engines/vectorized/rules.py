"""How single operations run for all lanes at once, where `vmap`'s own way is slow or draws other numbers.

A lane is one client's training. A tensor of K lanes has their dimension anywhere among the others; a rule
gets the tensors with the place of that dimension (None: the lanes share the tensor) and returns the same.
Images stay in the layout (B, H, W, K, C), the channels-last form of (B, K*C, H, W): there a convolution of K
lanes is one grouped convolution, pooling and normalisation are ordinary ones, and nothing is copied.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._C import _functorch as functorch
from torch._functorch.pyfunctorch import temporarily_pop_interpreter_stack
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from shared.federated.engines.vectorized.linear import Descent, linear_of_lanes

Place = int | None  # of the lane dimension
LANES = 1  # functorch's number of the outermost vmap; a module may use others inside


class LaneOperations(TorchFunctionMode):
    """Inside, under one `vmap`, operations that have a rule follow it.

    Args:
        generators: each lane's stream of random numbers, in the order of the lanes.
        descents: of the weights that a linear layer may change as soon as it has their gradient; by the
            `id` of the tensor of all lanes.
    """

    def __init__(
        self, generators: Sequence[torch.Generator], descents: dict[int, Descent] | None = None
    ) -> None:
        super().__init__()
        self.generators, self.descents = generators, descents or {}

    def __torch_function__(self, func: Callable, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.descents and func not in LOOKING:
            self._count_uses((*args, *kwargs.values()))
        rule = RULES.get(func)
        if rule is not None and functorch.maybe_current_level() == LANES:
            found = rule(self, *args, **kwargs)
            if found is not NotImplemented:
                return found
        return func(*args, **kwargs)

    def _count_uses(self, operands: Sequence[Any]) -> None:
        for operand in operands:
            if isinstance(operand, (list, tuple)):
                self._count_uses(operand)
            elif isinstance(operand, Tensor) and functorch.is_batchedtensor(operand):
                descent = self.descents.get(id(functorch.get_unwrapped(operand)))
                if descent is not None:
                    descent.uses += 1


def _below(rule: Callable, *operands: Any) -> Tensor:
    """Call `rule(lanes, places, *operands)` below `vmap`, on the tensors of all lanes.

    `torch.autograd.Function` has a `vmap` method for this, which takes longer than the products of a small
    model do.
    """
    level, plain, places, lanes = functorch.maybe_current_level(), [], [], 1
    for operand in operands:
        place = None
        if isinstance(operand, Tensor) and functorch.is_batchedtensor(operand):
            place = functorch.maybe_get_bdim(operand)
            operand = functorch.get_unwrapped(operand)
            lanes = operand.shape[place]
        plain.append(operand)
        places.append(place)
    with temporarily_pop_interpreter_stack():
        result, place = rule(lanes, places, *plain)
    return functorch._add_batch_dim(result, place, level)


def _lanes_first(x: Tensor, place: Place, lanes: int) -> Tensor:
    """(K, ...)"""
    if place == 0:
        return x
    return x.expand(lanes, *x.shape) if place is None else x.movedim(place, 0)


def _as_channels(x: Tensor, place: Place, lanes: int) -> Tensor:
    """Images (B, C, H, W) of K lanes as (B, K*C, H, W) in channels-last; features (B, C) as (B, K*C)."""
    x = _lanes_first(x, place, lanes)
    if x.dim() == 3:
        return x.transpose(0, 1).reshape(x.shape[1], -1)
    return x.permute(1, 3, 4, 0, 2).contiguous().flatten(3).permute(0, 3, 1, 2)


def _from_channels(x: Tensor, lanes: int) -> tuple[Tensor, int]:
    return x.unflatten(1, (lanes, -1)), 1


def _in_channels_layout(x: Tensor, place: Place) -> bool:
    return place == 1 and x.permute(0, 3, 4, 1, 2).is_contiguous()


def _conv2d(mode, x, weight, bias=None, stride=1, padding=0, dilation=1, groups=1):
    if not functorch.is_batchedtensor(weight) or x.dim() != 4:
        return NotImplemented

    def rule(lanes: int, places: tuple, x: Tensor, weight: Tensor, bias: Tensor | None):
        weight = _lanes_first(weight, places[1], lanes).flatten(0, 1)
        weight = weight.contiguous(memory_format=torch.channels_last)
        bias = bias if bias is None else _lanes_first(bias, places[2], lanes).flatten()
        x = _as_channels(x, places[0], lanes)
        return _from_channels(F.conv2d(x, weight, bias, stride, padding, dilation, lanes * groups), lanes)

    return _below(rule, x, weight, bias)


def _linear(mode, x, weight, bias=None):
    if not functorch.is_batchedtensor(weight):
        return NotImplemented

    def rule(lanes: int, places: tuple, x: Tensor, weight: Tensor, bias: Tensor | None):
        descent = mode.descents.get(id(weight))
        x, weight = _lanes_first(x, places[0], lanes), _lanes_first(weight, places[1], lanes)
        bias = bias if bias is None else _lanes_first(bias, places[2], lanes)
        y = linear_of_lanes(x.reshape(lanes, -1, x.shape[-1]), weight, bias, descent)
        return y.view(*x.shape[:-1], -1), 0

    return _below(rule, x, weight, bias)


def _each_plane(function: Callable) -> Callable:
    """For what treats every (H, W) plane of (B, C, H, W) alike: pooling."""

    def planes(mode, x, *args, **kwargs):
        if not functorch.is_batchedtensor(x) or x.dim() != 4 or kwargs.get("return_indices"):
            return NotImplemented

        def rule(lanes: int, places: tuple, x: Tensor):
            if _in_channels_layout(x, places[0]):
                return _from_channels(function(_as_channels(x, 1, lanes), *args, **kwargs), lanes)
            x = x.movedim(places[0], 0)
            return function(x.flatten(0, 1), *args, **kwargs).unflatten(0, x.shape[:2]), 0

        return _below(rule, x)

    return planes


def _batch_norm(
    mode, x, running_mean, running_var, weight=None, bias=None, training=False, momentum=0.1, eps=1e-05
):
    if not functorch.is_batchedtensor(x) or x.dim() not in (2, 4):
        return NotImplemented
    if training:
        F._verify_batch_size(x.size())
    statistics = (running_mean, running_var)
    if any(s is not None and not functorch.is_batchedtensor(s) for s in statistics):
        return NotImplemented

    def rule(lanes: int, places: tuple, x: Tensor, *vectors: Tensor | None):
        flat = [
            v if v is None else _lanes_first(v, place, lanes).contiguous().view(-1)
            for v, place in zip(vectors, places[1:], strict=True)
        ]
        mean, var, weight, bias = flat
        x = _as_channels(x, places[0], lanes)
        return _from_channels(F.batch_norm(x, mean, var, weight, bias, training, momentum, eps), lanes)

    return _below(rule, x, running_mean, running_var, weight, bias)


def _group_norm(mode, x, num_groups, weight=None, bias=None, eps=1e-05):
    if not functorch.is_batchedtensor(x) or x.dim() != 4:
        return NotImplemented

    def rule(lanes: int, places: tuple, x: Tensor, *vectors: Tensor | None):
        flat = [
            v if v is None else _lanes_first(v, place, lanes).flatten()
            for v, place in zip(vectors, places[1:], strict=True)
        ]
        x = _as_channels(x, places[0], lanes)
        return _from_channels(F.group_norm(x, lanes * num_groups, *flat, eps), lanes)

    return _below(rule, x, weight, bias)


def _cross_entropy(
    mode,
    x,
    target,
    weight=None,
    size_average=None,
    ignore_index=-100,
    reduce=None,
    reduction="mean",
    label_smoothing=0.0,
):
    plain = weight is None and size_average is None and reduce is None and reduction == "mean"
    if not plain or not functorch.is_batchedtensor(x) or x.dim() != 2 or target.dim() != 1:
        return NotImplemented

    def rule(lanes: int, places: tuple, x: Tensor, target: Tensor):
        x = _lanes_first(x, places[0], lanes)  # (K, B, C)
        target = _lanes_first(target, places[1], lanes)  # (K, B)
        losses = F.cross_entropy(
            x.flatten(0, 1),
            target.flatten(),
            ignore_index=ignore_index,
            reduction="none",
            label_smoothing=label_smoothing,
        )
        return losses.view(lanes, -1).sum(1) / (target != ignore_index).sum(1), 0

    return _below(rule, x, target)


def _dropout(of_channels: bool) -> Callable:
    def drop(mode, x, p=0.5, training=True, inplace=False):
        if not training or p == 0.0 or p == 1.0 or inplace or not functorch.is_batchedtensor(x):
            return NotImplemented
        if of_channels and x.dim() < 3:
            return NotImplemented

        def rule(lanes: int, places: tuple, x: Tensor):
            x = _lanes_first(x, places[0], lanes)
            shape = (*x.shape[1:3], *[1] * (x.dim() - 3)) if of_channels else x.shape[1:]
            noise = x.new_empty(lanes, *shape)
            for mine, generator in zip(noise, mode.generators, strict=True):
                mine.bernoulli_(1 - p, generator=generator)
            return x * noise.div_(1 - p), 0

        return _below(rule, x)

    return drop


RULES: dict[Callable, Callable] = {
    torch.conv2d: _conv2d,
    F.linear: _linear,
    F.max_pool2d: _each_plane(F.max_pool2d),
    F.avg_pool2d: _each_plane(F.avg_pool2d),
    F.adaptive_avg_pool2d: _each_plane(F.adaptive_avg_pool2d),
    F.adaptive_max_pool2d: _each_plane(F.adaptive_max_pool2d),
    F.batch_norm: _batch_norm,
    F.group_norm: _group_norm,
    F.cross_entropy: _cross_entropy,
    F.dropout: _dropout(of_channels=False),
    F.dropout1d: _dropout(of_channels=True),
    F.dropout2d: _dropout(of_channels=True),
    F.dropout3d: _dropout(of_channels=True),
}

LOOKING = {
    Tensor.shape.__get__,
    Tensor.dim,
    Tensor.size,
    Tensor.requires_grad.__get__,
    Tensor.is_floating_point,
}
