"""LEM: phase of the feature, amplitude of its random convolution."""

import numpy as np
import pytest
import torch
from scipy.signal import correlate2d
from torch.utils.flop_counter import FlopCounterMode

from projects.cdfss_sharpness.disturbances import MixStyle, RandomConvolution, disturbance
from projects.cdfss_sharpness.lem import LEM, convolve, enhance, matched, random_kernel
from shared.errors import UserError
from shared.vision.fourier import amplitude_and_phase

SIZES = [(2, 3, 8, 8), (1, 4, 7, 11), (3, 2, 25, 25), (1, 1, 1, 5)]


def feature(shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def kernel(channels, seed=1):
    stream = torch.Generator().manual_seed(seed)
    return 0.1 * torch.randn(channels, channels, 3, 3, generator=stream, dtype=torch.float64)


@pytest.mark.parametrize("shape", SIZES)
def test_identity_kernel_returns_the_feature(shape):
    theta = torch.zeros(shape[1], shape[1], 3, 3)
    theta[:, :, 1, 1] = torch.eye(shape[1])
    features = feature(shape).float()
    torch.testing.assert_close(enhance(features, theta), features, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("shape", SIZES)
def test_phase_is_kept_and_amplitude_is_that_of_the_convolution(shape):
    features, theta = feature(shape), kernel(shape[1])
    result = enhance(features, theta)
    amplitude, phase = amplitude_and_phase(result, (-2, -1))
    wanted, _ = amplitude_and_phase(convolve(features, theta), (-2, -1))
    _, own = amplitude_and_phase(features, (-2, -1))
    torch.testing.assert_close(amplitude, wanted, atol=1e-9, rtol=1e-9)
    apart = torch.remainder(phase - own + torch.pi, 2 * torch.pi) - torch.pi
    assert apart[wanted > 1e-6].abs().max() < 1e-3


def test_against_numpy_and_scipy():
    features, theta = feature((1, 3, 9, 6)), kernel(3)
    f, t = features[0].numpy(), theta.numpy()
    moved = np.stack([sum(correlate2d(f[i], t[o, i], "same") for i in range(3)) for o in range(3)])
    full = np.abs(np.fft.fft2(moved)) * np.exp(1j * np.angle(np.fft.fft2(f)))
    back = np.fft.ifft2(full)
    np.testing.assert_allclose(enhance(features, theta)[0].numpy(), back.real, atol=1e-10)
    assert np.abs(back.imag).max() < 1e-5 * np.abs(back.real).max()


def test_positive_scale_passes_through():
    features, theta = feature((2, 3, 6, 5)), kernel(3)
    result = enhance(features, theta)
    torch.testing.assert_close(enhance(3.5 * features, theta), 3.5 * result)
    torch.testing.assert_close(enhance(features, -2 * theta), 2 * result)


def test_energy_is_about_nine_c_sigma_squared():
    torch.manual_seed(0)
    features = torch.randn(1, 64, 32, 32)
    sizes = [enhance(features, random_kernel(features, 0.1, 3)).square().sum() for _ in range(50)]
    ratio = float(torch.stack(sizes).mean() / features.square().sum())
    assert ratio == pytest.approx(9 * 64 * 0.01, rel=0.2)


def test_evaluation_is_the_identity_bit_for_bit():
    features = feature((2, 3, 6, 5)).float()
    for module in (LEM(), RandomConvolution(), MixStyle()):
        assert module.eval()(features) is features
    assert LEM(prob=0.0).train()(features) is features


def test_one_kernel_for_the_batch_and_a_new_one_each_time():
    features = feature((1, 3, 6, 5)).float()
    module = LEM().train()
    twice = module(features.expand(2, -1, -1, -1))
    torch.testing.assert_close(twice[0], twice[1])
    assert not torch.allclose(twice[:1], module(features), atol=1e-3)


def test_rms_matching():
    features = feature((3, 8, 10, 7)).float() * torch.tensor([0.1, 1, 10.0])[:, None, None, None]
    result = LEM(match_rms=True).train()(features)
    rms = [each.square().mean((1, 2, 3)).sqrt() for each in (result, features)]
    torch.testing.assert_close(*rms)
    literal = LEM().train()(features)
    assert literal.square().mean() > 0  # and of another size
    assert not torch.allclose(literal.square().mean(), features.square().mean(), rtol=0.05)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_at_sizes_that_are_no_power_of_two(dtype):
    features = feature((2, 3, 25, 50)).to(dtype)
    theta = kernel(3)
    result = enhance(features, theta)
    assert result.dtype == dtype and result.isfinite().all()
    torch.testing.assert_close(result.float(), enhance(features.float(), theta), atol=0.02, rtol=0.02)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = enhance(features.float(), theta)
    torch.testing.assert_close(inside, enhance(features.float(), theta))


def test_gradient_reaches_the_feature():
    """Also where a channel is dead: its spectrum is zero and has no phase."""
    features = feature((1, 3, 7, 5))
    features[:, 1] = 0
    features.requires_grad_()
    enhance(features, kernel(3)).square().sum().backward()
    assert features.grad.isfinite().all() and features.grad.abs().sum() > 0
    small = feature((1, 2, 4, 3)).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: enhance(x, kernel(2)), (small,))


def test_constant_and_zero_features():
    constant = torch.ones(1, 2, 6, 6)
    assert enhance(constant, kernel(2)).isfinite().all()
    assert torch.equal(matched(torch.zeros(1, 2, 3, 3), torch.zeros(1, 2, 3, 3)), torch.zeros(1, 2, 3, 3))


def test_cost(monkeypatch):
    """No parameter; 9 C^2 h w multiply-adds and three transforms for a batch of one."""
    assert not list(LEM().parameters()) and not list(LEM().buffers())
    features = torch.randn(1, 5, 6, 7)
    calls = []
    for name in ("fftn", "ifftn"):
        real = getattr(torch.fft, name)
        monkeypatch.setattr(torch.fft, name, lambda *a, real=real, **k: (calls.append(1), real(*a, **k))[1])
    with FlopCounterMode(display=False) as counter:
        LEM().train()(features)
    assert counter.get_total_flops() == 2 * 9 * 5**2 * 6 * 7
    assert len(calls) == 3


def test_mixstyle_mixes_channel_statistics_only():
    torch.manual_seed(3)
    features = torch.randn(4, 5, 6, 7) * 3 + 1
    mixed = MixStyle().train()(features)

    def shape(x):
        return (x - x.mean((2, 3), keepdim=True)) / x.std((2, 3), keepdim=True)

    torch.testing.assert_close(shape(mixed), shape(features), atol=1e-4, rtol=1e-4)
    assert not torch.allclose(mixed.mean((2, 3)), features.mean((2, 3)), atol=1e-3)
    alone = MixStyle().train()(features[:1])
    torch.testing.assert_close(alone, features[:1], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        ({"kernel": 4}, "odd number"),
        ({"prob": 1.5}, "between 0 and 1"),
        ({"sigma": 0.0}, "above 0"),
        ({"kind": "lme"}, "Did you mean 'lem'"),
    ],
)
def test_wrong_settings(small, layer, message):
    with pytest.raises(UserError, match=message):
        disturbance(small.config({"lem": layer}).lem)


def test_only_the_support_path_is_disturbed(small):
    net = small.net().train()
    episode = small.episode(size=24)
    torch.manual_seed(0)
    first = net(episode.support, episode.support_labels, episode.query)
    torch.manual_seed(1)
    second = net(episode.support, episode.support_labels, episode.query)
    assert torch.equal(first.query, second.query) and torch.equal(first.low, second.low)
    assert not torch.allclose(first.support, second.support, atol=1e-3)
    net.eval()
    third, fourth = (net(episode.support, episode.support_labels, episode.query) for _ in range(2))
    assert torch.equal(third.support, fourth.support)
