"""Configuration of the toy paper."""

from __future__ import annotations

from dataclasses import dataclass, field

from shared.training.config import BaseConfig


@dataclass
class ModelConfig:
    """A line through the origin, or one with a bias."""

    bias: bool = False


@dataclass
class OptimizerConfig:
    """Plain gradient descent."""

    lr: float = 0.1


@dataclass
class Config(BaseConfig):
    """All of it."""

    model: ModelConfig = field(default_factory=ModelConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    steps: int = 8
    pause: float = 0.0  # seconds a step, so that a test can interrupt
    needs: str = ""  # a data set of the catalogue
    api_token: str = ""  # looks like a secret, and must not be stored
