"""Comparison of a query with the support: plain prototypes, and SSP's self-support (ECCV 2022)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from projects.cdfss_sharpness.prototypes import cosine_scores, foreground_and_background

SURE = (0.6, 0.7)  # probability above which a query pixel counts as background, as foreground
LEAST = 12  # pixels that count where none is above


class PrototypeHead(nn.Module):
    """out_0 = sim(X_q; FP, BP). A head gives a list of score maps (B, 2, h, w), its final one last."""

    def forward(self, support: Tensor, labels: Tensor, query: Tensor) -> list[Tensor]:
        """`support` (B, K, C, h, w), its `labels` (B, K, H, W), `query` (B, C, h, w)."""
        return [cosine_scores(query, *support_prototypes(support, labels))]


class SelfSupportHead(nn.Module):
    """SSP: what the first scores are sure of in the query becomes its own prototypes.

    Args:
        refine: a second round, from the scores of the first.
    """

    def __init__(self, refine: bool = False) -> None:
        super().__init__()
        self.refine = refine

    def forward(self, support: Tensor, labels: Tensor, query: Tensor) -> list[Tensor]:
        fp, bp = support_prototypes(support, labels)
        out_0 = cosine_scores(query, fp, bp)
        fp_1, bp_1 = supported(query, out_0, fp)
        out_1 = cosine_scores(query, fp_1, bp_1)
        if not self.refine:
            return [out_1]
        fp_2, bp_2 = supported(query, out_1, fp)
        fp_2 = 0.5 * fp + 0.2 * fp_1 + 0.3 * fp_2
        bp_2 = 0.5 * bp[..., None, None] + 0.2 * bp_1 + 0.3 * bp_2
        return [out_1, 0.7 * cosine_scores(query, fp_2, bp_2) + 0.3 * out_1]


def support_prototypes(support: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """FP and BP (B, C): means over the K shots of each shot's own prototypes."""
    batch = len(support)
    sides = foreground_and_background(support.flatten(0, 1), labels.flatten(0, 1))
    fp, bp = (side.unflatten(0, (batch, -1)).mean(1) for side in sides)
    return fp, bp


def supported(query: Tensor, scores: Tensor, fp: Tensor) -> tuple[Tensor, Tensor]:
    """FP1 = (FP + SSFP) / 2, (B, C), and BP1 = 0.3 SSBP + 0.7 ASBP, one for every pixel (B, C, h, w)."""
    chance = scores.softmax(1).flatten(2)  # (B, 2, n)
    background, foreground = (sure(chance[:, side], SURE[side]) for side in (0, 1))
    pixels = query.flatten(2)  # (B, C, n)
    local = adaptive_prototypes(pixels, background).unflatten(2, query.shape[-2:])
    bp_1 = 0.3 * mean_over(pixels, background)[..., None, None] + 0.7 * local
    return 0.5 * fp + 0.5 * mean_over(pixels, foreground), bp_1


def sure(chance: Tensor, threshold: float) -> Tensor:
    """Pixels (B, n) above the threshold; the `LEAST` likeliest in every row that has none."""
    above = chance > threshold
    likeliest = chance.topk(min(LEAST, chance.shape[1])).indices
    fallback = torch.zeros_like(above).scatter(1, likeliest, True)
    return torch.where(above.any(1, keepdim=True), above, fallback)


def mean_over(pixels: Tensor, chosen: Tensor) -> Tensor:
    """Mean (B, C) of `pixels` (B, C, n) over the `chosen` (B, n)."""
    weight = chosen.to(pixels.dtype)
    return torch.einsum("bcn,bn->bc", pixels, weight) / weight.sum(1, keepdim=True)


def adaptive_prototypes(pixels: Tensor, chosen: Tensor) -> Tensor:
    """ASBP (B, C, n): for every pixel the `chosen` ones, weighted by the softmax of twice their cosine."""
    unit = normalize(pixels, dim=1)
    likeness = 2 * torch.einsum("bcn,bcm->bnm", unit, unit)
    weight = likeness.masked_fill(~chosen[:, None], -torch.inf).softmax(2)
    return torch.einsum("bnm,bcm->bcn", weight, pixels)
