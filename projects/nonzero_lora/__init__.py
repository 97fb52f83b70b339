"""Beyond Zero Initialization: non-zero LoRA starts (Init[AB]). ICML 2025, arXiv 2505.23194."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shared.errors import UserError, suggest

if TYPE_CHECKING:
    from shared.data.catalogue import Requirement
    from shared.training.experiment import Experiment


def build(config: Any) -> Experiment:
    """The experiment of `config.task`; imports only what that task needs."""
    from projects.nonzero_lora.config import TASKS
    from shared.training.experiment import Experiment

    if config.task == "sentiment":
        from projects.nonzero_lora.data.sentiment import SentimentData
        from projects.nonzero_lora.heldout import HeldOutLoss
        from projects.nonzero_lora.module import Classifier, NonZeroLoRA, heldout_loss, pretrained_encoder

        data = SentimentData(config.sentiment, config.seed)
        classifier = Classifier(pretrained_encoder(), config.sentiment.blocks, config.seed)
        follow = HeldOutLoss(
            lambda module: heldout_loss(module, data.heldout), config.sentiment.heldout_steps
        )
        return Experiment(NonZeroLoRA(config, classifier), data, [follow])
    if config.task == "digits":
        from projects.nonzero_lora.data.digits import DigitsData
        from projects.nonzero_lora.digits import DigitsLoRA, pretrained

        data = DigitsData(config.digits, config.seed)
        return Experiment(DigitsLoRA(config, pretrained(config.digits, data, config.seed)), data)
    if config.task == "width_scaling":
        from projects.nonzero_lora.scaling import Steps, WidthScaling

        return Experiment(WidthScaling(config), Steps(config.width_scaling.steps))
    if config.task == "language_model":
        from projects.nonzero_lora import language_model

        return language_model.build(config)
    raise UserError(f"task takes {', '.join(TASKS)}; found '{config.task}'.{suggest(config.task, TASKS)}")


def requirements(config: Any) -> list[Requirement]:
    """Data and weights that the run needs, for the check before a table starts; wrong settings are errors."""
    from projects.nonzero_lora.config import check_adapter, check_optimizer

    check_adapter(config.adapter)
    check_optimizer(config.optimizer)
    if config.task == "sentiment":
        from shared.data.catalogue import requirement

        return [requirement("minilm"), requirement("movie-sentences")]
    if config.task == "language_model":
        from projects.nonzero_lora.data import sources

        return sources.requirements(config)
    return []
