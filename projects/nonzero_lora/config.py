"""The typed config of this project. `task` says what is run and which of the blocks below is read."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from projects.nonzero_lora.language_model_config import LanguageModelConfig
from shared.errors import UserError, suggest
from shared.training.config import BaseConfig

TASKS = ("sentiment", "digits", "width_scaling", "language_model")
METHODS = ("lora", "rslora", "dora", "pissa", "milora", "full")
SCHEDULES = ("constant", "linear", "cosine")


@dataclass
class AdapterConfig:
    """What is attached to the frozen model, and how it starts.

    `c_a`, `c_b`, `reset` are the paper's: Init[A] = (1, 0), Init[B] = (0, 1), Init[AB] = (1, 1). They belong
    to the methods lora and rslora; DoRA, PiSSA and MiLoRA bring their own start, "full" trains every weight
    of the model.
    """

    method: str = "lora"  # one of METHODS
    c_a: float = 1.0  # A0 ~ U(-c_a / sqrt(n), c_a / sqrt(n)), n = in_features
    c_b: float = 0.0  # B0 ~ U(-c_b / sqrt(n), c_b / sqrt(n)), the same n
    reset: bool = False  # subtract (alpha / r) B0 A0 from the weight: the first output is the pretrained one
    rank: int = 8
    alpha: float = 16.0  # the update is scaled by alpha / rank (rslora: alpha / sqrt(rank))
    dropout: float = 0.0
    targets: list[str] = field(default_factory=lambda: ["query", "value"])  # name, last part of it, or glob


@dataclass
class OptimizerConfig:
    """AdamW. `b_ratio` > 1 is LoRA+: the rate of B is `b_ratio` times the rate of A."""

    lr: float = 1e-3
    betas: list[float] = field(default_factory=lambda: [0.9, 0.999])
    eps: float = 1e-8
    weight_decay: float = 0.0
    b_ratio: float = 1.0
    schedule: str = "constant"  # one of SCHEDULES, after the warm-up; linear and cosine end at zero
    warmup_steps: int = 0
    warmup_ratio: float = 0.0  # of all steps; used when warmup_steps is 0


@dataclass
class SentimentConfig:
    """Movie-review sentences, positive or negative, read by a MiniLM whose upper blocks are adapted."""

    blocks: int = 2  # adapted blocks, counted from the top; the output below them is computed once
    min_score: float = 1.0  # sentences whose mean human score (-4 .. 4) is this near zero are left out
    max_tokens: int = 24  # only whole sentences of at most so many word pieces are used
    test_sentences: int = 1000  # the others train
    heldout_sentences: int = 128  # the first of the test sentences; their loss is followed during training
    heldout_steps: list[int] = field(default_factory=lambda: [0, 1, 3, 10, 30, 100])
    batch_size: int = 16
    steps: int = 100


@dataclass
class DigitsConfig:
    """Scikit-learn's digits: an MLP 64-width-width-10 pretrained on classes 0-4, adapted to all ten."""

    width: int = 256
    pretrain_steps: int = 100
    pretrain_lr: float = 1e-3
    test_images: int = 500  # the other 1,297 train
    batch_size: int = 32
    steps: int = 300


@dataclass
class ScalingConfig:
    """Size of the parts of one Adam step of a LoRA layer against the width n."""

    widths: list[int] = field(default_factory=lambda: [128, 256, 512, 1024, 2048])
    replicas: int = 4  # independent layers of each width; sizes are taken over all of them
    lr_exponent: float = -1.0  # the rate is n ** lr_exponent
    steps: int = 5


@dataclass
class Config(BaseConfig):
    """`task` is one of TASKS; only the block of that name (and `lm` for language_model) is read."""

    task: str = "sentiment"
    adapter: AdapterConfig = field(default_factory=AdapterConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    sentiment: SentimentConfig = field(default_factory=SentimentConfig)
    digits: DigitsConfig = field(default_factory=DigitsConfig)
    width_scaling: ScalingConfig = field(default_factory=ScalingConfig)
    lm: LanguageModelConfig = field(default_factory=LanguageModelConfig)


def check_adapter(config: Any) -> None:
    """Raise a `UserError` where an `AdapterConfig` is wrong for every model."""
    _one_of("adapter.method", config.method, METHODS)
    if config.rank < 1 or config.alpha <= 0 or not 0 <= config.dropout < 1:
        raise UserError(
            "adapter: rank must be at least 1, alpha positive and dropout in [0, 1); "
            f"found rank={config.rank}, alpha={config.alpha}, dropout={config.dropout}."
        )


def check_optimizer(config: Any) -> None:
    """Raise a `UserError` where an `OptimizerConfig` cannot train anything."""
    _one_of("optimizer.schedule", config.schedule, SCHEDULES)
    if config.lr <= 0 or config.b_ratio <= 0 or config.weight_decay < 0:
        raise UserError(
            "optimizer: lr and b_ratio must be positive, weight_decay not negative; "
            f"found lr={config.lr}, b_ratio={config.b_ratio}, weight_decay={config.weight_decay}."
        )


def _one_of(key: str, found: str, allowed: tuple[str, ...]) -> None:
    if found not in allowed:
        raise UserError(f"{key} takes {', '.join(allowed)}; found '{found}'.{suggest(found, allowed)}")
