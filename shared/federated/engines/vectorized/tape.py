"""A training step as the operations that it comes down to, to be run again without the Python around them.

Below `vmap` and autograd a step of many lanes is some dozens of large operations. Deriving them anew in every
step takes longer than computing them when the model is small. So the first two steps are recorded; when they
agree in every operation, number and foreign tensor, the record is played from then on.
"""

from __future__ import annotations

import dis
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

Outputs = Sequence[Tensor | None]
aten = torch.ops.aten
SAME = {aten.detach.default, aten.view.default, aten._unsafe_view.default, aten.expand.default}


class Repeated:
    """A function of tensors that is called again and again and does the same each time.

    Args:
        before: what such a function came down to elsewhere; then one step is enough to know this one.
    """

    def __init__(self, before: Tape | None = None) -> None:
        self.tape: Tape | None = None
        self.reason = ""  # why it is never played
        self._last, self._steps = before, 0

    def run(self, function: Callable[[], Outputs], inputs: Sequence[Tensor]) -> Outputs:
        """`function()`, which reads `inputs` and may change them in place; played once it is known."""
        if self.tape is not None:
            return self.tape.play(inputs)
        if self.reason:
            return function()
        self._steps += 1
        with Recorder(inputs) as recorder:
            outputs = function()
        try:
            tape = recorder.tape(outputs)
        except Untaped as reason:
            self.refuse(str(reason))
            return outputs
        difference = self._last.difference(tape) if self._last is not None else ""
        if self._last is not None and not difference:
            self.tape = tape
        elif self._steps == 2:
            self.refuse(difference)
        self._last = tape
        return outputs

    def refuse(self, reason: str) -> None:
        """Never play it: it depends on more than its inputs."""
        self.tape, self._last, self.reason = None, None, reason


class Untaped(Exception):
    """The record would not do what the function did."""


@dataclass(frozen=True)
class Place:
    """Where a tensor is while a tape plays: among the inputs, foreign tensors and results, in that order."""

    number: int


@dataclass
class Operation:
    """`args` and `kwargs` hold a `Place` for every tensor; `results` are the places of what comes out."""

    function: Callable
    args: tuple
    kwargs: dict[str, Any]
    results: tuple[Place | None, ...] | Place | None


class Tape:
    """Args:
    operations: in their order.
    foreign: tensors that were neither given nor made; by place.
    literals: places of those that were written out in the code.
    outputs: places; None for a missing one.
    """

    def __init__(
        self,
        operations: list[Operation],
        foreign: dict[int, Tensor],
        literals: set[int],
        outputs: Sequence[Place | None],
        inputs: int,
        places: int,
    ) -> None:
        self.operations, self.foreign, self.outputs = operations, foreign, outputs
        self.literals = literals
        self._inputs, self._places = inputs, places
        self._program = [(*_compiled(o), dead) for o, dead in zip(operations, self._dead(), strict=True)]

    @torch.no_grad()
    def play(self, inputs: Sequence[Tensor]) -> Outputs:
        """The outputs for these inputs."""
        held: list[Any] = [None] * self._places
        held[: self._inputs] = inputs
        for place, tensor in self.foreign.items():
            held[place] = tensor
        for function, fill, kwargs, put, dead in self._program:
            put(held, function(*fill(held), **(kwargs(held) if kwargs else {})))
            for place in dead:
                held[place] = None
        return [None if place is None else held[place.number] for place in self.outputs]

    def difference(self, other: Tape) -> str:
        """What differs from `other`; "" when nothing does."""
        mine, theirs = self.operations, other.operations
        for a, b in zip(mine, theirs, strict=False):
            if a != b:
                return f"{a.function} is called in different ways"
        if len(mine) != len(theirs) or self.outputs != other.outputs:
            return "two steps come down to different operations"
        for place, tensor in self.foreign.items():
            now = other.foreign.get(place)
            if now is not tensor and not (place in self.literals and torch.equal(now, tensor)):
                return f"a tensor {tuple(tensor.shape)} comes from elsewhere, another one in each step"
        return ""

    def _dead(self) -> list[list[int]]:
        """For each operation the places that nothing reads after it."""
        kept = {place.number for place in self.outputs if place is not None}
        last: dict[int, int] = {}
        for number, operation in enumerate(self.operations):
            for place in (*_places(operation.args), *_places(operation.kwargs), *_places(operation.results)):
                last[place] = number
        dead: list[list[int]] = [[] for _ in self.operations]
        for place, number in last.items():
            if place not in kept:
                dead[number].append(place)
        return dead


