"""The balanced disruption against a slow version of the official loops, and its properties."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from projects.recit import balanced
from projects.recit.balanced import (
    balanced_disruption,
    leaders,
    mixing_weights,
    similarity,
    style_statistics,
)
from shared.errors import UserError

SIZES = [(2, 3, 32, 8, 24), (1, 2, 35, 7, 31), (3, 1, 12, 4, 7)]  # B, C, side, patch, D


def case(b: int, c: int, side: int, patch: int, d: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Tokens, and images with patches in a few styles so that clusters have several members."""
    torch.manual_seed(seed)
    count = side // patch
    styles = torch.randn(3, c, patch, patch)
    images = torch.zeros(b, c, side, side)
    for image in images:
        for row in range(count):
            for column in range(count):
                piece = styles[torch.randint(3, ())] + 0.8 * torch.randn(c, patch, patch)
                image[:, row * patch : (row + 1) * patch, column * patch : (column + 1) * patch] = piece
    return torch.randn(b, count * count, d), images


def slow_cosines(images: Tensor, length: int) -> Tensor:
    """Patch by patch."""
    count = math.isqrt(length)
    patch = images.shape[-1] // count
    found = torch.zeros(len(images), length, length)
    for b, image in enumerate(images):
        pieces = []
        for row in range(count):
            for column in range(count):
                piece = image[:, row * patch : (row + 1) * patch, column * patch : (column + 1) * patch]
                values = piece.permute(1, 2, 0).flatten().double()
                pieces.append((values - values.mean()) / (values.var() + 1e-6).sqrt())
        for i in range(length):
            for j in range(length):
                found[b, i, j] = pieces[i] @ pieces[j] / (pieces[i].norm() * pieces[j].norm())
    return found


def slow_members(similarities: Tensor, threshold: float) -> Tensor:
    """The official scan: row by row, a row keeps the columns that no earlier row has kept."""
    length = similarities.shape[1]
    found = torch.zeros_like(similarities)
    for b in range(len(similarities)):
        kept: set[int] = set()
        for i in range(length):
            for j in range(i, length):
                if similarities[b, i, j] > threshold and j not in kept:
                    found[b, i, j] = 1
                    kept.add(j)
    return found


def slow_disruption(tokens: Tensor, members: Tensor, weights: Tensor, noise: Tensor) -> Tensor:
    """Token by token, cluster by cluster, with a transform by its definition."""
    b, length, d = tokens.shape
    n = torch.arange(d, dtype=torch.float64)
    dft = torch.exp(-2j * math.pi * n[:, None] * n / d)
    spectrum = tokens.double().to(torch.complex128) @ dft.T
    found = torch.zeros(b, length, d, dtype=torch.complex128)
    for image in range(b):
        means, deviations = [], []
        for i in range(length):
            own = [spectrum[image, j].abs() for j in range(length) if members[image, i, j]]
            stacked = torch.stack(own) if own else torch.zeros(1, d, dtype=torch.float64)
            means.append(stacked.mean(0))
            deviations.append(stacked.std(0, correction=0))
        for p in range(length):
            amplitude = torch.zeros(d, dtype=torch.float64)
            for i in range(length):
                amplitude += weights[image, p, i] * (means[i] + noise[image, p, i] * deviations[i])
            phased = amplitude * torch.exp(1j * spectrum[image, p].angle())
            found[image, p] = phased @ dft.conj() / d
    assert found.imag.abs().max() < 1e-9 * found.real.abs().max() + 1e-12
    return found.real


@pytest.mark.parametrize("size", SIZES)
def test_cosines_are_those_of_standardised_patches(size: tuple[int, ...]) -> None:
    tokens, images = case(*size)
    length = tokens.shape[1]
    torch.testing.assert_close(similarity(images, length), slow_cosines(images, length), atol=1e-5, rtol=0)


@pytest.mark.parametrize("threshold", [-1.1, 0.0, 0.3, 0.6, 0.99, 1.1])
def test_leaders_are_those_of_the_sequential_scan(threshold: float) -> None:
    tokens, images = case(2, 3, 64, 8, 4)
    similarities = similarity(images, tokens.shape[1])
    members = leaders(similarities, threshold)
    assert torch.equal(members, slow_members(similarities, threshold))
    if threshold == 0.3:
        sizes = members.sum(-1)
        assert (sizes > 1).any() and ((sizes > 0).sum(1) > 1).all(), "a case that tests nothing"


