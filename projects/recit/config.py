"""The typed config of this project; light to import."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from shared.errors import UserError, suggest
from shared.training.config import BaseConfig

ARMS = ("none", "frozen", "rpe", "sp", "spa", "spp", "warmup", "frequency", "recit")
WHOLE_PRECISION = ("32-true", "64-true", "16-mixed", "bf16-mixed")  # the tokens stay in float32 or float64
LAYOUTS = ("folders", "lists")


@dataclass
class RecitConfig:
    """How the continuity of image tokens is broken while the source is trained.

    `none` trains plainly, `frozen` does not train; rpe, sp, spa, spp are the four simple disruptions;
    `warmup` and `frequency` are one stage of the method alone, `recit` is both.
    """

    arm: str = "recit"  # one of ARMS
    weights: str = "official"  # official | positive: the mixture of the frequency stage
    threshold: float = 0.3  # tau: patches of a larger cosine share a style
    spread: float = 1000.0  # sigma_w
    warmup_epochs: int = 1
    smallest: int = 14  # n of the warm-up: patches of a side, uniform over smallest .. largest
    largest: int = 32
    pieces: int = 0  # of a side, for sp, spa, spp; 0: the patches of the network, 1: the image is left whole


@dataclass
class NetworkConfig:
    """A timm vision transformer, or `vit-s`, the embedded pretrained one."""

    name: str = "vit_small_patch16_224.dino"
    pretrained: bool = True
    image_size: int = 224
    blocks: int = 0  # the first so many are kept; 0: all
    patch: int = 0  # 0: the model's own, here and below
    width: int = 0
    depth: int = 0
    heads: int = 0
    cls_token: str = "own"  # own | random: drawn anew and not trained, as in CD-CLS


@dataclass
class OptimizerConfig:
    """AdamW; the encoder's rate is `lr` times `encoder_multiplier`, the classifier's is `lr`."""

    lr: float = 1e-3
    encoder_multiplier: float = 1e-4
    weight_decay: float = 0.01


@dataclass
class DomainsConfig:
    """What is trained on and what is tested on. Names are those of `projects.recit.data.NAMES`."""

    source: str = "mini-imagenet"
    targets: list[str] = field(default_factory=lambda: ["crop-diseases", "eurosat", "isic", "chestx"])
    layout: str = "folders"  # folders | lists: JSON file lists of the official code
    batch_size: int = 16
    test_batch_size: int = 64
    augment: bool = True  # random crop, jitter and flip of source images; only real sets


@dataclass
class EpisodesConfig:
    episodes: int = 4000
    ways: int = 5
    shots: list[int] = field(default_factory=lambda: [1, 5])
    queries: int = 15
    seed: int = 0  # of the episodes: the same for all arms; -1: that of the run
    cka_images: int = 2000  # of each domain at most


@dataclass
class Config(BaseConfig):
    recit: RecitConfig = field(default_factory=RecitConfig)
    network: NetworkConfig = field(default_factory=NetworkConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    domains: DomainsConfig = field(default_factory=DomainsConfig)
    episodes: EpisodesConfig = field(default_factory=EpisodesConfig)


def check(config: Any) -> None:
    """Raise a `UserError` where a config cannot be run whatever the data."""
    own = config.recit
    _one_of("recit.arm", own.arm, ARMS)
    _one_of("recit.weights", own.weights, ("official", "positive"))
    _one_of("network.cls_token", config.network.cls_token, ("own", "random"))
    _one_of("domains.layout", config.domains.layout, LAYOUTS)
    if not 1 <= own.smallest <= own.largest or own.warmup_epochs < 0 or own.pieces < 0 or own.spread <= 0:
        raise UserError(
            "recit: expected 1 <= smallest <= largest, warmup_epochs and pieces from 0 on, spread above 0; "
            f"found smallest={own.smallest}, largest={own.largest}, warmup_epochs={own.warmup_epochs}, "
            f"pieces={own.pieces}, spread={own.spread}."
        )
    rates = config.optimizer
    if rates.lr <= 0 or rates.encoder_multiplier <= 0 or rates.weight_decay < 0:
        raise UserError(
            "optimizer: lr and encoder_multiplier must be positive, weight_decay not negative; found "
            f"{rates.lr}, {rates.encoder_multiplier}, {rates.weight_decay}."
        )
    precision = config.trainer.precision
    if own.arm in ("frequency", "recit") and own.weights == "official" and precision not in WHOLE_PRECISION:
        raise UserError(
            "recit.weights=official makes tokens up to 1e9 times larger, which "
            f"trainer.precision={precision} cannot hold. Take one of {', '.join(WHOLE_PRECISION)}, "
            "or recit.weights=positive."
        )


def _one_of(key: str, found: str, allowed: tuple[str, ...]) -> None:
    if found not in allowed:
        raise UserError(f"{key} takes {', '.join(allowed)}; found '{found}'.{suggest(found, allowed)}")
