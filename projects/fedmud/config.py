"""The typed config of this project; light to import."""

from __future__ import annotations

from dataclasses import dataclass, field

from shared.federated.config import FederatedConfig

TASKS = ("training", "approximation")
METHODS = ("fedavg", "fedlmt", "fedpara", "fedhm", "fedmud")


@dataclass
class MethodConfig:
    """What is trained and sent. `ratio` is read by all but fedavg (and by the task approximation), what
    stands below it by fedmud alone."""

    name: str = "fedmud"  # one of METHODS
    ratio: float = 0.03125  # of the values that are trained and sent, over the whole network
    kind: str = "kron"  # mat (a plain product) | kron (BKD)
    pattern: str = "fab+cfd"  # ab (plain) | fab (left factor frozen) | fab+cfd (AAD)
    magnitude: float = 5.0  # a of the random factors
    law: str = "uniform"  # U(-a, a) | normal: N(0, a^2)
    reset_every: int = 1  # s: rounds between merges


@dataclass
class Config(FederatedConfig):
    """`task` approximation runs FedAvg and then measures how well each form can express its last update."""

    task: str = "training"  # one of TASKS
    network: str = "cnn"  # cnn | deep_cnn | mlp
    lr: float = 0.01
    method: MethodConfig = field(default_factory=MethodConfig)
