"""What the paper argues from: the loss under noise at each stage, and the likeness of source and targets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from projects.cdfss_sharpness.data.episodes import Episode
from shared.training.logging import record
from shared.training.seeding import generator
from shared.vision.cka import domain_cka

PIXELS = "stage0"


def noise(size: float, stream: torch.Generator) -> Callable[[Tensor], Tensor]:
    """Adds Gaussian noise of `size` times the root mean square of each map (N, C, h, w)."""

    def add(maps: Tensor) -> Tensor:
        drawn = torch.randn(maps.shape, generator=stream).to(maps)
        return maps + size * maps.square().mean((1, 2, 3), keepdim=True).sqrt() * drawn

    return add


@torch.no_grad()
def loss_increase(
    module: LightningModule, episodes: Dataset, sizes: Sequence[float], draws: int, batch: int, seed: int
) -> dict[str, float]:
    """How far noise at one stage, in support and query, raises the loss of the final scores.

    `sharpness/stage<l>/<size>` in nats, stage 0 being the pixels; `sharpness/stage<l>`, the mean over sizes;
    `sharpness/low`, the mean of stages 1 and 2. Every module meets the same noise.
    """
    batches = [episode_to(episode, module.device) for episode in DataLoader(episodes, batch)]
    stages = [PIXELS, *module.segmenter.encoder.stages]

    def mean_loss(stage: str | None = None, size: float = 0.0) -> float:
        losses = []
        for number, episode in enumerate(batches):
            for draw in range(draws if stage else 1):
                add = noise(size, generator(seed, "noise", stage, size, number, draw))
                losses.append(_loss(module, episode, stage, add) * len(episode.label))
        return sum(losses) / (len(episodes) * (draws if stage else 1))

    clean = mean_loss()
    found = {f"sharpness/{s}/{size:g}": mean_loss(s, size) - clean for s in stages for size in sizes}
    for stage in stages:
        found[f"sharpness/{stage}"] = sum(found[f"sharpness/{stage}/{size:g}"] for size in sizes) / len(sizes)
    found["sharpness/low"] = (found[f"sharpness/{stages[1]}"] + found[f"sharpness/{stages[2]}"]) / 2
    return found | {"sharpness/clean": clean}


def _loss(
    module: LightningModule, episode: Episode, stage: str | None, add: Callable[[Tensor], Tensor]
) -> float:
    if stage == PIXELS:
        noisy = add(episode.support.flatten(0, 1)).unflatten(0, episode.support.shape[:2])
        return float(module.query_loss(episode._replace(support=noisy, query=add(episode.query))))
    return float(module.query_loss(episode, {stage: add} if stage else None))


@torch.no_grad()
def likeness(
    module: LightningModule, source: Dataset, targets: dict[str, Dataset], batch: int
) -> dict[str, float]:
    """`cka/<stage>/<target>` of the spatial means of a stage's maps, and `cka/<stage>`, their mean.

    Of every domain as many query images are taken as the smallest has episodes.
    """
    count = min(map(len, [source, *targets.values()]))
    pooled = {name: _pooled(module, data, count, batch) for name, data in {"": source, **targets}.items()}
    found: dict[str, float] = {}
    for stage in module.segmenter.encoder.stages:
        for name in targets:
            found[f"cka/{stage}/{name}"] = domain_cka(pooled[""][stage], pooled[name][stage])
        found[f"cka/{stage}"] = sum(found[f"cka/{stage}/{name}"] for name in targets) / len(targets)
    return found


def _pooled(module: LightningModule, data: Dataset, count: int, batch: int) -> dict[str, Tensor]:
    """Stage -> (count, C)."""
    parts: dict[str, list[Tensor]] = {}
    for episode in DataLoader(torch.utils.data.Subset(data, range(count)), batch):
        for stage, maps in module.segmenter.encoder(episode.query.to(module.device)).items():
            parts.setdefault(stage, []).append(maps.float().mean((2, 3)).cpu())
    return {stage: torch.cat(own) for stage, own in parts.items()}


def episode_to(episode: Episode, device: torch.device) -> Episode:
    return Episode(*(part.to(device) for part in episode))


class Landscape(Callback):
    """Writes `loss_increase` and `likeness` into the run's metrics when training ends."""

    def __init__(self, settings: Any, heldout: Dataset, targets: dict[str, Dataset], batch: int, seed: int):
        self.settings, self.heldout, self.targets = settings, heldout, targets
        self.batch, self.seed = batch, seed

    def on_train_end(self, trainer: Trainer, module: LightningModule) -> None:
        before = module.training
        module.eval()
        sizes, draws = list(self.settings.sizes), self.settings.draws
        found = loss_increase(module, self.heldout, sizes, draws, self.batch, self.seed)
        found |= likeness(module, self.heldout, self.targets, self.batch)
        module.train(before)
        record(module, found)


class Examples(Callback):
    """Saves queries of every target with both predictions, and an image under LEM, for the pictures."""

    def __init__(self, targets: dict[str, Dataset], count: int, seed: int) -> None:
        self.targets, self.count, self.seed = targets, count, seed

    @torch.no_grad()
    def on_test_end(self, trainer: Trainer, module: LightningModule) -> None:
        if module.artifacts is None or not trainer.is_global_zero or not self.count:
            return
        import numpy as np

        from projects.cdfss_sharpness.lem import convolve, enhance

        kept: dict[str, list] = {"query": [], "truth": [], "plain": [], "calibrated": []}
        for data in self.targets.values():
            for place in range(min(self.count, len(data))):
                episode = episode_to(next(iter(DataLoader([data[place]]))), module.device)
                plain, calibrated = module.predict(episode)
                shown = episode.query[0], episode.query_labels[0], plain[0], calibrated[0]
                for name, value in zip(kept, shown, strict=True):
                    kept[name].append(value.cpu().numpy())
        names = np.array(list(self.targets))
        np.savez_compressed(module.artifacts / "examples.npz", targets=names, **kept)
        image = torch.from_numpy(kept["query"][0])[None]
        kernel = 0.3 * torch.randn(4, 3, 3, 3, 3, generator=generator(self.seed, "kernel"))
        np.savez_compressed(
            module.artifacts / "mixed.npz",
            image=image[0],
            convolved=torch.cat([convolve(image, theta) for theta in kernel]),
            enhanced=torch.cat([enhance(image, theta) for theta in kernel]),
        )
