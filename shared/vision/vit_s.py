"""The embedded ViT-S/14 (`vit-s` of the catalogue) as timm's `vit_small_patch14_dinov2`.

It is of DINOv2's form, shipped inside a saliency model: features of blocks 7 to 9 tell classes apart better
than those of the last blocks. The package holds an ONNX graph, of which only the weights are read here. Their
messages are few, so the file is read as protocol-buffer fields without the package `onnx`.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from shared.data.catalogue import fetch
from shared.errors import UserError
from shared.vision.tokens import resize_positions

MODEL, SIDE, PATCH = "vit_small_patch14_dinov2", 37, 14
# Field numbers of onnx.proto: ModelProto.graph, GraphProto.{node, initializer}, NodeProto.{input, name},
# TensorProto.{dims, data_type, name, raw_data}.
GRAPH, NODE, INITIALIZER, NODE_INPUT, NODE_NAME = 7, 1, 5, 1, 3
DIMS, DATA_TYPE, TENSOR_NAME, RAW = 1, 2, 8, 9
FLOAT32, LENGTH_DELIMITED, VARINT = 1, 2, 0


def load(image_size: int = 518, blocks: int = 12) -> nn.Module:
    """The pretrained network for square images, in evaluation mode, without a head: it returns CLS (B, 384).

    Args:
        image_size: pixels of a side, a multiple of 14; the 37 x 37 positions are resampled (bicubic, without
            antialiasing, as the shipped graph does).
        blocks: only the first so many are kept; the final normalisation follows the last of them.

    Raises:
        UserError: the package cannot be had, or a size or number of blocks that it does not allow.
    """
    import timm

    if image_size % PATCH or image_size < PATCH or not 1 <= blocks <= 12:
        raise UserError(
            f"expected an image size that is a multiple of {PATCH} and 1 to 12 blocks, found {image_size} "
            f"and {blocks}."
        )
    state = dict(weights())
    side = image_size // PATCH
    state["pos_embed"] = resize_positions(state["pos_embed"], (SIDE, SIDE), (side, side), offset=0)
    vit = timm.create_model(MODEL, pretrained=False, num_classes=0, img_size=image_size)
    vit.load_state_dict(state)
    vit.blocks = vit.blocks[:blocks]
    return vit.eval()


@functools.lru_cache(maxsize=1)
def weights() -> dict[str, Tensor]:
    """State dict of timm's model at 518 pixels. Shared by all callers: read only."""
    files = sorted(fetch("vit-s").rglob("*.onnx"))
    if len(files) != 1:
        raise UserError(f"expected one .onnx file in the set vit-s, found {len(files)}.")
    return to_timm(*read_onnx(files[0]))


