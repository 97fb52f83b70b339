"""What a module logs while nobody but the federated loop is listening."""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch import LightningModule
from torchmetrics import Metric


class Recorder:
    """Stands in for `LightningModule.log`: sums of value x weight, so that means can be pooled exactly.

    `weight` is set by the loop before each step: 1 a training step, the batch size in evaluation.
    """

    def __init__(self) -> None:
        self.sums: dict[str, Any] = {}
        self.weights: dict[str, float] = {}
        self.last: dict[str, Any] = {}
        self.epoch: dict[str, tuple[Any, int]] = {}
        self.metrics: dict[str, Metric] = {}
        self.weight = 1.0

    def log(
        self,
        name: str,
        value: Any,
        *args: Any,
        on_epoch: bool | None = None,
        batch_size: int | None = None,
        **kwargs: Any,
    ) -> None:
        """The signature of `LightningModule.log`; where and when to show a value is the server's business."""
        if isinstance(value, Metric):
            self.metrics[name] = value
            return
        value = value.detach() if isinstance(value, torch.Tensor) else float(value)
        weight = float(batch_size) if batch_size and self.weight != 1.0 else self.weight
        self.sums[name] = self.sums.get(name, 0.0) + (value if weight == 1.0 else value * weight)
        self.weights[name] = self.weights.get(name, 0.0) + weight
        self.last[name] = value
        if on_epoch:
            total, count = self.epoch.get(name, (0.0, 0))
            self.epoch[name] = (total + value, count + 1)

    def attach(self, model: LightningModule) -> None:
        model.log = self.log  # log_dict calls it too

    def start_epoch(self) -> None:
        self.epoch.clear()

    def watched(self) -> dict[str, float]:
        """What a scheduler watches: the epoch's mean of what was logged `on_epoch`, else the last value."""
        return {
            name: float(self.epoch[name][0] / self.epoch[name][1] if name in self.epoch else value)
            for name, value in self.last.items()
        }

    def means(self) -> dict[str, float]:
        values = {name: float(value) / self.weights[name] for name, value in self.sums.items()}
        return values | {name: float(metric.compute()) for name, metric in self.metrics.items()}

    def totals(self, count: float) -> tuple[dict[str, float], dict[str, float]]:
        """Sufficient statistics: sums and weights by name; a `Metric` counts as its value over `count`."""
        sums = {name: float(value) for name, value in self.sums.items()}
        weights = dict(self.weights)
        for name, metric in self.metrics.items():
            sums[name], weights[name] = float(metric.compute()) * count, count
        return sums, weights
