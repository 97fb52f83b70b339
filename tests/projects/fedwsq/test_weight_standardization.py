"""Properties 1 to 3 and 10 of the card: rows, gradients, invariance, the networks."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from projects.fedwsq.config import NetworkConfig
from projects.fedwsq.danuq import quantised_names
from projects.fedwsq.networks import network, resnet18
from projects.fedwsq.weight_standardization import EPS, WSConv2d, standardize, standardize_all
from shared.errors import UserError

SHAPES = [(7, 3, 3, 3), (5, 1, 1, 1 + 1), (4, 9, 1, 1), (1, 2, 5, 3)]


def draw(shape, seed=0, scale=0.2):
    return scale * torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rho", [1e-3, 1.0])
def test_rows_have_mean_zero_and_deviation_rho(shape, rho):
    weight = draw(shape) + 0.7
    rows = standardize(weight, rho).flatten(1)
    sigma = weight.flatten(1).std(1)
    assert rows.mean(1).abs().max() < 1e-9
    torch.testing.assert_close(rows.std(1), rho * sigma / (sigma + EPS), rtol=1e-10, atol=0)


def test_a_plain_loop_gives_the_same():
    weight = draw((3, 2, 3, 3))
    for row, got in zip(weight, standardize(weight, 0.5), strict=True):
        values = row.reshape(-1).tolist()
        mean = sum(values) / len(values)
        sigma = (sum((v - mean) ** 2 for v in values) / (len(values) - 1)) ** 0.5
        wanted = [0.5 * (v - mean) / (sigma + 1e-5) for v in values]
        assert got.reshape(-1).tolist() == pytest.approx(wanted, rel=1e-12)


def gradient(weight, seed=1):
    w = weight.clone().requires_grad_()
    images = draw((6, weight.shape[1], 8, 8), seed, 1.0)
    out = F.group_norm(F.conv2d(images, standardize(w, 1e-3), padding=1), 1)
    (out * draw(out.shape, seed + 1, 1.0)).sum().backward()
    return w.grad


@pytest.mark.parametrize("shape", [(7, 3, 3, 3), (4, 9, 1, 1)])
def test_the_gradient_is_orthogonal_to_one_and_to_the_centred_row(shape):
    weight = draw(shape) + 0.3
    grad, rows = gradient(weight).flatten(1), weight.flatten(1)
    centred = rows - rows.mean(1, keepdim=True)
    assert (grad.sum(1).abs() / (grad.norm(dim=1) * rows.shape[1] ** 0.5)).max() < 1e-9
    cosine = (grad * centred).sum(1).abs() / (grad.norm(dim=1) * centred.norm(dim=1))
    assert cosine.max() < 10 * EPS / rows.std(1).min()
    plain = weight.clone().requires_grad_()  # and this is standardisation's doing
    F.group_norm(F.conv2d(draw((6, shape[1], 8, 8), 1, 1.0), plain, padding=1), 1).square().mul(
        draw((6, shape[0], 10 if shape[2] == 1 else 8, 10 if shape[2] == 1 else 8), 2)
    ).sum().backward()
    assert plain.grad.flatten(1).sum(1).abs().min() > 1e-6


def test_the_gradient_is_the_projection_of_the_papers_formula():
    """(rho / sigma) (I - P_1) (I - P_w) dL/dw~, exact up to eps / sigma."""
    weight, upstream = draw((5, 4, 3, 3)), draw((5, 4, 3, 3), 9, 1.0)
    w = weight.clone().requires_grad_()
    (standardize(w, 0.01) * upstream).sum().backward()
    for row, up, got in zip(weight.flatten(1), upstream.flatten(1), w.grad.flatten(1), strict=True):
        d, c = len(row), row - row.mean()
        p_1 = torch.full((d, d), 1 / d, dtype=torch.float64)
        p_w = torch.outer(c, c) / c.square().sum()
        identity = torch.eye(d, dtype=torch.float64)
        wanted = 0.01 / row.std() * (identity - p_1) @ (identity - p_w) @ up
        torch.testing.assert_close(got, wanted, rtol=1e-3, atol=float(1e-3 * wanted.abs().max()))


def test_scaling_and_shifting_rows_changes_nothing():
    weight = draw((6, 3, 3, 3))
    a = torch.linspace(0.5, 4, 6, dtype=torch.float64).view(6, 1, 1, 1)
    b = torch.linspace(-2, 2, 6, dtype=torch.float64).view(6, 1, 1, 1)
    torch.testing.assert_close(standardize(a * weight + b), standardize(weight), rtol=3e-4, atol=0)


def test_the_convolution_keeps_the_raw_weight_and_takes_no_bias():
    torch.manual_seed(0)
    conv = WSConv2d(3, 8, 3, stride=2, padding=1, rho=0.1)
    assert list(dict(conv.named_parameters())) == ["weight"] and conv.bias is None
    images = torch.randn(2, 3, 7, 7)
    wanted = F.conv2d(images, standardize(conv.weight, 0.1), stride=2, padding=1)
    assert torch.equal(conv(images), wanted)
    bound = (6 / 27) ** 0.5  # Kaiming uniform, a = 0, fan in
    assert conv.weight.abs().max() <= bound and conv.weight.abs().max() > 0.9 * bound
    assert float(WSConv2d(3, 9, 3).weight.detach().std()) == pytest.approx(bound / 3**0.5, rel=0.1)


def test_resnet_has_the_known_size_with_and_without_standardisation():
    plain, standardised = resnet18(3, 10), standardize_all(resnet18(3, 10), 1e-3)
    count = sum(p.numel() for p in plain.parameters())
    assert count == 11_173_962 and round(count / 1e6, 2) == 11.17
    shapes = {name: value.shape for name, value in plain.state_dict().items()}
    assert shapes == {name: value.shape for name, value in standardised.state_dict().items()}
    convolutions = [m for m in standardised.modules() if isinstance(m, nn.Conv2d)]
    assert len(convolutions) == 20 and all(type(m) is WSConv2d for m in convolutions)
    norms = [m for m in plain.modules() if isinstance(m, nn.GroupNorm)]
    assert len(norms) == 20 and {m.num_groups for m in norms} == {2}
    assert not any(isinstance(m, nn.BatchNorm2d) for m in plain.modules())


def test_what_is_quantised_of_a_resnet():
    names = quantised_names(resnet18(3, 10))
    blocks = [f"layer{i}.{j}.conv{k}.weight" for i in (1, 2, 3, 4) for j in (0, 1) for k in (1, 2)]
    shortcuts = [f"layer{i}.0.downsample.0.weight" for i in (2, 3, 4)]
    assert sorted(names) == sorted(blocks + shortcuts)


def test_networks_map_images_to_logits_and_mistakes_are_named():
    for name, side in (("convnet", 9), ("resnet18", 16)):
        net = network(NetworkConfig(name=name, widths=[4, 6], strides=[2, 1]), 2, 7)
        assert net(torch.randn(3, 2, side, side)).shape == (3, 7)
    with pytest.raises(UserError, match="found 'resnet'. Did you mean 'resnet18'"):
        network(NetworkConfig(name="resnet"), 1, 2)
    with pytest.raises(UserError, match="multiples of groups=2"):
        network(NetworkConfig(widths=[3], strides=[1]), 1, 2)
    with pytest.raises(UserError, match="as many strides"):
        network(NetworkConfig(widths=[4], strides=[1, 1]), 1, 2)
