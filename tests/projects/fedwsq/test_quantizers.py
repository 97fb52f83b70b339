"""The quantisers that FedWSQ is compared with."""

import math

import pytest
import torch

from projects.fedwsq.baselines.quantizers import QSGD, AbsMax, quantizer
from projects.fedwsq.levels import KINDS
from shared.errors import UserError
from shared.federated import wire
from shared.federated.codecs import Context, chain
from shared.federated.codecs.delta import Delta
from shared.federated.errors import WireError
from shared.federated.payload import Payload

CASES = [(kind, bits) for kind, tables in KINDS.items() for bits in tables if bits in (1, 2, 4)]


def sent(codec, value, seed=0):
    stream = torch.Generator().manual_seed(seed)
    message = chain(codec).encode(Payload(w=value), Context(generator=stream))
    return chain(codec).decode(message)["w"], wire.sizes(message)["w"], message


@pytest.mark.parametrize(("kind", "bits"), CASES)
@pytest.mark.parametrize("shape", [(7, 3), (33,), (2, 3, 3, 3)])
def test_levels_times_the_largest_value(kind, bits, shape):
    value = torch.randn(shape, generator=torch.Generator().manual_seed(3))
    got, size, _ = sent(AbsMax(kind, bits), value)
    assert size == math.ceil(bits * value.numel() / 8) + 4 and got.shape == value.shape
    levels = torch.tensor(KINDS[kind][bits]) * value.abs().max()
    wanted = levels[(value[..., None] - levels).abs().argmin(-1)]
    torch.testing.assert_close((got - value).abs(), (wanted - value).abs(), rtol=1e-5, atol=1e-7)
    again = sent(AbsMax(kind, bits), got)[0]
    torch.testing.assert_close(again, got, rtol=1e-6, atol=0)


def test_one_uniform_bit_is_the_sign():
    value = torch.tensor([0.5, -0.1, 2.0, -0.7])
    assert torch.equal(sent(AbsMax("uniform", 1), value)[0], torch.tensor([2.0, -2.0, 2.0, -2.0]))


def test_zeros_and_nothing():
    for codec in (AbsMax("nf", 4), AbsMax("uniform", 1), QSGD(2)):
        assert torch.equal(sent(codec, torch.zeros(5))[0].abs(), torch.zeros(5))
        assert sent(codec, torch.zeros(0, 3))[0].shape == (0, 3)


@pytest.mark.parametrize("bits", [1, 2, 4])
def test_qsgd_is_unbiased_within_its_variance_and_sends_one_more_bit(bits):
    value = torch.linspace(-1, 2, 12)
    draws = torch.stack([sent(QSGD(bits), value, seed)[0] for seed in range(800)]).double()
    z = (draws.mean(0) - value) / (draws.std(0) / 800**0.5).clamp_min(1e-9)
    assert z.abs().max() < 4.5
    step = value.norm() / 2 ** (bits - 1)
    grid = draws / step
    assert (grid - grid.round()).abs().max() < 1e-5
    expected = sum(  # E ||Q(x) - x||^2 of stochastic rounding, value by value
        float(step) ** 2 * (s := abs(float(x / step)) % 1) * (1 - s) for x in value
    )
    assert float((draws - value).square().sum(1).mean()) == pytest.approx(expected, rel=0.15)
    assert sent(QSGD(bits), value)[1] == math.ceil((bits + 1) * 12 / 8) + 4


def test_after_delta_the_update_is_what_is_quantised():
    w, update = torch.full((64,), 5.0), torch.linspace(-0.1, 0.1, 64)
    codecs = [Delta("^model/w$"), quantizer("uniform", 4, "^model/w$")]
    inbox = Context(Payload(model={"w": w, "b": w}))
    message = chain(codecs).encode(Payload(model={"w": w + update, "b": w + 1}), inbox)
    got = chain(codecs).decode(message, inbox)["model"]
    assert wire.sizes(message)["model/w"] == 32 + 4 and torch.equal(got["b"], w + 1)
    assert (got["w"] - w - update).abs().max() < 0.1 / 15 + 1e-6


def test_damaged_codes_are_refused():
    for codec in (AbsMax("nf", 4), QSGD(2)):
        tensors, meta = wire.unpack(sent(codec, torch.randn(16))[2])
        cut = wire.pack({**tensors, "w#codes": tensors["w#codes"][1:]}, meta)
        with pytest.raises(WireError, match="16 codes"):
            chain(codec).decode(cut)
    tensors, meta = wire.unpack(sent(QSGD(2), torch.randn(16))[2])
    with pytest.raises(WireError, match="above 4"):
        chain(QSGD(2)).decode(wire.pack({**tensors, "w#codes": torch.full((6,), 255).byte()}, meta))


def test_quantisers_that_do_not_exist():
    with pytest.raises(UserError, match="fp levels of 4 bits; quantizer.bits is 2"):
        quantizer("fp", 2)
    with pytest.raises(UserError, match="1 to 8 bits, found 0"):
        quantizer("qsgd", 0)
