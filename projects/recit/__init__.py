"""ReCIT: broken continuity of image tokens, cross-domain few-shot learning. ICML 2025, arXiv 2506.03110."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shared.data.catalogue import Requirement
    from shared.training.experiment import Experiment


def build(config: Any) -> Experiment:
    """The experiment of `config`; the arm `frozen` is only tested."""
    from projects.recit.config import check
    from projects.recit.data.module import RecitData
    from projects.recit.encoder import make_encoder
    from projects.recit.evaluation import Evaluation
    from projects.recit.module import ReCIT
    from shared.training.experiment import Experiment

    check(config)
    encoder = make_encoder(config)
    data = RecitData(config)
    seed = config.seed if config.episodes.seed < 0 else config.episodes.seed
    evaluation = Evaluation(config.episodes, data.domains, seed)
    module = ReCIT(config, encoder, len(data.base.classes), evaluation)
    return Experiment(module, data, fit=config.recit.arm != "frozen")


def requirements(config: Any) -> list[Requirement]:
    """Data and weights that the run needs; wrong settings are errors."""
    from projects.recit import data
    from projects.recit.config import check
    from shared.data.catalogue import huggingface_requirement, requirement

    check(config)
    needs = data.requirements(config)
    if config.network.name == "vit-s":
        needs.append(requirement("vit-s"))
    elif config.network.pretrained:
        needs.append(huggingface_requirement(f"timm/{config.network.name}", "Apache-2.0"))
    return needs
