"""What a run reads, for the check before a table starts; light to import."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from projects.cdfss_sharpness.config import TARGETS
from shared.data.catalogue import Requirement, huggingface_requirement, requirement

ENTRIES = {
    "pascal": "pascal-voc-sbd",
    "fss1000": "fss-1000",
    "deepglobe": "deepglobe",
    "isic": "isic2018-segmentation",
    "chest": "lung-segmentation",
}
WEIGHTS = {"resnet50": "timm/resnet50s.gluon_in1k", "vit": "timm/vit_base_patch16_224.augreg_in1k"}


def requirements_of(config: Any) -> list[Requirement]:
    """The source, the targets and the weights of `config`."""
    return [*data_needs(config), *weight_needs(config.encoder)]


def data_needs(config: Any) -> list[Requirement]:
    source, root = config.episodes.source, config.data.root
    if source == "digits":
        from shared.data.images import image_requirements

        return [*image_requirements("digits"), requirement("skimage-photos")]
    if source == "stamps":
        return [requirement("stamps"), requirement("skimage-photos")]
    names = [source, *(list(config.episodes.targets) or TARGETS[source])]
    splits = Path(root).expanduser() / config.episodes.splits if root else None
    lists = Requirement(
        "split lists of the CD-FSS benchmark",
        "data",
        splits,
        "pascal/trn/fold{0..3}.txt and fss/test.txt",
        "the folder data/splits of the GitHub repository slei109/PATNet",
    )
    return [*(requirement(ENTRIES[name], root) for name in names), lists]


def weight_needs(settings: Any) -> list[Requirement]:
    if settings.name == "efficientnet" and settings.weights != "none":
        return [requirement("efficientnet-lite0")]
    if settings.name not in WEIGHTS or settings.weights == "none":
        return []
    named = settings.weights or WEIGHTS[settings.name]
    known = "/" in named or Path(named).expanduser().is_dir()
    return [huggingface_requirement(named if known else f"timm/{named}")]
