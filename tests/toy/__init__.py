"""A paper that trains in milliseconds; `tests/conftest.py` puts it into a repository of its own."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any


def build(config: Any) -> Any:
    """The experiment; notes every execution in the file TOY_COUNT."""
    from projects.toy.module import Line, Points

    from shared.training.experiment import Experiment

    if os.environ.get("TOY_COUNT"):
        with Path(os.environ["TOY_COUNT"]).open("a") as file:
            file.write(f"{os.getpid()} {config.seed} {config.model.bias} {config.optimizer.lr}\n")
    return Experiment(Line(config), Points(config))


def requirements(config: Any) -> list[Any]:
    """Nothing, or one data set that is not there."""
    if not config.needs:
        return []
    from shared.data.catalogue import requirement

    return [requirement(config.needs, data_root=config.data.root)]
