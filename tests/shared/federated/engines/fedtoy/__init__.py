"""A federation that trains in milliseconds, as a project: three clients, FedAvg or SCAFFOLD."""

from __future__ import annotations

from typing import Any


def build(config: Any) -> Any:
    from projects.fedtoy.module import federation

    from shared.training.experiment import Experiment

    return Experiment(*federation(config.algorithm, config.seed, config.lost))
