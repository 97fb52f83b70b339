"""Every codec really encodes, the receiver needs the bytes alone, and declared properties are true."""

import math

import pytest
import torch

from shared.errors import UserError
from shared.federated import wire
from shared.federated.codecs import Chain, Context, chain
from shared.federated.codecs.delta import Cast, Delta
from shared.federated.codecs.feedback import ErrorFeedback
from shared.federated.codecs.lowrank import LowRank
from shared.federated.codecs.noise import Clip, Gaussian, Laplace
from shared.federated.codecs.quantise import Uniform, pack_bits, unpack_bits
from shared.federated.codecs.sparse import RandomK, TopK
from shared.federated.errors import WireError
from shared.federated.payload import Payload


def context(seed=0, **given):
    return Context(generator=torch.Generator().manual_seed(seed), **given)


def sent(codecs, value, make=None, **given):
    """Encode with one chain, decode with another of the same configuration; also the bytes of "w"."""
    message = chain(codecs).encode(Payload(w=value), context(**given))
    receiver = chain(make() if make else codecs)
    given.pop("seed", None), given.pop("state", None)
    return receiver.decode(message, Context(**given))["w"], wire.sizes(message)["w"]


@pytest.mark.parametrize("bits", range(1, 17))
@pytest.mark.parametrize("count", [0, 1, 7, 64, 1001])
def test_packing_is_exact_in_ceil_bn_over_8_bytes(bits, count):
    codes = torch.randint(0, 2**bits, (count,), generator=torch.Generator().manual_seed(bits))
    packed = pack_bits(codes.to(torch.int32), bits)
    assert packed.dtype == torch.uint8 and packed.numel() == math.ceil(bits * count / 8)
    assert torch.equal(unpack_bits(packed, bits, count).long(), codes)


@pytest.mark.parametrize("bits", [1, 2, 3, 4, 8, 11])
@pytest.mark.parametrize("stochastic", [True, False])
def test_uniform_stays_within_its_bound_and_its_bytes(bits, stochastic):
    value = torch.randn(13, 17)
    got, size = sent(Uniform(bits, stochastic=stochastic), value, lambda: Uniform(bits))
    step = (value.max() - value.min()) / (2**bits - 1)
    assert size == math.ceil(bits * value.numel() / 8) + 8
    assert (got - value).abs().max() <= step * (1 if stochastic else 0.5) * 1.0001
    assert got.shape == value.shape and got.dtype == value.dtype


def test_constant_and_empty_tensors_are_quantised_without_loss():
    for value in (torch.full((5,), -3.5), torch.zeros(0), torch.tensor(2.0)):
        assert torch.equal(sent(Uniform(4), value)[0], value)


UNBIASED = [Uniform(1), Uniform(3), RandomK(0.3), Gaussian(0.7), Laplace(0.5), [Gaussian(0.1), Uniform(2)]]


@pytest.mark.parametrize("codecs", UNBIASED, ids=repr)
def test_declared_unbiased_codecs_pass_a_z_test(codecs):
    assert chain(codecs).unbiased
    value = torch.linspace(-1, 2, 11)
    draws = torch.stack([sent(codecs, value, seed=seed)[0] for seed in range(600)]).double()
    spread = draws.std(0) / math.sqrt(len(draws))
    z = (draws.mean(0) - value) / spread.clamp_min(1e-9)
    assert z.abs().max() < 4.5  # 11 values, p < 1e-4 under the hypothesis


@pytest.mark.parametrize("codec", [Uniform(2, stochastic=False), TopK(0.2), Clip(0.1), Cast(), LowRank(1)])
def test_biased_codecs_say_so(codec):
    assert not codec.unbiased


def test_noise_has_its_declared_spread_and_no_noise_is_the_identity():
    value = torch.zeros(200_000)
    assert sent(Gaussian(0.3), value)[0].std() == pytest.approx(0.3, rel=0.02)
    drawn = sent(Laplace(0.3), value)[0]
    assert drawn.abs().mean() == pytest.approx(0.3, rel=0.02)
    assert drawn.std() == pytest.approx(0.3 * math.sqrt(2), rel=0.03)
    x = torch.randn(9)
    for identity in ([], Gaussian(0), Laplace(0), Clip(math.inf)):
        assert torch.equal(sent(identity, x)[0], x)


