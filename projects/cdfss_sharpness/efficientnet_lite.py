"""EfficientNet-Lite0 with ImageNet weights (`efficientnet-lite0` in the catalogue) as timm's network."""

from __future__ import annotations

import functools

import torch
from torch import Tensor, nn

from projects.cdfss_sharpness.data.episodes import MEAN, STD
from shared.data.catalogue import fetch
from shared.errors import UserError

GROUPS = (1, 2, 2, 3, 3, 4, 1)  # blocks in each group
TOP = {
    "_conv_stem": "conv_stem",
    "_bn0": "bn1",
    "_conv_head": "conv_head",
    "_bn1": "bn2",
    "_fc": "classifier",
}
FIRST = {"_depthwise_conv": "conv_dw", "_bn1": "bn1", "_project_conv": "conv_pw", "_bn2": "bn2"}
OTHER = {"_expand_conv": "conv_pw", "_bn0": "bn1", "_depthwise_conv": "conv_dw", "_bn1": "bn2"}
OTHER |= {"_project_conv": "conv_pwl", "_bn2": "bn3"}


class Rescale(nn.Module):
    """From images normalised by ImageNet's statistics to (x - 127 / 255) / (128 / 255) of pixels in 0..1."""

    def __init__(self) -> None:
        super().__init__()
        mean, std = (torch.tensor(values)[:, None, None] for values in (MEAN, STD))
        self.register_buffer("scale", std * 255 / 128, persistent=False)
        self.register_buffer("shift", (mean - 127 / 255) * 255 / 128, persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        return images * self.scale + self.shift


def load(pretrained: bool = True) -> nn.Module:
    """timm's `tf_efficientnet_lite0` at stride 8."""
    import timm

    net = timm.create_model("tf_efficientnet_lite0", pretrained=False, output_stride=8)
    if pretrained:
        net.load_state_dict(weights())
    return net


@functools.lru_cache(maxsize=1)
def weights() -> dict[str, Tensor]:
    """The embedded weights under timm's names. Shared by all callers: read only."""
    path = next(iter(sorted(fetch("efficientnet-lite0").glob("*.pth"))), None)
    if path is None:
        raise UserError(
            "efficientnet-lite0: no .pth file in the cache. Fetch it again with download_data.py."
        )
    return {_renamed(name): value for name, value in torch.load(path, weights_only=True).items()}


def _renamed(name: str) -> str:
    head, _, rest = name.partition(".")
    if head != "_blocks":
        return f"{TOP[head]}.{rest}"
    number, layer, entry = rest.split(".", 2)
    group, place = 0, int(number)
    while place >= GROUPS[group]:
        group, place = group + 1, place - GROUPS[group]
    return f"blocks.{group}.{place}.{(FIRST if group == 0 else OTHER)[layer]}.{entry}"
