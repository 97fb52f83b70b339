"""What a client's Python objects hold, to be compared after a step, and put back."""

from __future__ import annotations

import functools
import logging
import random
import types
from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch._C._functorch import is_batchedtensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from shared.federated.engines.vectorized.template import OF_THE_RUN

WALKED = 20_000  # objects; what lies further is not watched
ARRAY = 2**16  # bytes; greater arrays are data
ATOMS = (type(None), bool, int, float, complex, str, bytes, type, types.ModuleType, logging.Logger)


class Snapshot:
    """Modules, other objects, containers, closures and generators that can be reached from `roots`.

    Tensors count as the same while they are the same object: their values are trained. An object that is no
    module may keep a tensor of all clients, as hooks do that hand one to a loss term; torch refuses to read
    it in a later step.
    """

    def __init__(self, *roots: Any) -> None:
        self.optimizer = False  # whether there is an optimiser or a schedule among them
        self._held: list[tuple[str, Any, Any]] = []  # name, what can change, its content
        self._seen: dict[int, Any] = {}
        ahead = deque((type(root).__name__, root) for root in roots)
        while ahead and len(self._seen) < WALKED:
            name, value = ahead.popleft()
            if isinstance(value, (*ATOMS, Tensor)) or id(value) in self._seen:
                continue
            self._seen[id(value)] = value
            self.optimizer |= isinstance(value, (Optimizer, LRScheduler))
            content = _content(value)
            if content is not None:
                self._held.append((name, value, content))
            ahead.extend((f"{name}{key}", child) for key, child in _children(value, content))

    def change(self) -> str:
        """The name of something that holds something else now; "" when nothing does."""
        for name, value, before in self._held:
            now = _content(value)
            if isinstance(before, dict):
                passing = not isinstance(value, (dict, nn.Module))
                for key in {**before, **now}:
                    if _differs(key, before, now) and not (passing and _of_all_clients(now.get(key))):
                        return f"{name}.{key}"
            elif not _same(before, now):
                return name
        return ""

    def restore(self) -> None:
        """Have everything hold what it held."""
        for _, value, before in self._held:
            if not _same(before, _content(value)):
                _put_back(value, before)


def _content(value: Any) -> Any:
    """A shallow copy of what `value` holds; None: nothing that changes."""
    if isinstance(value, nn.Module):
        return {key: item for key, item in vars(value).items() if key not in OF_THE_RUN}
    if isinstance(value, (dict, list, set, deque)):
        return value.copy()
    if isinstance(value, types.CellType):
        return list(_of_cell(value))
    if isinstance(value, random.Random):
        return value.getstate()
    if isinstance(value, np.random.Generator):
        return repr(value.bit_generator.state), value.bit_generator.state
    if isinstance(value, torch.Generator):
        return value.get_state().numpy().tobytes()
    if isinstance(value, np.ndarray):
        return value.tobytes() if value.nbytes <= ARRAY and not value.dtype.hasobject else None
    if isinstance(value, types.FunctionType):
        return None
    return dict(vars(value)) if hasattr(value, "__dict__") else None


def _children(value: Any, content: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, functools.partial):
        yield from (("", part) for part in (value.func, *value.args, *value.keywords.values()))
    elif isinstance(value, types.MethodType):
        yield "", value.__self__
    elif isinstance(value, types.FunctionType):
        yield from (("", part) for part in (*(value.__closure__ or ()), *(value.__defaults__ or ())))
    elif isinstance(value, tuple):
        yield from (("", part) for part in value)
    elif isinstance(content, dict):
        yield from ((f".{key}", item) for key, item in content.items())
    elif isinstance(value, (list, set, deque, types.CellType)):
        yield from (("", item) for item in content)


def _of_cell(cell: types.CellType) -> Iterator[Any]:
    try:
        yield cell.cell_contents
    except ValueError:  # still empty
        return


def _same(before: Any, now: Any) -> bool:
    if isinstance(before, dict):
        return before.keys() == now.keys() and not any(_differs(key, before, now) for key in before)
    if isinstance(before, (list, deque)):
        return len(before) == len(now) and not any(map(_other, before, now))
    return before == now


def _differs(key: Any, before: dict, now: dict) -> bool:
    return (key in before) != (key in now) or _other(before[key], now[key])


def _of_all_clients(value: Any) -> bool:
    return isinstance(value, Tensor) and is_batchedtensor(value)


def _other(before: Any, now: Any) -> bool:
    """Whether it is another object, and no equal number or text."""
    if before is now:
        return False
    plain = isinstance(before, (bool, int, float, complex, str, bytes)) and type(before) is type(now)
    return not plain or before != now


def _put_back(value: Any, before: Any) -> None:
    if isinstance(value, types.CellType):
        value.cell_contents = before[0]
    elif isinstance(value, random.Random):
        value.setstate(before)
    elif isinstance(value, np.random.Generator):
        value.bit_generator.state = before[1]
    elif isinstance(value, torch.Generator):
        value.set_state(torch.frombuffer(bytearray(before), dtype=torch.uint8))
    elif isinstance(value, np.ndarray):
        value[...] = np.frombuffer(before, value.dtype).reshape(value.shape)
    elif isinstance(value, (list, deque)):
        value.clear()
        value.extend(before)
    else:
        held = value if isinstance(value, (dict, set)) else vars(value)
        for key in [key for key in held if key not in before and key not in OF_THE_RUN]:
            held.discard(key) if isinstance(held, set) else held.pop(key)
        held.update(before)
