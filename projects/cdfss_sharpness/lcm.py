"""LCM, the Low-level Calibration Module: pixels that look like the surest ones, low down, gain score.

It is used when testing on a target, has nothing to learn, and looks at the query alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d, interpolate, normalize

from shared.errors import UserError, suggest

ON = ("cosine", "logit")


@dataclass(frozen=True)
class LCM:
    """Settings of `calibrate`, applied to scores that hold the factor `scale`.

    Attributes:
        anchors, weight, beta, grid: see `calibrate`.
        on: cosine: scores are divided by their factor first and multiplied again; logit: they are not.
    """

    anchors: int = 3
    weight: float = 0.6
    beta: float | None = 0.7
    grid: int = 25
    on: str = "cosine"

    def __post_init__(self) -> None:
        if self.on not in ON:
            raise UserError(f"lcm.on takes {' or '.join(ON)}; found {self.on!r}.{suggest(self.on, ON)}")
        check_anchors(self.anchors, self.grid)

    def __call__(self, scores: Tensor, low: Tensor, scale: float = 1.0) -> Tensor:
        factor = scale if self.on == "cosine" else 1.0
        plain = scores / factor
        return calibrate(plain, low, self.anchors, self.weight, self.beta, self.grid) * factor


def calibrate(
    scores: Tensor, low: Tensor, anchors: int, weight: float, beta: float | None, grid: int
) -> Tensor:
    """S'_1 = S_1 + sum over anchors k of weight (Sim_k - beta); S'_0 = S_0.

    Args:
        scores: S (B, 2, h, w), background first.
        low: low-level features of the query (B, C, H, W), of any size from the grid's on.
        anchors: K, how many of the most confident patches the rest is compared with.
        beta: what a similarity has to exceed to raise the score; None: its own mean over the patches.
        grid: the map is cut into grid x grid patches.

    Raises:
        UserError: more anchors than patches, or more patches than the maps have pixels.
    """
    check_anchors(anchors, grid)
    smallest = min(*scores.shape[-2:], *low.shape[-2:])
    if grid > smallest:
        raise UserError(
            f"lcm.grid={grid} asks for {grid} x {grid} patches, but the score map has "
            f"{scores.shape[-2]} x {scores.shape[-1]} pixels and the low-level feature {low.shape[-2]} x "
            f"{low.shape[-1]}. Take at most {smallest}."
        )
    similarity = anchor_similarity(scores, low, anchors, grid)  # (B, K, grid, grid)
    level = similarity.mean((2, 3), keepdim=True) if beta is None else beta
    raised = weight * (similarity - level)
    raised = interpolate(raised, scores.shape[-2:], mode="bilinear", align_corners=True).sum(1)
    return torch.stack([scores[:, 0], scores[:, 1] + raised.to(scores.dtype)], 1)


@torch.no_grad()
def anchor_similarity(scores: Tensor, low: Tensor, anchors: int, grid: int) -> Tensor:
    """Cosine similarity (B, K, grid, grid) of every patch to each of the K surest foreground patches."""
    places = surest_patches(scores, anchors, grid)
    patches = normalize(adaptive_avg_pool2d(low.float(), grid).flatten(2), dim=1)  # (B, C, grid^2)
    chosen = patches.gather(2, places[:, None].expand(-1, patches.shape[1], -1))  # (B, C, K)
    return torch.einsum("bck,bcn->bkn", chosen, patches).unflatten(2, (grid, grid))


def surest_patches(scores: Tensor, anchors: int, grid: int) -> Tensor:
    """Places (B, K), counted row by row, of the patches with the largest mean of S_1 - S_0; surest first."""
    confidence = adaptive_avg_pool2d((scores[:, 1:] - scores[:, :1]).float(), grid)
    return confidence.flatten(1).topk(anchors).indices


def check_anchors(anchors: int, grid: int) -> None:
    if grid < 1 or not 1 <= anchors <= grid**2:
        raise UserError(
            f"lcm.anchors is a number from 1 to the number of patches, lcm.grid^2 = {grid**2}; "
            f"found {anchors}."
        )


def read_beta(text: str) -> float | None:
    """`lcm.beta` as `calibrate` takes it: None for adaptive."""
    if text == "adaptive":
        return None
    try:
        return float(text)
    except ValueError:
        raise UserError(f"lcm.beta takes a number or adaptive; found {text!r}.") from None
