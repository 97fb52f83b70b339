"""One client's objects standing in for those of many: the first lane's model and functions, with the tensors
of all lanes put in their places while a batched step runs.

The objects of the lanes (modules, closures, states) are walked side by side. What is the same object
everywhere is left alone. A tensor with a counterpart of the same shape in every lane becomes a slot. Anything
else that differs is replaced by a `Differs`, which refuses the step when the step reads it.
"""

from __future__ import annotations

import contextlib
import functools
import types
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from shared.federated.engines.vectorized.refusal import Refusal

OF_THE_RUN = {"_trainer", "log", "_fabric", "_logger"}  # what local training itself puts into a module


class Differs:
    """In place of a value that is not the same for all lanes."""

    def __init__(self, where: str, structural: bool) -> None:
        object.__setattr__(self, "_refusal", (where, structural))

    @property
    def structural(self) -> bool:
        """Whether shapes, lengths, keys or types differ, and not only values."""
        return object.__getattribute__(self, "_refusal")[1]

    def _refuse(self, *args: Any, **kwargs: Any) -> Any:
        where, structural = object.__getattribute__(self, "_refusal")
        raise Refusal(f"{where} is not the same for all clients", structural=structural)

    __getattr__ = __setattr__ = __call__ = __len__ = __iter__ = __getitem__ = __contains__ = _refuse
    __bool__ = __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __hash__ = _refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _refuse
    __neg__ = __pow__ = __mod__ = __floordiv__ = __int__ = __float__ = __index__ = __str__ = _refuse

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        next(value for value in args if isinstance(value, cls))._refuse()


@dataclass
class Slot:
    """A tensor that every lane has its own of; `tensors` in the order of the lanes."""

    name: str
    tensors: tuple[Tensor, ...]
    in_model: bool = False  # a parameter or buffer of the trained model


