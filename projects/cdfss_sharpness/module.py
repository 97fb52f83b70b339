"""Training on source episodes and evaluation on target domains."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.optim import SGD
from torch.optim.lr_scheduler import MultiStepLR

from projects.cdfss_sharpness.data.episodes import Episode
from projects.cdfss_sharpness.iou import ForegroundIoU
from projects.cdfss_sharpness.losses import episode_loss, pixel_loss
from projects.cdfss_sharpness.prototypes import resized
from projects.cdfss_sharpness.sam import SAM
from projects.cdfss_sharpness.segmenter import segmenter

SIDES = ("without_lcm", "with_lcm")


class LoEC(LightningModule):
    """Train: F_s <- F_s^t behind stage 2 of the support (LEM). Test: S <- S' on the target's query (LCM).

    Logs, in per cent, of the last weights (there is no early stopping):

    - `with_lcm/<target>`, `without_lcm/<target>`, `.../mean`: IoU by class, mean over classes;
    - `miou/...`: the one of the two that `lcm.enabled` names;
    - `curve/...` at every validation, `peak/...` and `drop/...` (peak minus the last point of the curve).

    Args:
        targets: name of each target and its number of classes, in the order of the data loaders.
    """

    def __init__(self, config: Any, targets: Sequence[tuple[str, int]]) -> None:
        super().__init__()
        self.config, self.targets = config, [name for name, _ in targets]
        self.segmenter = segmenter(config)
        self.scored = nn.ModuleDict(
            {f"{side}/{name}": ForegroundIoU(count) for side in SIDES for name, count in targets}
        )
        self.curve: list[dict[str, float]] = []
        self.artifacts: Path | None = None

    def training_step(self, episode: Episode, index: int) -> Tensor:
        matched = self.segmenter(episode.support, episode.support_labels, episode.query)
        weights = self.config.head.self_weight, self.config.head.support_weight
        loss = episode_loss(matched, episode.support_labels, episode.query_labels, *weights)
        self.log("train/loss", loss)
        return loss

    def predict(self, episode: Episode) -> tuple[Tensor, Tensor]:
        """Foreground (B, H, W) without and with LCM."""
        matched = self.segmenter(episode.support, episode.support_labels, episode.query)
        both = matched.scores[-1], self.segmenter.calibrated(matched)
        size = episode.query_labels.shape[-2:]
        plain, calibrated = (resized(scores.float(), size).argmax(1).bool() for scores in both)
        return plain, calibrated

    def query_loss(self, episode: Episode, after: Any = None) -> Tensor:
        """Loss of the final scores alone, with the features behind the stages in `after` changed."""
        matched = self.segmenter(episode.support, episode.support_labels, episode.query, after)
        return pixel_loss(matched.scores[-1], episode.query_labels)

    def validation_step(self, episode: Episode, index: int, dataloader_idx: int = 0) -> None:
        name = self.targets[dataloader_idx]
        for side, predicted in zip(SIDES, self.predict(episode), strict=True):
            self.scored[f"{side}/{name}"].update(predicted, episode.query_labels, episode.label)

    def test_step(self, episode: Episode, index: int, dataloader_idx: int = 0) -> None:
        self.validation_step(episode, index, dataloader_idx)

    def results(self) -> dict[str, float]:
        """mIoU of every side and target and their means; starts counting anew."""
        found = {name: float(metric.compute()) for name, metric in self.scored.items()}
        for metric in self.scored.values():
            metric.reset()
        for side in SIDES:
            found[f"{side}/mean"] = sum(found[f"{side}/{name}"] for name in self.targets) / len(self.targets)
        return found

    def on_validation_epoch_end(self) -> None:
        found = self.results()
        self.curve.append(found)
        peaks = {name: max(point[name] for point in self.curve) for name in found}
        self.log_dict({f"curve/{name}": value for name, value in found.items()})
        self.log_dict({f"peak/{name}": value for name, value in peaks.items()})
        self.log_dict({f"drop/{name}": peaks[name] - value for name, value in found.items()})

    def on_test_epoch_end(self) -> None:
        found = self.results()
        chosen = SIDES[self.config.lcm.enabled]
        self.log_dict(found | {f"miou/{name}": found[f"{chosen}/{name}"] for name in [*self.targets, "mean"]})

    def configure_optimizers(self) -> dict[str, Any]:
        settings, sam = self.config.optimizer, self.config.sam
        learning = [parameter for parameter in self.parameters() if parameter.requires_grad]
        sgd = {"lr": settings.lr, "momentum": settings.momentum, "weight_decay": settings.weight_decay}
        optimizer = (
            SAM(learning, self.low_level(sam.stages), sam.rho, **sgd) if sam.rho else SGD(learning, **sgd)
        )
        steps = int(self.trainer.estimated_stepping_batches)
        schedule = MultiStepLR(optimizer, [max(1, steps // 3), max(1, 2 * steps // 3)])
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def low_level(self, stages: int) -> list[nn.Parameter]:
        """Weights of the first stages that learn."""
        chosen = list(self.segmenter.encoder.stages.values())[:stages]
        return [p for stage in chosen for p in stage.parameters() if p.requires_grad]

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["curve"] = self.curve

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.curve = list(checkpoint.get("curve", []))
