"""The few-shot segmenter: a staged encoder, a head, LEM on the support and LCM on the query's scores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import Tensor, nn

from projects.cdfss_sharpness.disturbances import disturbance
from projects.cdfss_sharpness.encoders import Change, StagedEncoder, encoder
from projects.cdfss_sharpness.heads import PrototypeHead, SelfSupportHead
from projects.cdfss_sharpness.lcm import LCM, read_beta
from projects.cdfss_sharpness.prototypes import SCALE
from shared.errors import UserError, suggest


class Matched(NamedTuple):
    """What the comparison of a batch gives: score maps, the final one last, and the features behind them."""

    scores: list[Tensor]  # each (B, 2, h, w)
    support: Tensor  # X_s (B, K, C, h, w)
    query: Tensor  # X_q (B, C, h, w)
    low: Tensor  # F_q (B, C', H', W')


class Segmenter(nn.Module):
    """Any `StagedEncoder` with any head.

    Args:
        lem: acts on the support features behind stage `lem_stage` while training; None: nothing does.
        lcm: used by `calibrated`, with the query features behind stage `lcm_stage`.
    """

    def __init__(
        self,
        encoder: StagedEncoder,
        head: nn.Module,
        lem: nn.Module | None = None,
        lem_stage: str = "stage2",
        lcm: LCM | None = None,
        lcm_stage: str = "stage2",
    ) -> None:
        super().__init__()
        self.encoder, self.head, self.lem, self.lcm = encoder, head, lem, lcm
        self.lem_stage, self.lcm_stage = lem_stage, lcm_stage
        for stage in (lem_stage, lcm_stage):
            if stage not in encoder.stages:
                raise UserError(
                    f"the encoder has no stage {stage!r}; it has {', '.join(encoder.stages)}."
                    + suggest(stage, encoder.stages)
                )

    def forward(
        self, support: Tensor, labels: Tensor, query: Tensor, after: Mapping[str, Change] | None = None
    ) -> Matched:
        """`support` (B, K, 3, H, W) with `labels` (B, K, H, W) of 0, 1 and 255; `query` (B, 3, H, W).

        `after` changes the features of both paths behind the stages that it names (see `StagedEncoder`).
        """
        changes = dict(after or {})
        high = list(self.encoder.stages)[-1]
        features_q = self.encoder(query, changes)  # the query path is clean
        if self.lem is not None and self.lem_stage not in changes:
            changes[self.lem_stage] = self.lem  # F_s -> F_s^t
        features_s = self.encoder(support.flatten(0, 1), changes)
        x_s = features_s[high].unflatten(0, support.shape[:2])
        x_q = features_q[high]
        return Matched(self.head(x_s, labels, x_q), x_s, x_q, features_q[self.lcm_stage])

    def calibrated(self, matched: Matched) -> Tensor:
        """The final scores (B, 2, h, w) after LCM."""
        assert self.lcm is not None
        return self.lcm(matched.scores[-1], matched.low, SCALE)


def segmenter(config: Any) -> Segmenter:
    """The segmenter of a config."""
    heads = {
        "ssp": lambda: SelfSupportHead(config.head.refine),
        "prototype": lambda: PrototypeHead(),
    }
    if config.head.name not in heads:
        raise UserError(
            f"head.name takes {', '.join(heads)}; found {config.head.name!r}."
            + suggest(config.head.name, heads)
        )
    lcm = LCM(
        config.lcm.anchors, config.lcm.weight, read_beta(config.lcm.beta), config.lcm.grid, config.lcm.on
    )
    return Segmenter(
        encoder(config.encoder, config.episodes.size),
        heads[config.head.name](),
        disturbance(config.lem),
        f"stage{config.lem.stage}",
        lcm,
        f"stage{config.lcm.stage}",
    )