class Recorder(TorchDispatchMode):
    """Inside, every operation that reaches a kernel is written down."""

    def __init__(self, inputs: Sequence[Tensor]) -> None:
        super().__init__()
        self._alive: list[Tensor] = []  # an `id` means nothing once its tensor is gone
        self._places: dict[int, Place] = {}
        self._count = 0
        self._foreign: dict[int, Tensor] = {}
        self._storages: set[int] = set()
        self._literals: set[int] = set()
        self._operations: list[Operation] = []
        self._reason = ""
        for tensor in inputs:
            self._enter(tensor)
        self._inputs = len(inputs)

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is aten.lift_fresh.default:  # a literal; what happens to it is not to happen to the kept one
            args, func = (args[0].clone(),), aten.clone.default
            self._literals.add(self._place(args[0]).number)
        at = _mapped(args, self._place), _mapped(kwargs, self._place)
        result = func(*args, **kwargs)
        if func in SAME and _looks_like(result, args[0]):
            self._keep(result, self._place(args[0]))
        else:
            self._operations.append(Operation(func, *at, self._results(func, result)))
        return result

    def tape(self, outputs: Outputs) -> Tape:
        """What was recorded, with these outputs.

        Raises:
            Untaped: something happened that operations on tensors do not show.
        """
        places = [None if output is None else self._place(output) for output in outputs]
        if self._reason:
            raise Untaped(self._reason)
        return Tape(self._operations, self._foreign, self._literals, places, self._inputs, self._count)

    def _enter(self, tensor: Tensor) -> Place:
        self._storages.add(tensor.untyped_storage()._cdata)
        return self._keep(tensor)

    def _keep(self, tensor: Tensor, place: Place | None = None) -> Place:
        """At `place`, as another look at what is there, or at a new one."""
        if place is None:
            place, self._count = Place(self._count), self._count + 1
        self._places[id(tensor)] = place
        self._alive.append(tensor)
        return place

    def _place(self, tensor: Tensor) -> Place:
        found = self._places.get(id(tensor))
        if found is None:
            if tensor.untyped_storage()._cdata in self._storages:
                self._reason = "a view was made out of sight"
            found = self._keep(tensor)
            self._foreign[found.number] = tensor
        return found

    def _results(self, func: Any, result: Any) -> Any:
        if isinstance(result, Tensor):
            return self._places.get(id(result)) or self._enter(result)
        if isinstance(result, (tuple, list)) and all(r is None or isinstance(r, Tensor) for r in result):
            return tuple(None if r is None else self._places.get(id(r)) or self._enter(r) for r in result)
        if result is not None:
            self._reason = f"{func} gives a value to Python"
        return None


def reads_index(training_step: Callable) -> bool:
    """Whether a step may do something else for another `batch_idx`."""
    function = getattr(training_step, "__func__", training_step)
    code, place = getattr(function, "__code__", None), 1 if function is training_step else 2
    if code is None or code.co_argcount <= place:
        return True
    name = code.co_varnames[place]
    return name in code.co_cellvars or any(
        step.argval == name or (isinstance(step.argval, tuple) and name in step.argval)
        for step in dis.get_instructions(code)
    )


def _looks_like(view: Tensor, source: Tensor) -> bool:
    """Whether one is as good as the other once autograd is over."""
    return view.shape == source.shape and view.stride() == source.stride()


def _mapped(tree: Any, function: Callable[[Tensor], Any]) -> Any:
    if isinstance(tree, Tensor):
        return function(tree)
    if isinstance(tree, (tuple, list)):
        return type(tree)([_mapped(item, function) for item in tree])
    if isinstance(tree, dict):
        return {key: _mapped(value, function) for key, value in tree.items()}
    return tree


def _places(tree: Any) -> list[int]:
    if isinstance(tree, Place):
        return [tree.number]
    if isinstance(tree, dict):
        tree = tuple(tree.values())
    return [place for item in tree for place in _places(item)] if isinstance(tree, (tuple, list)) else []


def _compiled(operation: Operation) -> tuple[Callable, Callable, Callable | None, Callable]:
    """The function, what fills its arguments and keywords from what is held, and what puts its results."""
    args, kwargs, results = operation.args, operation.kwargs, operation.results
    return operation.function, _filler(args), _filler(kwargs) if kwargs else None, _putter(results)


def _filler(tree: Any) -> Callable[[list], Any]:
    if isinstance(tree, Place):
        number = tree.number
        return lambda held: held[number]
    if not _places(tree):
        return lambda held: tree
    if isinstance(tree, dict):
        parts = {key: _filler(value) for key, value in tree.items()}
        return lambda held: {key: part(held) for key, part in parts.items()}
    fillers = [_filler(item) for item in tree]
    kind = type(tree)
    return lambda held: kind([fill(held) for fill in fillers])


def _putter(results: Any) -> Callable[[list, Any], None]:
    def put(held: list, result: Tensor) -> None:
        held[results.number] = result

    def put_all(held: list, found: Sequence[Tensor | None]) -> None:
        for place, result in zip(results, found, strict=True):
            if place is not None:
                held[place.number] = result

    if results is None:
        return lambda held, result: None
    return put if isinstance(results, Place) else put_all
