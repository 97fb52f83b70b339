"""Payload to bytes and back. A chain is applied in its written order, and undone in the opposite one.

The receiver has the bytes, the chain's configuration and, for `needs_reference`, the payload that the client
got in this call, nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from shared.errors import UserError
from shared.federated import wire
from shared.federated.errors import WireError
from shared.federated.payload import Leaf, Payload


@dataclass
class Context:
    """What an encoder may use beside the tensors.

    Attributes:
        reference: the payload the client received in this call; both ends know it.
        state: the client's own memory for stateful codecs (the receiver's is empty and unused).
        generator: the randomness of this client, round and call (the receiver's is unused).
    """

    reference: Payload = field(default_factory=Payload)
    state: dict[str, Any] = field(default_factory=dict)
    generator: torch.Generator = field(default_factory=torch.Generator)

    def tensor(self, name: str) -> Tensor | None:
        """The received tensor of this flat name."""
        if not hasattr(self, "_flat"):
            self._flat = self.reference.flat()
        return self._flat.get(name)


class Codec:
    """One step of a chain, applied to every floating point tensor whose flat name matches `only`.

    A transform (clip, noise) overrides `transform` and has nothing to undo; a representation (quantise,
    sparsify) overrides `encode` and `decode`, and may be followed by others on its parts.
    """

    unbiased = True  # E[decode(encode(x))] = x
    stateful = False  # keeps something in the client's state
    needs_reference = False  # uses what the client received

    def __init__(self, only: str = "") -> None:
        """only: a regular expression searched in the flat name; "" takes all."""
        self.only = only

    def transform(self, tensors: dict[str, Tensor], context: Context) -> dict[str, Tensor]:
        return tensors

    def encode(
        self, name: str, value: Tensor, context: Context
    ) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """Parts by suffix and what the decoder needs as JSON; None leaves the tensor as it is."""
        return None

    def decode(self, name: str, parts: dict[str, Tensor], info: dict[str, Any], context: Context) -> Tensor:
        raise NotImplementedError

    def takes(self, name: str, value: Tensor) -> bool:
        return value.is_floating_point() and bool(re.search(self.only, name.partition("#")[0]))

    def __repr__(self) -> str:
        settings = ", ".join(f"{key}={value!r}" for key, value in sorted(vars(self).items()) if value != "")
        return f"{type(self).__name__}({settings})"


class Chain:
    """Codecs in order; the empty chain is the identity."""

    def __init__(self, codecs: Sequence[Codec] = ()) -> None:
        self.codecs = list(codecs)

    @property
    def unbiased(self) -> bool:
        return all(codec.unbiased for codec in self.codecs)

    @property
    def stateful(self) -> bool:
        return any(codec.stateful for codec in self.codecs)

    @property
    def needs_reference(self) -> bool:
        return any(codec.needs_reference for codec in self.codecs)

    def encode(self, payload: Payload, context: Context | None = None) -> bytes:
        """The message. Nothing of `payload` is referred to afterwards."""
        context = context or Context()
        flat = payload.flat()
        tensors = {name: value for name, value in flat.items() if isinstance(value, Tensor)}
        strings, numbers = {}, {}
        for name, value in flat.items():
            if isinstance(value, (bool, str)):
                strings[name] = value
            elif isinstance(value, (int, float)):
                numbers[name] = _number(name, value)
        plan = []
        for position, codec in enumerate(self.codecs):
            tensors, steps = _apply(codec, tensors, context)
            plan += [[position, *step] for step in steps]
        # Python numbers travel as 8 bytes each, under their own name.
        meta = {"strings": strings, "numbers": list(numbers), "plan": plan, "empty": payload.empty()}
        return wire.pack({**tensors, **numbers}, {key: value for key, value in meta.items() if value})

    def decode(self, message: bytes, context: Context | None = None) -> Payload:
        """The payload, from the bytes alone.

        Raises:
            WireError: a damaged message, or one that another chain encoded.
        """
        context = context or Context()
        tensors, meta = wire.unpack(message)
        order = dict.fromkeys(name.partition("#")[0] for name in tensors)
        try:
            for position, name, suffixes, info in reversed(meta.get("plan", [])):
                parts = {suffix: tensors.pop(_part(name, suffix)) for suffix in suffixes}
                tensors[name] = self.codecs[position].decode(name, parts, info, context)
            flat: dict[str, Leaf] = {**tensors, **meta.get("strings", {})}
            flat |= {name: flat[name].item() for name in meta.get("numbers", [])}
            ordered = {name: flat[name] for name in [*order, *meta.get("strings", {})]}
            return Payload.from_flat(ordered, meta.get("empty", []))
        except (LookupError, TypeError, AttributeError, ValueError, RuntimeError) as error:
            raise WireError(
                f"a message does not fit its receiver's {self} ({type(error).__name__}: {error}). "
                "Both ends need the same chain."
            ) from None

    def __repr__(self) -> str:
        return f"Chain({self.codecs})"


def chain(codecs: Chain | Codec | Sequence[Codec] | None) -> Chain:
    """A chain from what is convenient to write."""
    if isinstance(codecs, Chain):
        return codecs
    return Chain([codecs] if isinstance(codecs, Codec) else codecs or [])


def _apply(codec: Codec, tensors: dict[str, Tensor], context: Context) -> tuple[dict[str, Tensor], list]:
    taken = {name: value for name, value in tensors.items() if codec.takes(name, value)}
    changed = {**tensors, **codec.transform(taken, context)} if taken else tensors
    encoded: dict[str, Tensor] = {}
    steps = []
    for name, value in changed.items():
        result = codec.encode(name, value, context) if name in taken else None
        if result is None:
            encoded[name] = value
            continue
        parts, info = result
        encoded |= {_part(name, suffix): part for suffix, part in parts.items()}
        steps.append([name, list(parts), info])
    return encoded, steps


def _part(name: str, suffix: str) -> str:
    return f"{name}#{suffix}" if suffix else name


def _number(name: str, value: int | float) -> Tensor:
    if isinstance(value, float):
        return torch.tensor(value, dtype=torch.float64)
    if not -(2**63) <= value < 2**63:
        raise UserError(f"payload entry '{name}' is {value}; whole numbers must fit 64 bits.")
    return torch.tensor(value, dtype=torch.int64)
