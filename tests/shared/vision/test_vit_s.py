"""The embedded ViT-S: weights at their places, other sizes, the reader of ONNX files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from shared.errors import UserError
from shared.vision import vit_s


def test_all_weights_arrive_and_the_features_are_those_of_the_shipped_graph() -> None:
    """The expected numbers are of the graph itself, run once with onnxruntime on this input at 224 pixels."""
    vit = vit_s.load(224)
    assert sum(parameter.numel() for parameter in vit_s.weights().values()) == 22_056_192
    grid = torch.linspace(-1, 1, 224)
    image = torch.stack(
        [grid[:, None] * grid[None], grid[:, None].expand(-1, 224).sin(), -grid.expand(224, -1)]
    )
    with torch.inference_mode():
        tokens = vit.forward_features(image[None])[0]
    assert tokens.shape == (257, 384)
    torch.testing.assert_close(tokens[0, :4], torch.tensor(CLS), atol=1e-4, rtol=0)
    torch.testing.assert_close(tokens[100, :4], torch.tensor(PATCH), atol=1e-4, rtol=0)


CLS = [-0.24173, 0.82527, 1.9962, -4.25364]
PATCH = [0.77292, 1.68056, 0.32556, -4.26253]


def test_fewer_blocks_and_other_sizes() -> None:
    vit = vit_s.load(56, blocks=2)
    assert len(vit.blocks) == 2 and vit.pos_embed.shape == (1, 17, 384) and not vit.training
    with torch.inference_mode():
        assert vit(torch.zeros(1, 3, 56, 56)).shape == (1, 384)
    for size, blocks in [(100, 12), (56, 0), (56, 13), (0, 3)]:
        with pytest.raises(UserError, match=f"multiple of 14 and 1 to 12 blocks, found {size} and {blocks}"):
            vit_s.load(size, blocks)


def varint(value: int) -> bytes:
    out = b""
    while value > 127:
        out, value = out + bytes([value & 127 | 128]), value >> 7
    return out + bytes([value])


def field(number: int, content: bytes | int) -> bytes:
    if isinstance(content, int):
        return varint(number << 3) + varint(content)
    return varint(number << 3 | 2) + varint(len(content)) + content


def tensor(name: str, values: np.ndarray, packed: bool) -> bytes:
    dims = b"".join(map(varint, values.shape))
    shape = field(1, dims) if packed else b"".join(field(1, size) for size in values.shape)
    kind = {np.dtype("<f4"): 1, np.dtype("<i8"): 7}[values.dtype]
    return field(5, shape + field(2, kind) + field(8, name.encode()) + field(9, values.tobytes()))


@pytest.mark.parametrize("packed", [True, False])
def test_a_graph_written_here_is_read_back(tmp_path: Path, packed: bool) -> None:
    values = np.arange(600, dtype="<f4").reshape(2, 300)
    node = field(1, b"images") + field(1, b"big") + field(2, b"out") + field(3, b"/a/MatMul")
    graph = (
        tensor("big", values, packed) + tensor("whole", np.arange(3, dtype="<i8"), packed) + field(1, node)
    )
    path = tmp_path / "graph.onnx"
    path.write_bytes(field(1, 8) + varint(2 << 3 | 5) + b"abcd" + field(7, graph))
    tensors, inputs = vit_s.read_onnx(path)
    assert list(tensors) == ["big"] and inputs == {"/a/MatMul": ["images", "big"]}
    np.testing.assert_array_equal(tensors["big"], values)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(UserError, match="no readable ONNX graph.*ends within a field"):
        vit_s.read_onnx(path)
    path.write_bytes(b"")
    with pytest.raises(UserError, match="no readable ONNX graph"):
        vit_s.read_onnx(path)
