"""The codec: what travels, what is decoded, from which bytes. Properties 7, 8, 11, and damaged messages."""

import math

import pytest
import torch

from projects.fedwsq.danuq import (
    DANUQ,
    allocated_bits,
    check_allocation,
    dequantise,
    pattern,
    quantise,
    quantised_names,
    uplink_bits,
)
from projects.fedwsq.levels import PUBLISHED, danuq_table
from projects.fedwsq.networks import resnet18
from shared.errors import UserError
from shared.federated import wire
from shared.federated.codecs import Context, chain
from shared.federated.errors import WireError
from shared.federated.payload import Payload

SCALE = 0.02
SHAPES = [(3, 5), (8,), (4, 3, 3, 3), (1,), (2, 0)]


def draw(shape, seed=0, scale=SCALE):
    return scale * torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def received(w, scale=SCALE):
    return Payload(model={"a.weight": w, "b": torch.ones(2)}, scales={"a.weight": torch.tensor(scale)})


def sent(codec, w, update, scale=SCALE, **state):
    """(what the receiver decodes, bytes of the quantised entry, the message)."""
    inbox = received(w, scale)
    reply = Payload(model={"a.weight": w + update, "b": torch.zeros(2)})
    message = chain(codec).encode(reply, Context(inbox, state))
    got = chain(DANUQ(1, only=codec.only, levels=codec.levels)).decode(message, Context(inbox))
    return got["model"]["a.weight"], wire.sizes(message)["model/a.weight"], message


ONLY = pattern(["a.weight"])


@pytest.mark.parametrize("bits", [1, 2, 4])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_receiver_decodes_packed_bits_alone(bits, shape):
    w, update = draw(shape, 1, 1.0), draw(shape)
    got, size, _ = sent(DANUQ(bits, only=ONLY), w, update)
    assert size == math.ceil(bits * update.numel() / 8)
    table = torch.tensor(PUBLISHED[bits])
    x = ((w + update) - w) / SCALE
    middles = (table[1:] + table[:-1]) / 2
    places = (x[..., None] > middles).sum(-1)  # counted, not searched
    torch.testing.assert_close(got, w + SCALE * table[places], rtol=0, atol=0)
    assert got.shape == w.shape


def test_only_the_named_entries_are_quantised_and_the_shared_scale_is_used_both_ways():
    w, update = torch.zeros(64), draw((64,))
    got, _, message = sent(DANUQ(4, only=ONLY), w, update, scale=0.5)
    assert wire.sizes(message)["model/b"] == 8
    levels = 0.5 * torch.tensor(PUBLISHED[4])
    assert all(min(abs(levels - value)) == 0 for value in got)  # multiples of s_g, not of the deviation
    assert (got == 0).sum() > 60  # 0 is the nearest up to 2.9 deviations of the update


def test_quantising_commutes_with_scale():
    update = draw((500,))
    for bits in (1, 2, 4):
        table = danuq_table(bits)
        for c in (0.25, 8.0):  # powers of two: bit for bit
            left = dequantise(quantise(c * update, c * SCALE, table), c * SCALE, table)
            assert torch.equal(left, c * dequantise(quantise(update, SCALE, table), SCALE, table))


def test_an_update_is_not_centred():
    table = danuq_table(2)
    shifted = torch.full((10,), 3 * SCALE)
    assert torch.equal(quantise(shifted, SCALE, table), torch.full((10,), 3, dtype=torch.int32))


def test_no_update_comes_back_as_none_from_two_bits_on():
    w = draw((50,), 1, 1.0)
    for bits in (2, 4):
        assert torch.equal(sent(DANUQ(bits, only=ONLY), w, torch.zeros(50))[0], w)
    got = sent(DANUQ(1, only=ONLY), w, torch.zeros(50))[0]
    torch.testing.assert_close((got - w).abs(), torch.full((50,), 0.7979 * SCALE), rtol=1e-4, atol=1e-7)


