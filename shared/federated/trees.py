"""Nested client state to one checked safetensors message and back (for disk and between processes)."""

from __future__ import annotations

from mmap import mmap
from typing import Any

import numpy as np
from torch import Tensor

from shared.errors import UserError
from shared.federated import wire


def checked(tree: Any, where: str) -> Any:
    """`tree` with its tensors detached on the CPU and numpy scalars as numbers.

    Raises:
        UserError: a value that a safe checkpoint cannot hold, with the path to it.
    """
    if isinstance(tree, Tensor):
        return tree.detach().cpu()
    if isinstance(tree, np.generic):
        return tree.item()
    if tree is None or isinstance(tree, (bool, int, float, str)):
        return tree
    if isinstance(tree, dict):
        for key in tree:
            if not isinstance(key, (str, int)):
                raise UserError(f"{where} has the key {key!r}; keys of a state are strings or integers.")
        return {key: checked(value, f"{where}[{key!r}]") for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        return type(tree)(checked(value, f"{where}[{i}]") for i, value in enumerate(tree))
    raise UserError(
        f"{where} is a {type(tree).__name__}; a state takes tensors, numbers, strings, None and lists and "
        "dicts of them, so that it can be saved without pickle."
    )


def to_bytes(tree: Any) -> bytes:
    """A checked tree as one message."""
    tensors: dict[str, Tensor] = {}
    skeleton = _describe(tree, tensors)
    return wire.pack(tensors, skeleton)


def from_bytes(message: bytes) -> Any:
    """Raises WireError: the message is damaged."""
    tensors, skeleton = wire.unpack(message)
    return _rebuild(skeleton, tensors)


def from_memory(message: mmap) -> Any:
    """As `from_bytes` for a message that never left the process; tensors are views of it."""
    tensors, skeleton = wire.views(message)
    return _rebuild(skeleton, tensors)


def _describe(tree: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(tree, Tensor):
        name = f"t{len(tensors)}"
        tensors[name] = tree
        return {"t": name}
    if isinstance(tree, dict):
        return {"d": [[key, _describe(value, tensors)] for key, value in tree.items()]}
    if isinstance(tree, (list, tuple)):
        kind = "l" if isinstance(tree, list) else "u"
        return {kind: [_describe(value, tensors) for value in tree]}
    return tree


def _rebuild(node: Any, tensors: dict[str, Tensor]) -> Any:
    if not isinstance(node, dict):
        return node
    ((kind, content),) = node.items()
    if kind == "t":
        return tensors[content]
    if kind == "d":
        return {key: _rebuild(value, tensors) for key, value in content}
    items = [_rebuild(value, tensors) for value in content]
    return items if kind == "l" else tuple(items)
