"""The typed config of this project."""

from __future__ import annotations

from dataclasses import dataclass, field

from shared.federated.config import FederatedConfig

METHODS = ("fedavg", "fedavgm", "fedadam", "fedprox", "scaffold", "fednova", "moon", "fedbn", "local")
NETWORKS = ("small_cnn", "lenet", "resnet18")
NORMS = ("batch", "group", "none")


@dataclass
class NetworkConfig:
    """The clients' network: one of NETWORKS with one of NORMS after every convolution."""

    name: str = "small_cnn"
    norm: str = "batch"
    width: int = 16  # channels of the first convolution of small_cnn


@dataclass
class OptimizerConfig:
    """SGD of the clients. SCAFFOLD's correction is defined for SGD without momentum."""

    lr: float = 0.1
    momentum: float = 0.0
    weight_decay: float = 0.0


@dataclass
class MethodConfig:
    """What single methods need; each key says whose it is."""

    server_lr: float = 1.0  # fedavgm, fedadam
    server_momentum: float = 0.9  # fedavgm
    beta2: float = 0.99  # fedadam; beta1 is server_momentum
    epsilon: float = 1e-3  # fedadam
    mu: float = 0.01  # fedprox: of the proximal term; moon: of the contrastive term
    temperature: float = 0.5  # moon


@dataclass
class Config(FederatedConfig):
    """`method` is one of METHODS."""

    method: str = "fedavg"
    network: NetworkConfig = field(default_factory=NetworkConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    settings: MethodConfig = field(default_factory=MethodConfig)
    augment: bool = False  # random crops and flips of training images
    last: int = 5  # evaluations that the final accuracy is the mean of
