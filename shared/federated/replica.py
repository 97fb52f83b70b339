"""Copies of a module, as `copy.deepcopy` makes them, in a fraction of its time.

A client gets a fresh module in every round. `deepcopy` looks at each of the hundreds of attributes of a
module one by one; most are numbers, strings and empty dicts.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

ATOMS = {type(None), bool, int, float, complex, str, bytes, type, torch.dtype, torch.device, torch.Size}
PLAIN = {dict, OrderedDict, list, set}


def replica(module: nn.Module, shared: Iterable[Tensor] = ()) -> nn.Module:
    """A copy of `module`; `shared` tensors are those of the original."""
    memo: dict[int, Any] = {id(tensor): tensor for tensor in shared}
    parts = list(module.modules())
    if not all(map(_usual, parts)):
        return copy.deepcopy(module, memo)
    for part in parts:
        memo[id(part)] = type(part).__new__(type(part))
    states = [
        part.__getstate__() for part in parts
    ]  # all at once: an `id` means nothing once its object is gone
    for part, state in zip(parts, states, strict=True):
        vars(memo[id(part)]).update({key: _copy(value, memo) for key, value in state.items()})
    return memo[id(module)]


def _usual(module: nn.Module) -> bool:
    """Whether it is copied attribute by attribute."""
    kind = type(module)
    return (
        not hasattr(kind, "__deepcopy__")
        and not hasattr(kind, "__slots__")
        and kind.__setstate__ is nn.Module.__setstate__
        and kind.__reduce_ex__ is object.__reduce_ex__
        and kind.__reduce__ is object.__reduce__
    )


def _copy(value: Any, memo: dict[int, Any]) -> Any:
    kind = type(value)
    if kind in ATOMS:
        return value
    known = memo.get(id(value))
    if known is not None:
        return known
    if kind in PLAIN and not value:
        found = memo[id(value)] = kind()
        return found
    if kind is dict and all(type(key) is str for key in value):
        found = memo[id(value)] = {}
        found.update({key: _copy(item, memo) for key, item in value.items()})
        return found
    return copy.deepcopy(value, memo)
