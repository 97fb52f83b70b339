"""From a config to the module, the data and the callbacks of its run."""

from __future__ import annotations

from typing import Any

from projects.cdfss_sharpness.data.datamodule import EpisodeData
from projects.cdfss_sharpness.measures import Examples, Landscape
from projects.cdfss_sharpness.module import LoEC
from shared.training.experiment import Experiment


def build(config: Any) -> Experiment:
    data = EpisodeData(config)
    settings = config.episodes
    tests = dict(zip((name for name, _ in data.targets), data.tests, strict=True))
    callbacks: list = [Examples(tests, config.pictures.queries, config.seed)]
    if config.sharpness.episodes:
        heldout = data.heldout(config.sharpness.episodes, settings.shots, settings.size)
        callbacks.append(Landscape(config.sharpness, heldout, tests, settings.batch, config.seed))
    return Experiment(LoEC(config, data.targets), data, callbacks)
