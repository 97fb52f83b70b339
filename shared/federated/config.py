"""What the config of every federated project has; light to import (no torch)."""

from __future__ import annotations

from dataclasses import dataclass, field

from omegaconf import II

from shared.training.config import BaseConfig, TrainerConfig

PARTITIONS = ("iid", "dirichlet", "balanced_dirichlet", "label_count", "shards", "domain", "file:<path>")


@dataclass
class FederationConfig:
    """Who has which data, who takes part, for how long."""

    dataset: str = "fashion-mnist"  # of shared.data.images.KNOWN
    train_images: int = 0  # a seeded subset of so many; 0 = all
    validation_images: int = 0  # so many training images are the test set instead: for choosing settings
    client_test: float = 0.0  # share of each client's own samples that it is tested on, not trained
    clients: int = 100
    per_round: int = 10
    rounds: int = 100
    partition: str = "dirichlet"  # one of PARTITIONS
    alpha: float = 0.3  # of both Dirichlet partitions
    labels_per_client: int = 0  # of label_count; shards a client of shards
    min_size: int = 10  # of dirichlet: samples that each client has at least
    partition_seed: int | None = None  # null: the run's seed
    batch_size: int = 50
    local_epochs: int = 5
    evaluate_every: int = 1  # rounds between evaluations
    targets: list[float] = field(default_factory=list)  # accuracies in 0 .. 1: rounds and bytes to reach them
    engine: str = "auto"


@dataclass
class RoundsTrainerConfig(TrainerConfig):
    """One epoch holds all rounds; validation follows `federation.evaluate_every`."""

    max_epochs: int | None = 1
    val_check_interval: int | float | None = II("federation.evaluate_every")


@dataclass
class FederatedConfig(BaseConfig):
    """The base of a federated project's `Config`."""

    trainer: TrainerConfig = field(default_factory=RoundsTrainerConfig)
    federation: FederationConfig = field(default_factory=FederationConfig)