def test_every_patch_has_one_leader_before_it() -> None:
    tokens, images = case(2, 3, 64, 8, 4, seed=3)
    length = tokens.shape[1]
    similarities = similarity(images, length)
    members = leaders(similarities, 0.3)
    assert (members.sum(1) == 1).all()
    clusters = (members.sum(-1) > 0).sum(1)
    assert (clusters >= 1).all() and (clusters <= length).all()
    leader = members.argmax(1)
    assert (leader <= torch.arange(length)).all()
    assert (similarities.gather(1, leader[:, None])[:, 0] > 0.3).all()


def test_a_member_of_an_earlier_cluster_can_lead() -> None:
    close = 0.5
    similarities = torch.eye(3)[None]
    similarities[0, 0, 1] = similarities[0, 1, 0] = similarities[0, 1, 2] = similarities[0, 2, 1] = close
    assert leaders(similarities, 0.3)[0].tolist() == [[1, 1, 0], [0, 0, 1], [0, 0, 0]]


@pytest.mark.parametrize("threshold", [-1.1, 0.3])
def test_constant_patches_belong_nowhere_and_spoil_nothing(threshold: float) -> None:
    tokens, images = case(2, 3, 32, 8, 6)
    images[0, :, :8, :16] = 0.1  # patches 0 and 1 of the first image
    members = leaders(similarity(images, 16), threshold)
    assert members[0].sum(0).tolist() == [0, 0] + 14 * [1] and members[0, :2].sum() == 0
    assert (members[1].sum(0) == 1).all()
    found = balanced_disruption(tokens, images, threshold=threshold, weights="positive")
    assert found.isfinite().all() and (found.norm(dim=-1) > 0).all()
    everywhere = balanced_disruption(tokens, torch.ones_like(images))
    assert torch.equal(everywhere, torch.zeros_like(tokens))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("weights", ["official", "positive"])
def test_agrees_with_the_loops(size: tuple[int, ...], weights: str) -> None:
    tokens, images = case(*size)
    found = balanced_disruption(tokens, images, weights=weights, stream=torch.Generator().manual_seed(5))
    stream = torch.Generator().manual_seed(5)
    members = slow_members(slow_cosines(images, tokens.shape[1]), 0.3)
    mixing = mixing_weights(members, 1000.0, weights, stream)
    noise = torch.randn(mixing.shape, generator=stream)
    expected = slow_disruption(tokens, members, mixing.double(), noise.double())
    error = (found - expected).norm(dim=-1) / expected.norm(dim=-1)
    assert float(error.max()) < 5e-4


def test_weights_are_uniform_of_unit_sum_or_floored() -> None:
    members = torch.eye(6)[None].repeat(4000, 1, 1)
    members[:, 4:] = 0  # two empty clusters
    stream = torch.Generator().manual_seed(0)
    draws = torch.empty(members.shape)
    torch.nn.init.trunc_normal_(draws, std=1000.0, a=-2, b=2, generator=torch.Generator().manual_seed(0))
    assert float(draws.abs().max()) <= 2 and abs(float(draws.mean())) < 0.02
    assert float(draws.var()) == pytest.approx(16 / 12, rel=0.02)  # of U(-2, 2)
    official = mixing_weights(members, 1000.0, "official", stream)
    assert (official[..., 4:] == 0).all()
    total = draws[..., :4].sum(-1)
    torch.testing.assert_close(
        official[..., :4], draws[..., :4] / total.clamp(min=1e-7)[..., None], rtol=1e-4, atol=1e-4
    )
    positive = mixing_weights(members, 1000.0, "positive")
    assert (positive >= 0).all() and (positive[..., 4:] == 0).all()
    torch.testing.assert_close(positive.sum(-1), torch.ones(4000, 6))
    narrow = mixing_weights(members, 1e-3, "positive")
    torch.testing.assert_close(narrow.sum(-1), torch.ones(4000, 6))


def test_no_cluster_no_token() -> None:
    tokens, images = case(2, 3, 32, 8, 24)
    assert torch.equal(balanced_disruption(tokens, images, threshold=1.1), torch.zeros_like(tokens))


