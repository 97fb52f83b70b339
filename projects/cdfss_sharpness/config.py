"""The typed config of this project; light to import."""

from __future__ import annotations

from dataclasses import dataclass, field

from shared.training.config import BaseConfig

SOURCES = ("pascal", "digits", "stamps")
TARGETS = {
    "pascal": ("fss1000", "deepglobe", "isic", "chest"),
    "digits": ("inverted", "textured", "noisy"),
    "stamps": ("ink", "microscope", "negative"),
}


@dataclass
class EpisodeConfig:
    """What an episode is. Targets belong to the source; at `pascal` they are the benchmark's four."""

    source: str = "pascal"  # one of SOURCES
    targets: list[str] = field(default_factory=list)  # empty: all targets of the source
    size: int = 400  # side of the square images, pixels
    shots: int = 1
    train: int = 24000  # source episodes, each drawn once
    batch: int = 4
    test: int = 600  # episodes of each target; FSS-1000 has one for each test image instead
    splits: str = "splits"  # below data.root: pascal/trn/fold{0..3}.txt and fss/test.txt


@dataclass
class EncoderConfig:
    """`weights` is a timm id, a folder that timm can read, or `none` for a random start; empty: the usual
    ones of the encoder (convnet has none)."""

    name: str = "resnet50"  # resnet50 | vit | efficientnet (embedded) | convnet
    weights: str = ""
    frozen: int = 2  # so many stages, counted from the image, do not learn
    blocks: int = 12  # of the transformer
    widths: list[int] = field(default_factory=lambda: [16, 32, 64, 128])  # convnet: channels of the stages
    depth: int = 1  # convnet: convolutions in each stage


@dataclass
class HeadConfig:
    """How query pixels are compared with prototypes, and the weights of the two auxiliary losses."""

    name: str = "ssp"  # ssp | prototype
    refine: bool = False  # ssp: a second round of self-support
    self_weight: float = 1.0
    support_weight: float = 0.2


@dataclass
class LEMConfig:
    """What disturbs low-level support features while training. `sigma` is read by lem and random_conv."""

    kind: str = "lem"  # lem | random_conv | mixstyle | none
    stage: int = 2
    prob: float = 1.0  # of a training step
    sigma: float = 0.1
    kernel: int = 3
    match_rms: bool = False  # false: as the paper states it, several times larger than the feature


@dataclass
class LCMConfig:
    """Calibration of the query's score map when testing. It is measured in any case; `enabled` decides
    which of the two `miou/...` is."""

    enabled: bool = True
    stage: int = 2
    anchors: int = 3  # K
    weight: float = 0.6  # w
    beta: str = "0.7"  # a number, or adaptive: the mean similarity to each anchor
    grid: int = 25  # patches along each side
    on: str = "cosine"  # cosine: before the scores' factor 10 | logit: after it


@dataclass
class SAMConfig:
    """Sharpness-aware minimisation of the low-level weights; rho = 0: plain SGD."""

    rho: float = 0.0
    stages: int = 2


@dataclass
class OptimizerConfig:
    """SGD; the rate falls to a tenth at one and again at two thirds of the steps."""

    lr: float = 1e-3
    momentum: float = 0.9
    weight_decay: float = 5e-4


@dataclass
class SharpnessConfig:
    """Loss under noise at each stage, and likeness of domains, after training; 0 episodes: neither."""

    episodes: int = 0  # held-out source episodes
    sizes: list[float] = field(default_factory=lambda: [0.5, 1.0, 2.0])  # noise over the feature's rms
    draws: int = 2


@dataclass
class PictureConfig:
    """How many query images of each target are drawn, with and without LCM; and one feature under LEM."""

    queries: int = 2


@dataclass
class Config(BaseConfig):
    episodes: EpisodeConfig = field(default_factory=EpisodeConfig)
    encoder: EncoderConfig = field(default_factory=EncoderConfig)
    head: HeadConfig = field(default_factory=HeadConfig)
    lem: LEMConfig = field(default_factory=LEMConfig)
    lcm: LCMConfig = field(default_factory=LCMConfig)
    sam: SAMConfig = field(default_factory=SAMConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    sharpness: SharpnessConfig = field(default_factory=SharpnessConfig)
    pictures: PictureConfig = field(default_factory=PictureConfig)
