"""FedWSQ: weight standardisation and distribution-aware quantisation. ICCV 2025, arXiv 2506.23516."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shared.data.catalogue import Requirement
    from shared.training.experiment import Experiment


def build(config: Any) -> Experiment:
    """The federation of `config.method` with `config.quantizer`, or the measurement of update errors."""
    from projects.fedwsq.experiments import experiment_of

    return experiment_of(config)


def requirements(config: Any) -> list[Requirement]:
    """The image set that the run reads, for the check before a table starts."""
    from shared.data.images import image_requirements

    return image_requirements(config.federation.dataset, config.data.root)
