"""What travels between server and clients: a bag of named tensors, numbers and strings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from shared.errors import UserError, suggest

Leaf: TypeAlias = Tensor | int | float | bool | str


class Payload:
    """Named, nested entries: `Payload(model=state_dict, prototypes={3: tensor}, num_samples=600)`.

    `payload["model"]` is a dict again (its keys are strings: class 3 is "3"), `payload["num_samples"]` the
    number. Any subset of names is legal. Flat names join the levels with "/", as in "model/net.0.weight".
    """

    def __init__(self, **entries: Any) -> None:
        self.entries: dict[str, Any] = {name: _checked(name, value) for name, value in entries.items()}

    @classmethod
    def from_flat(cls, flat: Mapping[str, Leaf], empty: Iterable[str] = ()) -> Payload:
        """The inverse of `flat()` and `empty()`."""
        payload = cls()
        for name, value in [*flat.items(), *((name, {}) for name in empty)]:
            *groups, leaf = [_unescape(part) for part in name.split("/")]
            node = payload.entries
            for group in groups:
                node = node.setdefault(group, {})
            node[leaf] = value
        return payload

    def flat(self) -> dict[str, Leaf]:
        """Every leaf by its flat name."""
        return {name: value for name, value in _walk(self.entries, "") if not isinstance(value, Mapping)}

    def empty(self) -> list[str]:
        """Flat names of the groups that hold nothing."""
        return [name for name, value in _walk(self.entries, "") if isinstance(value, Mapping)]

    def plus(self, **entries: Any) -> Payload:
        """A payload with these entries added or replaced."""
        added = Payload(**entries)
        added.entries = {**self.entries, **added.entries}
        return added

    def get(self, name: str, default: Any = None) -> Any:
        return self.entries.get(name, default)

    def __getitem__(self, name: str) -> Any:
        try:
            return self.entries[name]
        except KeyError:
            held = ", ".join(self.entries) or "nothing"
            raise UserError(f"{self} lacks '{name}'; it holds {held}.{suggest(name, self.entries)}") from None

    def __contains__(self, name: str) -> bool:
        return name in self.entries

    def __str__(self) -> str:
        return "the message"


class Reply(Payload):
    """What one client sent back."""

    def __init__(self, client: int, payload: Payload) -> None:
        super().__init__()
        self.client, self.entries = client, payload.entries

    def __str__(self) -> str:
        return f"the reply of client {self.client}"


def _checked(name: str, value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _checked(f"{name}/{key}", item) for key, item in value.items()}
    if isinstance(value, Tensor):
        return value.detach()
    if isinstance(value, np.ndarray):
        return torch.from_numpy(np.ascontiguousarray(value))
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, (bool, int, float, str)):
        return value
    raise UserError(
        f"payload entry '{name}' is a {type(value).__name__}; a payload takes tensors, numbers, strings and "
        "dicts of them. Make it a tensor, or a dict with one name an item."
    )


def _walk(node: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    """Leaves and empty groups."""
    for key, value in node.items():
        name = prefix + _escape(key)
        if isinstance(value, Mapping) and value:
            yield from _walk(value, name + "/")
        else:
            yield name, value


def _escape(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1").replace("#", "~2")


def _unescape(key: str) -> str:
    return key.replace("~2", "#").replace("~1", "/").replace("~0", "~")
