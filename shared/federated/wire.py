"""Bytes on the wire: a checked frame around a safetensors file. Nothing in it can execute.

Frame: 8 bytes of magic, 16 bytes of checksum, then the safetensors bytes (header length, JSON header, data).
The file is written here in one copy and read by the `safetensors` library, which refuses malformed headers.
"""

from __future__ import annotations

import functools
import json
import struct
from collections.abc import Mapping
from mmap import mmap
from typing import Any

import numpy as np
import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from shared.errors import UserError
from shared.federated.errors import WireError

MAGIC = b"FEDWIRE1"
START = len(MAGIC) + 16
BLOCK = 2**17  # words that a checksum takes at once
HEADER = "(header)"  # the ledger's name for framing, names, shapes and strings
DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
KINDS = {name: kind for kind, name in DTYPES.items()}


def pack(tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> bytes:
    """One message. `meta` is any JSON value; tensors that share their memory are sent once.

    Raises:
        UserError: a tensor whose dtype has no safe format (complex, quantised).
    """
    header: dict[str, Any] = {}
    chunks: list[memoryview] = []
    offset, seen, aliases = 0, {}, {}
    for name, tensor in tensors.items():
        if tensor.dtype not in DTYPES or tensor.layout != torch.strided:
            raise UserError(
                f"'{name}' has dtype {tensor.dtype}, layout {tensor.layout}; a message takes dense "
                f"{', '.join(DTYPES.values())}."
            )
        place = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        if tensor.numel() > 1 and place in seen:
            aliases[name] = seen[place]
            continue
        seen[place] = name
        data = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        header[name] = {
            "dtype": DTYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [offset, offset + data.nbytes],
        }
        offset += data.nbytes
        chunks.append(data.data)
    about = {"meta": meta, **({"aliases": aliases} if aliases else {})}
    text = json.dumps(
        {"__metadata__": {"about": json.dumps(about)}, **header}, separators=(",", ":")
    ).encode()
    text += b" " * (-len(text) % 8)
    body = b"".join([struct.pack("<Q", len(text)), text, *chunks])
    return b"".join([MAGIC, _checksum(body), body])


def unpack(message: bytes) -> tuple[dict[str, Tensor], Any]:
    """Tensors and meta of a message.

    Raises:
        WireError: the message is truncated, was altered, or is no message of this kind.
    """
    if message[: len(MAGIC)] != MAGIC:
        raise WireError(
            f"expected a message that starts with {MAGIC!r}, found {message[: len(MAGIC)]!r} "
            f"({len(message)} bytes)."
        )
    body = memoryview(message)[START:]
    if _checksum(body) != message[len(MAGIC) : START]:
        raise WireError(f"a message of {len(message)} bytes was truncated or altered on its way.")
    try:
        loaded = safetensors.torch.load(bytes(body))
        header = _header(message)
        about = json.loads(header["__metadata__"]["about"])
        tensors = {name: loaded[name] for name in header if name in loaded}  # the library's order is random
        tensors |= {name: tensors[other] for name, other in about.get("aliases", {}).items()}
        return tensors, about["meta"]
    except (SafetensorError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise WireError(f"a message cannot be read: {type(error).__name__}: {error}") from None


def views(message: mmap) -> tuple[dict[str, Tensor], Any]:
    """As `unpack` for a message of this process: tensors are views of `message`, nothing is checked."""
    header = _header(message)
    about = json.loads(header.pop("__metadata__")["about"])
    (length,) = struct.unpack_from("<Q", message, START)
    tensors = {}
    for name, entry in header.items():
        start, end = (START + 8 + length + offset for offset in entry["data_offsets"])
        kind = KINDS[entry["dtype"]]
        aligned = start % kind.itemsize == 0
        source, offset = (message, start) if aligned else (bytearray(message[start:end]), 0)
        count = (end - start) // kind.itemsize
        flat = torch.empty(0, dtype=kind)
        if count:
            flat = torch.frombuffer(source, dtype=kind, count=count, offset=offset)
        tensors[name] = flat.view(entry["shape"])
    tensors |= {name: tensors[other] for name, other in about.get("aliases", {}).items()}
    return tensors, about["meta"]


def sizes(message: bytes) -> dict[str, int]:
    """Bytes of every tensor, parts of one entry ("w#codes", "w#range") together; the sum is the length."""
    found: dict[str, int] = {}
    for name, entry in _header(message).items():
        if name != "__metadata__":
            start, end = entry["data_offsets"]
            base = name.partition("#")[0]
            found[base] = found.get(base, 0) + end - start
    return {HEADER: len(message) - sum(found.values()), **found}


def _header(message: bytes | mmap) -> dict[str, Any]:
    (length,) = struct.unpack_from("<Q", message, START)
    return json.loads(message[START + 8 : START + 8 + length])


@functools.cache
def _positions() -> np.ndarray:
    """1 to `BLOCK`."""
    return np.arange(1, BLOCK + 1, dtype=np.uint64)


def _checksum(body: bytes | memoryview) -> bytes:
    """Two 64-bit sums of the words, plain and weighted by position: flips, swaps and cuts show.

    It guards against accidents, at memory speed; against people, use TLS (see docs/federated.md).
    """
    whole = len(body) // 8 * 8
    words = np.frombuffer(body[:whole], dtype="<u8")
    rest = int.from_bytes(bytes(body[whole:]) + bytes([len(body) % 256]), "little")
    plain, weighted = rest, 31 * rest
    for start in range(0, len(words), BLOCK):
        block = words[start : start + BLOCK]
        total = int(block.sum(dtype=np.uint64))
        plain += total
        weighted += start * total + int(block.dot(_positions()[: len(block)]))
    return struct.pack("<QQ", plain % 2**64, weighted % 2**64)