def test_clip_bounds_the_joint_norm_or_each_tensor():
    payload = Payload(a=torch.full((4,), 3.0), b=torch.full((9,), 4.0), n=5)
    got = Chain().decode(chain(Clip(2.0)).encode(payload))
    assert math.hypot(got["a"].norm(), got["b"].norm()) == pytest.approx(2.0)
    assert torch.allclose(got["a"] / got["b"][:4], payload["a"] / payload["b"][:4])
    each = Chain().decode(chain(Clip(7.0, each=True)).encode(payload))
    assert torch.equal(each["a"], payload["a"]) and each["b"].norm() == pytest.approx(7.0)
    assert got["n"] == 5  # numbers are no tensors


def test_topk_keeps_the_largest_and_counts_values_and_places():
    value = torch.tensor([[0.1, -5.0, 0.2], [3.0, 0.0, -0.3]])
    got, size = sent(TopK(1 / 3), value)
    assert torch.equal(got, torch.tensor([[0, -5.0, 0], [3.0, 0, 0]])) and size == 2 * (4 + 4)


def test_randomk_costs_its_values_and_one_seed():
    got, size = sent(RandomK(0.25), torch.ones(40))
    assert size == 10 * 4 + 8 and (got != 0).sum() == 10 and got.max() == 4.0


def test_lowrank_is_exact_at_the_rank_and_counts_factors():
    value = torch.randn(30, 2) @ torch.randn(2, 20)
    got, size = sent(LowRank(2), value.view(30, 5, 4))
    assert torch.allclose(got, value.view(30, 5, 4), atol=1e-5) and size == 4 * 2 * (30 + 20)
    small = torch.randn(3, 3)
    assert torch.equal(sent(LowRank(2), small)[0], small)  # factors would be larger


def test_cast_halves_and_delta_is_exact_to_rounding():
    value, received = torch.randn(50), torch.randn(50)
    assert sent(Cast("float16"), value)[1] == 100
    got, _ = sent(Delta(), value, reference=Payload(w=received))
    assert torch.allclose(got, value, rtol=0, atol=2e-7 * 8)
    assert chain(Delta()).needs_reference and not Chain().needs_reference


def test_steps_follow_the_written_order():
    value = torch.full((4,), 10.0)
    given = {"reference": Payload(w=torch.full((4,), 9.0))}
    clipped_update, _ = sent([Delta(), Clip(1.0)], value, **given)
    clipped_value, _ = sent([Clip(1.0), Delta()], value, **given)
    assert torch.allclose(clipped_update, torch.full((4,), 9.5))
    assert torch.allclose(clipped_value, torch.full((4,), 0.5))


def test_chained_representations_encode_the_parts():
    value = torch.randn(800)
    got, size = sent([TopK(0.1), Uniform(4)], value)
    assert size == 80 * 4 + 80 // 2 + 8  # places, packed values, their range
    assert (got != 0).sum() <= 80
    kept = value.abs().topk(80).indices
    step = (value[kept].max() - value[kept].min()) / 15
    assert (got[kept] - value[kept]).abs().max() <= step


def test_only_selects_by_name():
    payload = Payload(model={"conv.weight": torch.randn(64), "fc.weight": torch.randn(64)})
    message = chain(Uniform(1, only=r"conv")).encode(payload, context())
    assert wire.sizes(message)["model/conv.weight"] == 16 and wire.sizes(message)["model/fc.weight"] == 256
    got = chain(Uniform(1, only=r"conv")).decode(message)
    assert torch.equal(got["model"]["fc.weight"], payload["model"]["fc.weight"])


def test_error_feedback_loses_nothing_over_time():
    codec, state = ErrorFeedback(TopK(0.2)), {}
    total = torch.zeros(10)
    value = torch.linspace(0.1, 1, 10)
    for _ in range(200):
        total += sent(codec, value, state=state)[0]
    assert codec.stateful and torch.allclose(total / 200, value, atol=0.05)
    plain = sum(sent(TopK(0.2), value)[0] for _ in range(200)) / 200
    assert (plain == 0).sum() == 8


def test_receiver_with_another_chain_is_told():
    message = chain([Uniform(4)]).encode(Payload(w=torch.randn(8)), context())
    for other in ([], [TopK(0.5)]):
        with pytest.raises(WireError, match="Both ends need the same chain"):
            chain(other).decode(message)


@pytest.mark.parametrize(
    ("codec", "setting"),
    [
        (Uniform, 0),
        (Uniform, 17),
        (TopK, 0),
        (RandomK, 1.5),
        (Clip, 0),
        (Gaussian, -1),
        (Laplace, -1),
        (LowRank, 0),
        (Cast, "int8"),
    ],
)
def test_impossible_settings_are_refused(codec, setting):
    with pytest.raises(UserError):
        codec(setting)
