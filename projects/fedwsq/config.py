"""The typed config of this project."""

from __future__ import annotations

from dataclasses import dataclass, field

from shared.federated.config import FederatedConfig

TASKS = ("federation", "update_error")
NETWORKS = ("convnet", "resnet18")
STARTS = ("own", "kaiming")
METHODS = (
    *("fedavg", "fedprox", "fedavgm", "fedadam", "feddyn"),
    *("fedlc", "fedntd", "fedacg", "fedhq"),
)
QUANTIZERS = ("none", "danuq", "uniform", "nf", "fp", "qsgd")


@dataclass
class NetworkConfig:
    """The clients' network: one of NETWORKS."""

    name: str = "convnet"
    ws: bool = True  # standardise the weights of all convolutions
    rho: float = 1e-3  # size of a standardised weight
    start: str = "own"  # of plain convolutions: own (PyTorch's), or kaiming: that of the standardised ones
    groups: int = 2  # of every GroupNorm
    widths: list[int] = field(default_factory=lambda: [16, 32, 64])  # convnet: channels of its convolutions
    strides: list[int] = field(default_factory=lambda: [2, 2, 2])  # convnet


@dataclass
class OptimizerConfig:
    """SGD of the clients. Its rate is lr * decay^e, e from the round (`module.rate_exponent`) plus the local
    epoch."""

    lr: float = 0.1
    decay: float = 0.998  # official code; a third party's note on the paper says 0.995
    weight_decay: float = 1e-3
    clip: float = 10.0  # greatest norm of a gradient
    precision: str | None = None  # of local training, e.g. 16-mixed


@dataclass
class QuantizerConfig:
    """What becomes of the update of every convolution but the first on its way up: one of QUANTIZERS."""

    name: str = "danuq"
    bits: int = 4
    levels: str = "published"  # danuq: or lloyd
    allocation: str = "none"  # danuq: none, fixed (FBA), dynamic (DBA)
    beta: float = 0.1  # danuq: how fast the shared scales follow
    initial_scale: float = 1e-3  # danuq
    warm_start: bool = False  # danuq: from round 2 on, scales are round 1's deviations


@dataclass
class MethodConfig:
    """What single methods need. The values are of the code base that the official code grew from (FedACG)."""

    mu: float = 1e-3  # fedprox, fedacg
    server_momentum: float = 0.4  # fedavgm
    acceleration: float = 0.85  # fedacg: momentum of the server, and how far its broadcast looks ahead
    server_lr: float = 0.01  # fedadam
    beta1: float = 0.9  # fedadam
    beta2: float = 0.99  # fedadam
    tau: float = 1e-3  # fedadam
    alpha: float = 0.1  # feddyn
    not_true: float = 0.3  # fedntd: weight of the distillation; 1 - not_true is that of the cross entropy
    temperature: float = 1.0  # fedntd
    calibration: float = 1.0  # fedlc: its tau, ours


@dataclass
class Config(FederatedConfig):
    """`task` is one of TASKS, `method` one of METHODS. The defaults are FedWSQ at 4 bits."""

    task: str = "federation"
    method: str = "fedavg"
    network: NetworkConfig = field(default_factory=NetworkConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    quantizer: QuantizerConfig = field(default_factory=QuantizerConfig)
    settings: MethodConfig = field(default_factory=MethodConfig)
    augment: bool = False  # rotation, crop and flip of training images
    hessian_images: int = 0  # training images on which the top Hessian eigenvalue is found in the end; 0: not