def test_one_cluster_holds_all_patches() -> None:
    _, images = case(2, 3, 32, 8, 24)
    members = leaders(similarity(images, 16), -1.1)
    assert (members[:, 0] == 1).all() and members[:, 1:].sum() == 0


def test_one_cluster_without_noise_gives_the_mean_amplitude_and_keeps_the_phase(monkeypatch) -> None:
    tokens, images = case(2, 3, 32, 8, 24)
    monkeypatch.setattr(balanced.torch, "randn", lambda *a, **k: torch.zeros(*a))
    found = balanced_disruption(tokens, images, threshold=-1.1, weights="positive")
    before, after = torch.fft.fft(tokens), torch.fft.fft(found)
    torch.testing.assert_close(after.abs(), before.abs().mean(1, keepdim=True).expand(-1, 16, -1))
    turn = (after.angle() - before.angle() + math.pi) % (2 * math.pi) - math.pi
    assert float(turn.abs().max()) < 1e-4


def test_alone_in_its_cluster_with_its_own_weight_a_token_stays(monkeypatch) -> None:
    tokens, images = case(2, 3, 32, 8, 24)
    monkeypatch.setattr(balanced, "mixing_weights", lambda members, *rest: torch.eye(16).expand(2, -1, -1))
    found = balanced_disruption(tokens, images, threshold=0.999999)  # the deviation of one is 0: no noise
    torch.testing.assert_close(found, tokens, atol=1e-5, rtol=0)


def test_statistics_of_one_member_are_exact() -> None:
    amplitude = 1e4 * torch.rand(1, 5, 8)
    mean, deviation = style_statistics(amplitude, torch.eye(5)[None])
    torch.testing.assert_close(mean, amplitude)
    assert float(deviation.max()) == 0


def test_gradients_pass_through_the_phase_alone() -> None:
    tokens, images = case(2, 3, 32, 8, 24)
    tokens.requires_grad_()
    images.requires_grad_()
    found = balanced_disruption(tokens, images, weights="positive")
    (found * torch.randn_like(found)).sum().backward()
    along = (tokens.grad * tokens.detach()).sum(-1)
    sizes = tokens.grad.norm(dim=-1) * tokens.detach().norm(dim=-1)
    assert float(sizes.min()) > 1e-3 and float((along.abs() / sizes).max()) < 1e-4
    assert images.grad is None


@pytest.mark.parametrize(("weights", "low", "high"), [("official", 0.35, 0.65), ("positive", -1, 1e-9)])
def test_share_of_exploded_tokens(weights: str, low: float, high: float) -> None:
    """The official clamp divides a negative sum by 1e-7; half of the tokens become huge."""
    tokens, images = case(4, 3, 112, 8, 64)
    assert tokens.shape[1] == 196
    found = balanced_disruption(tokens, images, weights=weights)
    share = (found.norm(dim=-1) > 1e3 * tokens.norm(dim=-1)).float().mean()
    assert low < float(share) <= high


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_mixed_precision_works_in_float32(dtype: torch.dtype) -> None:
    tokens, images = case(2, 3, 32, 8, 24)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = balanced_disruption(tokens.to(dtype), images, stream=torch.Generator().manual_seed(1))
    plain = balanced_disruption(tokens.to(dtype).float(), images, stream=torch.Generator().manual_seed(1))
    assert found.dtype == torch.float32 and torch.equal(found, plain) and found.isfinite().all()


def test_what_does_not_fit_is_refused() -> None:
    tokens, images = case(1, 3, 32, 8, 24)
    with pytest.raises(UserError, match="expected images cut into 15 square patches, found 32 x 32 pixels"):
        balanced_disruption(tokens[:, :15], images)
    with pytest.raises(
        UserError, match="weights takes official, positive; found 'positiv'. Did you mean 'pos"
    ):
        balanced_disruption(tokens, images, weights="positiv")


def test_oblong_images() -> None:
    images = torch.randn(2, 3, 16, 40)
    assert similarity(images, 10).shape == (2, 10, 10)
    assert balanced_disruption(torch.randn(2, 10, 6), images).shape == (2, 10, 6)
