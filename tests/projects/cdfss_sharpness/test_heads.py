"""Prototypes and self-support."""

import pytest
import torch
from torch.nn.functional import cosine_similarity, interpolate

from projects.cdfss_sharpness.heads import (
    LEAST,
    PrototypeHead,
    SelfSupportHead,
    adaptive_prototypes,
    mean_over,
    support_prototypes,
    supported,
    sure,
)
from projects.cdfss_sharpness.losses import episode_loss, pixel_loss
from projects.cdfss_sharpness.prototypes import cosine_scores, masked_average
from projects.cdfss_sharpness.segmenter import Matched

HEADS = [PrototypeHead(), SelfSupportHead(), SelfSupportHead(refine=True)]


def parts(batch=2, shots=1, channels=6, size=(7, 9), image=(29, 33), seed=0):
    stream = torch.Generator().manual_seed(seed)
    labels = (torch.rand(batch, shots, *image, generator=stream) > 0.6).byte()
    labels[..., :3, :3] = 255
    support = torch.randn(batch, shots, channels, *size, generator=stream)
    return support, labels, torch.randn(batch, channels, *size, generator=stream)


def slow_ssp(support, labels, query, refine):
    """Self-support for one episode, pixel by pixel."""
    size = query.shape[-2:]
    sides = []
    for value in (1, 0):
        own = []
        for x, m in zip(support, labels, strict=True):
            weight = interpolate((m == value).float()[None, None], size, mode="bilinear", align_corners=True)[
                0, 0
            ]
            own.append((x * weight).sum((1, 2)) / (weight.sum() + 1e-5))
        sides.append(sum(own) / len(own))
    fp, bp = sides
    pixels = query.flatten(1).T  # (n, C)

    def sim(f, b):
        f, b = (p.expand(len(pixels), -1) for p in (f, b))
        return 10 * torch.stack([cosine_similarity(pixels, b), cosine_similarity(pixels, f)])

    def round_of(scores):
        chance = scores.softmax(0)
        groups = []
        for side, threshold in ((1, 0.7), (0, 0.6)):
            chosen = torch.nonzero(chance[side] > threshold).flatten()
            if not len(chosen):
                chosen = chance[side].topk(12).indices
            groups.append(pixels[chosen])
        foreground, background = groups
        local = []
        for pixel in pixels:
            weight = (2 * cosine_similarity(pixel[None], background)).softmax(0)
            local.append(weight @ background)
        bp_1 = 0.3 * background.mean(0) + 0.7 * torch.stack(local)
        return 0.5 * fp + 0.5 * foreground.mean(0), bp_1

    fp_1, bp_1 = round_of(sim(fp, bp))
    out = sim(fp_1, bp_1)
    if refine:
        fp_2, bp_2 = round_of(out)
        fp_2, bp_2 = 0.5 * fp + 0.2 * fp_1 + 0.3 * fp_2, 0.5 * bp + 0.2 * bp_1 + 0.3 * bp_2
        out = 0.7 * sim(fp_2, bp_2) + 0.3 * out
    return out.unflatten(1, size)


