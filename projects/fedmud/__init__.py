"""FedMUD: three remedies for low-rank communication in federated learning. ICML 2025, arXiv 2505.23176."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shared.data.requirements import Requirement
    from shared.training.experiment import Experiment


def build(config: Any) -> Experiment:
    """The experiment of `config.task`."""
    from projects.fedmud import experiments

    return experiments.build(config)


def requirements(config: Any) -> list[Requirement]:
    """The image set that the run reads."""
    from shared.data.images import image_requirements

    return image_requirements(config.federation.dataset, config.data.root)
