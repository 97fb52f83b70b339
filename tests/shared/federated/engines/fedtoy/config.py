"""Configuration of the toy federation."""

from __future__ import annotations

from dataclasses import dataclass

from shared.training.config import BaseConfig


@dataclass
class Config(BaseConfig):
    algorithm: str = "fedavg"
    lost: int = -1
