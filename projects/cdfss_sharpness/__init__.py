"""LoEC: low-level features in cross-domain few-shot segmentation. CVPR 2025, arXiv 2503.21150."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shared.data.catalogue import Requirement
    from shared.training.experiment import Experiment


def build(config: Any) -> Experiment:
    """Source training of a few-shot segmenter, with evaluation on the target domains."""
    from projects.cdfss_sharpness import experiments

    return experiments.build(config)


def requirements(config: Any) -> list[Requirement]:
    """The source, the targets and the pretrained encoder that the run reads."""
    from projects.cdfss_sharpness.needs import requirements_of

    return requirements_of(config)
