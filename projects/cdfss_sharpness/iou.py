"""The benchmark's measure: intersections and unions of the foreground, added up class by class."""

from __future__ import annotations

import torch
from torch import Tensor
from torchmetrics import Metric

from projects.cdfss_sharpness.prototypes import IGNORED
from shared.errors import UserError


class ForegroundIoU(Metric):
    """Mean over classes, in per cent, of sum(intersections) / sum(unions) over the episodes of a class.

    It is not the mean over episodes. Classes without any episode are left out; a class that is absent from
    all its masks and predictions has no union and is left out too.
    """

    full_state_update = False
    higher_is_better = True

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.add_state("intersection", torch.zeros(classes, dtype=torch.long), dist_reduce_fx="sum")
        self.add_state("union", torch.zeros(classes, dtype=torch.long), dist_reduce_fx="sum")

    def update(self, predicted: Tensor, labels: Tensor, classes: Tensor) -> None:
        """`predicted` boolean (B, H, W), `labels` (B, H, W) of 0, 1 and 255 (ignored), `classes` (B,)."""
        if predicted.shape != labels.shape or len(classes) != len(labels):
            raise UserError(
                f"expected predictions and labels of one shape (B, H, W) and B classes; found "
                f"{tuple(predicted.shape)}, {tuple(labels.shape)} and {len(classes)}."
            )
        if len(classes) and int(classes.max()) >= len(self.union):
            raise UserError(f"expected classes 0..{len(self.union) - 1}, found {int(classes.max())}.")
        truth, counts = labels == 1, labels != IGNORED
        both = (predicted & truth & counts).sum((1, 2))
        either = ((predicted | truth) & counts).sum((1, 2))
        self.intersection.index_add_(0, classes.long(), both)
        self.union.index_add_(0, classes.long(), either)

    def per_class(self) -> Tensor:
        """IoU of every class in per cent, NaN without a union: float64 (classes,)."""
        return 100 * self.intersection.double() / self.union.double()

    def compute(self) -> Tensor:
        return self.per_class().nanmean().float()