def test_the_client_chooses_the_bits_and_the_message_says_them():
    w, update = torch.zeros(40), draw((40,))
    for bits in (1, 2, 4):
        got, size, _ = sent(DANUQ(4, only=ONLY), w, update, bits=bits)
        assert size == 40 * bits // 8
        plain = sent(DANUQ(bits, only=ONLY), w, update)[0]
        assert torch.equal(got, plain)


def test_computed_levels_have_less_error():
    w, update = torch.zeros(20_000), draw((20_000,))
    errors = [
        (sent(DANUQ(4, levels=which, only=ONLY), w, update)[0] - update).square().mean()
        for which in ("published", "lloyd")
    ]
    assert errors[1] < errors[0] < 1.05 * errors[1]


def test_truncated_altered_and_foreign_messages_are_refused():
    w, update = torch.zeros(64), draw((64,))
    codec = DANUQ(2, only=ONLY)
    _, _, message = sent(codec, w, update)
    inbox = Context(received(w))
    for damaged in (message[:-1], message[:40], message[:-3] + b"xyz", b"", message + b"\0"):
        with pytest.raises(WireError):
            chain(codec).decode(damaged, inbox)
    tensors, meta = wire.unpack(message)
    cut = wire.pack({**tensors, "model/a.weight#codes": tensors["model/a.weight#codes"][:-1]}, meta)
    with pytest.raises(WireError, match="64 codes of 2 bits are no 15 bytes"):
        chain(codec).decode(cut, inbox)
    long = wire.pack({**tensors, "model/a.weight#codes": torch.zeros(17, dtype=torch.uint8)}, meta)
    with pytest.raises(WireError, match="no 17 bytes"):
        chain(codec).decode(long, inbox)
    floats = wire.pack({**tensors, "model/a.weight#codes": torch.zeros(16)}, meta)
    with pytest.raises(WireError, match="float32"):
        chain(codec).decode(floats, inbox)
    meta["plan"][0][3]["bits"] = 3
    with pytest.raises(WireError):
        chain(codec).decode(wire.pack(tensors, meta), inbox)
    with pytest.raises(WireError, match="Both ends need the same chain"):
        chain([]).decode(message, inbox)
    stranger = Context(Payload(model={"a.weight": w}))
    with pytest.raises(WireError, match="no scale of 'model/a.weight'"):
        chain(codec).decode(message, stranger)


def test_allocations():
    check_allocation("dynamic")
    with pytest.raises(UserError, match="none, fixed, dynamic, found 'random'"):
        check_allocation("random")
    assert allocated_bits("none", 3, seed=0, client=1, round=2) == 3
    fixed = [[allocated_bits("fixed", 4, seed=0, client=c, round=r) for r in range(9)] for c in range(300)]
    assert all(len(set(row)) == 1 for row in fixed)
    counts = [sum(row[0] == bits for row in fixed) for bits in (1, 2, 4)]
    assert sum(counts) == 300 and min(counts) > 70  # 100 expected, deviation 8
    dynamic = [allocated_bits("dynamic", 4, seed=0, client=5, round=r) for r in range(3000)]
    assert set(dynamic) == {1, 2, 4}
    assert sum(dynamic) / 3000 == pytest.approx(7 / 3, abs=0.1)


def test_uplink_bits_of_the_papers_network():
    """sum numel * B + 32 * layers + 32 * rest, counted here from the layer sizes."""
    net = resnet18(3, 10)
    convolutions = sum(v.numel() for n, v in net.named_parameters() if v.dim() == 4) - 64 * 27
    rest = 11_173_962 - convolutions
    assert len(quantised_names(net)) == 19
    for bits in (1, 2, 4, 7 / 3):
        assert uplink_bits(net, bits) == pytest.approx(convolutions * bits + 32 * 19 + 32 * rest)
    assert 32 * 11_173_962 / uplink_bits(net, 4) == pytest.approx(8, rel=0.02)