@pytest.mark.parametrize("refine", [False, True])
@pytest.mark.parametrize("shots", [1, 3])
def test_against_a_slow_version(refine, shots):
    support, labels, query = parts(shots=shots)
    found = SelfSupportHead(refine)(support, labels, query)
    assert len(found) == 1 + refine
    for place in range(2):
        wanted = slow_ssp(support[place], labels[place], query[place], refine)
        torch.testing.assert_close(found[-1][place], wanted, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("head", HEADS)
def test_scale_free_and_in_range(head):
    support, labels, query = parts()
    out = head(support, labels, query)[-1]
    torch.testing.assert_close(head(4 * support, labels, 4 * query)[-1], out, atol=1e-4, rtol=1e-4)
    assert out.abs().max() <= 10 + 1e-4


@pytest.mark.parametrize("head", HEADS)
def test_a_batch_equals_its_episodes(head):
    support, labels, query = parts(batch=3)
    together = head(support, labels, query)[-1]
    for place in range(3):
        alone = head(*(part[place : place + 1] for part in (support, labels, query)))[-1]
        torch.testing.assert_close(together[place : place + 1], alone, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("head", HEADS)
def test_five_copies_of_one_support_equal_one(head):
    support, labels, query = parts()
    five = head(support.expand(-1, 5, -1, -1, -1), labels.expand(-1, 5, -1, -1), query)[-1]
    torch.testing.assert_close(five, head(support, labels, query)[-1], atol=1e-5, rtol=1e-5)


def test_twelve_pixels_when_none_is_sure():
    chance = torch.rand(3, 40) * 0.6
    chance[2, 5] = 0.9
    chosen = sure(chance, 0.7)
    assert chosen[:2].sum(1).tolist() == [LEAST, LEAST] == [12, 12]
    assert chosen[2].nonzero().flatten().tolist() == [5]
    assert chance[0][chosen[0]].min() >= chance[0][~chosen[0]].max()
    assert sure(torch.zeros(1, 5), 0.7).all()  # a map of fewer than twelve pixels


def test_equal_prototypes_stay():
    """With FP = SSFP, FP1 = FP."""
    query = torch.randn(1, 4, 6, 6)
    scores = torch.randn(1, 2, 6, 6) * 5
    chosen = sure(scores.softmax(1).flatten(2)[:, 1], 0.7)
    fp = mean_over(query.flatten(2), chosen)
    torch.testing.assert_close(supported(query, scores, fp)[0], fp)


def test_adaptive_prototypes_are_convex_combinations_of_the_chosen():
    pixels = torch.rand(1, 3, 10)
    chosen = torch.zeros(1, 10, dtype=torch.bool)
    chosen[0, 4] = True
    torch.testing.assert_close(adaptive_prototypes(pixels, chosen), pixels[..., 4:5].expand(-1, -1, 10))


def test_all_background_and_ignored_masks_stay_finite():
    support, labels, query = parts()
    for value in (0, 255):
        empty = torch.full_like(labels, value)
        for head in HEADS:
            support.requires_grad_()
            out = head(support, empty, query)
            loss = episode_loss(Matched(out, support, query, query), empty, empty[:, 0])
            assert loss.isfinite()
            if value == 0:
                loss.backward()
                assert support.grad.isfinite().all()
    assert pixel_loss(torch.randn(1, 2, 3, 3), torch.full((1, 5, 5), 255)) == 0
    assert masked_average(query, torch.zeros(2, 29, 33)).abs().max() == 0


def test_order_of_channels():
    """Background first: a query pixel equal to the foreground prototype scores 10 in channel 1."""
    fp, bp = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])
    scores = cosine_scores(torch.tensor([[[[2.0]], [[0.0]]]]), fp, bp)
    torch.testing.assert_close(scores.flatten(), torch.tensor([0.0, 10.0]))


def test_prototypes_are_means_over_shots():
    support, labels, _ = parts(shots=2)
    each = [support_prototypes(support[:, k : k + 1], labels[:, k : k + 1])[0] for k in range(2)]
    torch.testing.assert_close(support_prototypes(support, labels)[0], (each[0] + each[1]) / 2)


def test_loss_against_its_definition():
    """CE(out) + CE(self) + 0.2 CE(supp), each averaged over the pixels that count."""
    support, labels, query = parts(batch=1)
    target = labels[:, 0].clone()
    out = PrototypeHead()(support, labels, query)
    found = episode_loss(Matched(out, support, query, query), labels, target)

    def ce(scores, y):
        p = interpolate(scores, y.shape[-2:], mode="bilinear", align_corners=True).softmax(1)[0]
        picked = torch.where(y[0] == 1, p[1], p[0])[y[0] != 255]
        return -picked.log().mean()

    own = [
        cosine_scores(x, masked_average(x, target == 1), masked_average(x, target == 0))
        for x in (query, support[:, 0])
    ]
    wanted = ce(out[0], target) + ce(own[0], target) + 0.2 * ce(own[1], target)
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)