def to_timm(tensors: dict[str, Tensor], inputs: dict[str, list[str]]) -> dict[str, Tensor]:
    """Names of timm for the tensors of the graph; query, key and value become one matrix.

    Args:
        tensors: initialisers by name.
        inputs: names of the inputs of each node, by the node's name.
    """

    def dense(node: str) -> Tensor:
        """The matrix of a product, which the graph holds transposed under a number for a name."""
        name = next(name for name in inputs[f"/backbone/{node}/MatMul"] if name in tensors)
        return tensors[name].T.contiguous()

    loose = [tensor for name, tensor in tensors.items() if not name.startswith("backbone.")]
    positions = [tensor for tensor in loose if tensor.ndim == 3 and tensor.shape[2:] == (384,)]
    by_length = {tensor.shape[1]: tensor for tensor in positions if tensor.shape[0] == 1}
    own = {name.removeprefix("backbone."): tensor for name, tensor in tensors.items()}
    state = {
        "cls_token": own["embeddings.cls_token"],
        "pos_embed": torch.cat([by_length[1], by_length[SIDE * SIDE]], dim=1),
        "patch_embed.proj.weight": own["embeddings.patch_embeddings.projection.weight"],
        "patch_embed.proj.bias": own["embeddings.patch_embeddings.projection.bias"],
        "norm.weight": own["layernorm.weight"],
        "norm.bias": own["layernorm.bias"],
    }
    depth = 1 + max(int(match[1]) for name in own if (match := re.match(r"encoder\.layer\.(\d+)\.", name)))
    for number in range(depth):
        here, there = f"encoder.layer.{number}", f"blocks.{number}"
        node = f"encoder/layer.{number}"
        three = ("query", "key", "value")
        state |= {
            f"{there}.attn.qkv.weight": torch.cat([dense(f"{node}/attention/attention/{n}") for n in three]),
            f"{there}.attn.qkv.bias": torch.cat([own[f"{here}.attention.attention.{n}.bias"] for n in three]),
            f"{there}.attn.proj.weight": dense(f"{node}/attention/output/dense"),
            f"{there}.attn.proj.bias": own[f"{here}.attention.output.dense.bias"],
            f"{there}.mlp.fc1.weight": dense(f"{node}/mlp/fc1"),
            f"{there}.mlp.fc2.weight": dense(f"{node}/mlp/fc2"),
            f"{there}.ls1.gamma": own[f"{here}.layer_scale1.lambda1"],
            f"{there}.ls2.gamma": own[f"{here}.layer_scale2.lambda1"],
        }
        for part in ("norm1.weight", "norm1.bias", "norm2.weight", "norm2.bias"):
            state[f"{there}.{part}"] = own[f"{here}.{part}"]
        for part in ("mlp.fc1.bias", "mlp.fc2.bias"):
            state[f"{there}.{part}"] = own[f"{here}.{part}"]
    return state


def read_onnx(path: Path) -> tuple[dict[str, Tensor], dict[str, list[str]]]:
    """The float32 initialisers of an ONNX file by name, and the names of the inputs of each of its nodes.

    Raises:
        UserError: the file is damaged or no ONNX graph.
    """
    tensors, inputs = {}, {}
    try:
        graph = next(value for number, value in _fields(memoryview(path.read_bytes())) if number == GRAPH)
        for number, value in _fields(graph):
            if number == INITIALIZER:
                parts = _grouped(value)
                if parts[DATA_TYPE] == [FLOAT32]:
                    values = np.frombuffer(parts[RAW][0], "<f4").reshape(_dimensions(parts.get(DIMS, [])))
                    tensors[_text(parts[TENSOR_NAME][0])] = torch.from_numpy(values.copy())
            elif number == NODE:
                parts = _grouped(value)
                inputs[_text(parts[NODE_NAME][0])] = [_text(name) for name in parts.get(NODE_INPUT, [])]
    except (ValueError, IndexError, KeyError, StopIteration, TypeError) as error:
        raise UserError(f"{path} is no readable ONNX graph ({type(error).__name__}: {error}).") from None
    return tensors, inputs


def _fields(message: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """Number and value of each field of a protocol-buffer message."""
    place = 0
    while place < len(message):
        key, place = _varint(message, place)
        kind = key & 7
        if kind == VARINT:
            value, place = _varint(message, place)
            yield key >> 3, value
            continue
        length, place = _varint(message, place) if kind == LENGTH_DELIMITED else ({1: 8, 5: 4}[kind], place)
        if place + length > len(message):
            raise ValueError("the file ends within a field")
        yield key >> 3, message[place : place + length]
        place += length


def _varint(message: memoryview, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[place]
        value |= (byte & 127) << shift
        place, shift = place + 1, shift + 7
        if byte < 128:
            return value, place


def _grouped(message: memoryview) -> dict[int, list]:
    parts: dict[int, list] = {}
    for number, value in _fields(message):
        parts.setdefault(number, []).append(value)
    return parts


def _dimensions(values: list) -> list[int]:
    """Of a repeated integer field, which may come packed into one run of bytes."""
    sizes = []
    for value in values:
        if isinstance(value, int):
            sizes.append(value)
            continue
        place = 0
        while place < len(value):
            size, place = _varint(value, place)
            sizes.append(size)
    return sizes


def _text(value: memoryview) -> str:
    return bytes(value).decode("utf-8")