@dataclass
class Template:
    """What was found by walking `roots`, one tuple of counterparts each."""

    slots: list[Slot] = field(default_factory=list)
    _swaps: list[tuple[Any, Any, Any, Callable[[Sequence[Tensor]], Any]]] = field(default_factory=list)
    _seen: dict[tuple[int, ...], Any] = field(default_factory=dict)
    differing: list[Differs] = field(default_factory=list)
    roots: list[Callable[[Sequence[Tensor]], Any]] = field(default_factory=list)

    def add(self, counterparts: Sequence[Any], name: str) -> int:
        """Walk one object of each lane; returns its number for `root`."""
        build = self._walk(tuple(counterparts), name)
        self.roots.append(build or (lambda tensors, first=counterparts[0]: first))
        return len(self.roots) - 1

    def root(self, number: int, tensors: Sequence[Tensor]) -> Any:
        """Lane 0's object, rebuilt around `tensors` where it could not be changed in place."""
        return self.roots[number](tensors)

    @contextlib.contextmanager
    def holding(self, tensors: Sequence[Tensor]) -> Iterator[None]:
        """Lane 0's objects hold `tensors` (one a slot) inside, their own again afterwards."""
        try:
            for container, key, _, build in self._swaps:
                _put(container, key, build(tensors))
            yield
        finally:
            for container, key, original, _ in self._swaps:
                _put(container, key, original)

    # Each walk returns None (nothing to change, or changed in place), or tensors of the slots -> new value.

    def _walk(self, objects: tuple, name: str) -> Callable[[Sequence[Tensor]], Any] | None:
        first = objects[0]
        if all(other is first for other in objects[1:]):
            return None
        key = tuple(map(id, objects))
        if key not in self._seen:
            self._seen[key] = None  # a cycle meets an object that is being changed in place
            self._seen[key] = self._look_into(objects, name)
        return self._seen[key]

    def _look_into(self, objects: tuple, name: str) -> Callable[[Sequence[Tensor]], Any] | None:
        first, kind = objects[0], type(objects[0])
        if any(type(other) is not kind for other in objects):
            return self._differs(name, structural=True)
        if isinstance(first, Tensor):
            return self._tensor(objects, name)
        if isinstance(first, (bool, int, float, complex, str, bytes, type, types.ModuleType, torch.dtype)):
            return None if all(other == first for other in objects) else self._differs(name)
        if isinstance(first, dict):
            return self._dict(objects, name)
        if isinstance(first, (list, tuple)):
            return self._sequence(objects, name)
        if isinstance(first, functools.partial):
            parts = [(o.func, o.args, o.keywords) for o in objects]
            build = self._walk_tuple(parts, name)
            return build and (lambda tensors: _partial(*build(tensors)))
        if isinstance(first, types.MethodType):
            if any(o.__func__ is not first.__func__ for o in objects):
                return self._differs(name, structural=True)
            build = self._walk(tuple(o.__self__ for o in objects), name)
            return build and (lambda tensors: types.MethodType(first.__func__, build(tensors)))
        if isinstance(first, types.FunctionType):
            return self._function(objects, name)
        if isinstance(first, np.ndarray):
            return None if all(np.array_equal(first, o) for o in objects) else self._differs(name)
        if isinstance(first, (set, frozenset)):
            return None if all(other == first for other in objects) else self._differs(name)
        if hasattr(first, "__dict__") and not hasattr(kind, "__slots__"):
            return self._attributes(objects, name)
        return self._differs(name)

    def _tensor(self, objects: tuple[Tensor, ...], name: str) -> Callable[[Sequence[Tensor]], Any]:
        first = objects[0]
        alike = all(
            (o.shape, o.dtype, o.device, o.requires_grad)
            == (first.shape, first.dtype, first.device, first.requires_grad)
            for o in objects
        )
        if not alike or any(not o.is_leaf for o in objects):
            return self._differs(name, structural=not alike)
        number = len(self.slots)
        self.slots.append(Slot(name, objects))
        return lambda tensors: tensors[number]

    def _dict(self, objects: tuple[dict, ...], name: str) -> Callable | None:
        first = objects[0]
        keys = [list(o) for o in objects]
        if any(not isinstance(key, (str, int)) for found in keys for key in found):
            return self._differs(name)
        if any(found != keys[0] for found in keys):
            by_position = all(len(k) == len(keys[0]) and all(type(i) is int for i in k) for k in keys)
            if not (by_position and type(first) is OrderedDict):  # hooks, by the numbers of their handles
                if any(set(found) != set(keys[0]) for found in keys):
                    return self._differs(name, structural=True)
                keys = [keys[0]] * len(keys)
        for places in zip(*keys, strict=True):
            self._child(first, places[0], tuple(o[k] for o, k in zip(objects, places, strict=True)), name)
        return None

    def _sequence(self, objects: tuple[Sequence, ...], name: str) -> Callable | None:
        first = objects[0]
        if any(len(o) != len(first) for o in objects):
            return self._differs(name, structural=True)
        if isinstance(first, list):
            for i, items in enumerate(zip(*objects, strict=True)):
                self._child(first, i, items, name)
            return None
        return self._walk_tuple(objects, name)

    def _walk_tuple(self, objects: Sequence[tuple], name: str) -> Callable | None:
        first = objects[0]
        builds = [self._walk(items, f"{name}[{i}]") for i, items in enumerate(zip(*objects, strict=True))]
        if not any(builds):
            return None
        make = type(first) if type(first) is tuple else lambda items: type(first)(*items)
        return lambda tensors: make(
            [build(tensors) if build else item for build, item in zip(builds, first, strict=True)]
        )

    def _function(self, objects: tuple[types.FunctionType, ...], name: str) -> Callable | None:
        first = objects[0]
        if any(o.__code__ is not first.__code__ for o in objects):
            return self._differs(name, structural=True)
        for places in zip(*(o.__closure__ or () for o in objects), strict=True):
            try:
                contents = tuple(cell.cell_contents for cell in places)
            except ValueError:  # a cell that is still empty
                continue
            self._child(places[0], _CELL, contents, name)
        build = self._walk(tuple(o.__defaults__ for o in objects), f"{name} defaults")
        if build:
            self._swaps.append((first, _DEFAULTS, first.__defaults__, build))
        return None

    def _attributes(self, objects: tuple[Any, ...], name: str) -> None:
        first = objects[0]
        attributes = [
            {
                key: value
                for key, value in vars(o).items()
                if not (isinstance(o, nn.Module) and key in OF_THE_RUN)
            }
            for o in objects
        ]
        if any(set(found) != set(attributes[0]) for found in attributes):
            return self._differs(name, structural=True)
        for key in attributes[0]:
            self._child(vars(first), key, tuple(found[key] for found in attributes), name)
        return None

    def _child(self, container: Any, key: Any, items: tuple, name: str) -> None:
        inner = name if key is _CELL or key in ("_parameters", "_buffers", "_modules") else f"{name}.{key}"
        build = self._walk(items, inner)
        if build:
            self._swaps.append((container, key, items[0], build))

    def _differs(self, name: str, structural: bool = False) -> Callable[[Sequence[Tensor]], Any]:
        found = Differs(name, structural)
        self.differing.append(found)
        return lambda tensors: found


_CELL, _DEFAULTS = object(), object()


def _put(container: Any, key: Any, value: Any) -> None:
    if key is _CELL:
        container.cell_contents = value
    elif key is _DEFAULTS:
        container.__defaults__ = value
    else:
        container[key] = value


def _partial(func: Callable, args: tuple, keywords: dict) -> functools.partial:
    return functools.partial(func, *args, **keywords)


def alike(lanes: Sequence[Sequence[Any]]) -> list[list[int]]:
    """Groups of lanes whose objects (a sequence of them for each lane) have the same structure."""
    groups: list[list[int]] = []
    for number, objects in enumerate(lanes):
        for group in groups:
            pair = Template()
            for counterparts in zip(lanes[group[0]], objects, strict=True):
                pair.add(counterparts, "")
            if not any(differs.structural for differs in pair.differing):
                group.append(number)
                break
        else:
            groups.append([number])
    return groups
