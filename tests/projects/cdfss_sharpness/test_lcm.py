"""LCM: similarity to the surest patches raises the foreground score."""

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from projects.cdfss_sharpness.lcm import LCM, anchor_similarity, calibrate, read_beta, surest_patches
from shared.errors import UserError

K, W, BETA = 3, 0.6, 0.7


def maps(batch=2, size=(12, 12), low=(24, 24), channels=5, grid=6, seed=0, positive=False):
    stream = torch.Generator().manual_seed(seed)
    features = torch.randn(batch, channels, *low, generator=stream)
    return torch.rand(batch, 2, *size, generator=stream) * 2 - 1, features.abs() if positive else features


def slow(scores, low, anchors, weight, beta, grid):
    """One episode in numpy, patch by patch; sizes divisible by the grid, and no enlarging."""
    s, f = scores.numpy(), low.numpy()
    confidence, patch = np.zeros((grid, grid)), np.zeros((grid, grid, len(f)))
    a, b = s.shape[1] // grid, f.shape[1] // grid
    for i in range(grid):
        for j in range(grid):
            part = (slice(None), slice(i * a, (i + 1) * a), slice(j * a, (j + 1) * a))
            confidence[i, j] = (s[part][1] - s[part][0]).mean()
            patch[i, j] = f[:, i * b : (i + 1) * b, j * b : (j + 1) * b].mean((1, 2))
    added = np.zeros((grid, grid))
    for place in np.argsort(-confidence, axis=None)[:anchors]:
        anchor = patch[np.unravel_index(place, confidence.shape)]
        similarity = patch @ anchor / (np.linalg.norm(patch, axis=2) * np.linalg.norm(anchor))
        added += weight * (similarity - (similarity.mean() if beta is None else beta))
    return np.stack([s[0], s[1] + added])


@pytest.mark.parametrize("beta", [BETA, None])
def test_against_a_slow_version(beta):
    scores, low = maps(size=(6, 6), low=(18, 18))
    found = calibrate(scores, low, K, W, beta, 6)
    for place in range(2):
        wanted = slow(scores[place], low[place], K, W, beta, 6)
        np.testing.assert_allclose(found[place].numpy(), wanted, atol=1e-5)


def test_anchors_are_the_patches_of_highest_mean_confidence():
    scores, _ = maps(size=(12, 12))
    for place in range(2):
        blocks = (scores[place, 1] - scores[place, 0]).reshape(6, 2, 6, 2).mean((1, 3)).flatten()
        assert surest_patches(scores, K, 6)[place].tolist() == blocks.argsort(descending=True)[:K].tolist()


def test_weight_zero_is_the_identity():
    scores, low = maps()
    assert torch.equal(calibrate(scores, low, K, 0.0, BETA, 6), scores)


def test_constant_low_level_features_add_the_same_everywhere():
    scores, low = maps(size=(13, 11), low=(9, 17))
    low = low[..., :1, :1].expand_as(low)
    found = calibrate(scores, low, K, W, BETA, 6)
    assert torch.equal(found[:, 0], scores[:, 0])
    torch.testing.assert_close(found[:, 1] - scores[:, 1], torch.full((2, 13, 11), 0.54), atol=1e-5, rtol=0)
    adaptive = calibrate(scores, low, K, W, None, 6)
    torch.testing.assert_close(adaptive, scores, atol=1e-5, rtol=0)


@pytest.mark.parametrize(("positive", "worst"), [(False, -1 - BETA), (True, -BETA)])
def test_what_an_anchor_gains_at_least(positive, worst):
    for seed in range(20):
        scores, low = maps(size=(6, 6), seed=seed, positive=positive)
        added = (calibrate(scores, low, K, W, BETA, 6) - scores)[:, 1].flatten(1)
        at_anchor = added.gather(1, surest_patches(scores, K, 6))
        assert (at_anchor >= W * (1 - BETA) + (K - 1) * W * worst - 1e-5).all()


def test_scale_of_the_low_level_feature_does_not_matter():
    scores, low = maps()
    torch.testing.assert_close(
        calibrate(scores, 7 * low, K, W, BETA, 6), calibrate(scores, low, K, W, BETA, 6)
    )


def test_the_scores_factor():
    """cosine: what is added is multiplied by it; logit: it is not."""
    scores, low = maps()
    plain = calibrate(scores, low, K, W, BETA, 6) - scores
    for on, factor in (("cosine", 10.0), ("logit", 1.0)):
        added = LCM(K, W, BETA, 6, on)(10 * scores, low, 10.0) - 10 * scores
        torch.testing.assert_close(added, factor * plain, atol=1e-4, rtol=1e-4)


def test_no_gradient_through_the_low_level_feature():
    scores, low = maps()
    low.requires_grad_()
    scores.requires_grad_()
    calibrate(scores, low, K, W, BETA, 6).sum().backward()
    assert low.grad is None and torch.equal(scores.grad, torch.ones_like(scores))


def test_cost():
    """K g^2 C multiply-adds."""
    scores, low = maps(batch=1)
    with FlopCounterMode(display=False) as counter:
        anchor_similarity(scores, low, K, 6)
    assert counter.get_total_flops() == 2 * K * 6**2 * 5


def test_half_precision_and_dead_features():
    scores, low = maps()
    assert calibrate(scores.half(), low.half(), K, W, BETA, 6).dtype == torch.float16
    assert calibrate(scores, torch.zeros_like(low), K, W, BETA, 6).isfinite().all()


@pytest.mark.parametrize("anchors", [0, 37])
def test_more_anchors_than_patches(anchors):
    scores, low = maps()
    with pytest.raises(UserError, match=f"1 to the number of patches.*36; found {anchors}"):
        calibrate(scores, low, anchors, W, BETA, 6)
    with pytest.raises(UserError, match="lcm.anchors"):
        LCM(anchors=anchors, grid=6)


def test_more_patches_than_pixels():
    scores, low = maps()
    with pytest.raises(UserError, match=r"lcm.grid=13.*12 x 12.*at most 12"):
        calibrate(scores, low, K, W, BETA, 13)


def test_wrong_settings():
    assert read_beta("adaptive") is None and read_beta("0.7") == 0.7
    with pytest.raises(UserError, match="a number or adaptive; found 'mean'"):
        read_beta("mean")
    with pytest.raises(UserError, match="lcm.on takes cosine or logit"):
        LCM(on="cos")
