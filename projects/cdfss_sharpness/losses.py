"""The loss of SSP, which LoEC leaves unchanged."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import cross_entropy

from projects.cdfss_sharpness.prototypes import (
    IGNORED,
    cosine_scores,
    foreground_and_background,
    resized,
)
from projects.cdfss_sharpness.segmenter import Matched


def episode_loss(
    matched: Matched,
    support_labels: Tensor,
    query_labels: Tensor,
    self_weight: float = 1.0,
    support_weight: float = 0.2,
) -> Tensor:
    """CE of every score map + CE(self_out, M_q) + 0.2 CE(supp_out, M_s).

    self_out compares the query with its own prototypes, supp_out each support image with its own.

    Args:
        support_labels: (B, K, H, W);   query_labels: (B, H, W); of 0, 1 and 255 (ignored).
    """
    loss = sum(pixel_loss(scores, query_labels) for scores in matched.scores)
    if self_weight:
        loss = loss + self_weight * pixel_loss(own_scores(matched.query, query_labels), query_labels)
    if support_weight:
        support, labels = matched.support.flatten(0, 1), support_labels.flatten(0, 1)
        loss = loss + support_weight * pixel_loss(own_scores(support, labels), labels)
    return loss


def own_scores(features: Tensor, labels: Tensor) -> Tensor:
    """Scores (N, 2, h, w) of `features` against the prototypes under their own `labels` (N, H, W)."""
    return cosine_scores(features, *foreground_and_background(features, labels))


def pixel_loss(scores: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy of `scores` (N, 2, h, w), enlarged to the size of `labels` (N, H, W); float32.

    0 where every pixel is ignored.
    """
    enlarged = resized(scores.float(), labels.shape[-2:])
    labels = labels.long()
    total = cross_entropy(enlarged, labels, ignore_index=IGNORED, reduction="sum")
    return total / (labels != IGNORED).sum().clamp_min(1)
