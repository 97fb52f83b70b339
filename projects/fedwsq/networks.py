"""ResNet-18 with group normalisation for small images, and a network of three convolutions."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from functools import partial
from typing import Any

from torch import Tensor, nn

from projects.fedwsq.config import NETWORKS, STARTS
from projects.fedwsq.weight_standardization import standardize_all
from shared.errors import UserError, suggest


class ConvNet(nn.Module):
    """3 x 3 convolutions, each with group normalisation and ReLU, the mean over places, a linear layer."""

    def __init__(
        self, channels: int, classes: int, widths: Sequence[int], strides: Sequence[int], groups: int
    ) -> None:
        super().__init__()
        layers: OrderedDict[str, nn.Module] = OrderedDict()
        for number, (width, stride) in enumerate(zip(widths, strides, strict=True), 1):
            layers[f"conv{number}"] = nn.Conv2d(channels, width, 3, stride, padding=1, bias=False)
            layers[f"norm{number}"] = nn.GroupNorm(groups, width)
            layers[f"relu{number}"] = nn.ReLU()
            channels = width
        self.body, self.head = nn.Sequential(layers), nn.Linear(channels, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Logits (B, classes) of images (B, C, H, W)."""
        return self.head(self.body(images).mean((-2, -1)))


def resnet18(channels: int, classes: int, groups: int = 2) -> nn.Module:
    """ResNet-18 with a 3 x 3 stem of stride 1 and no pooling after it; PyTorch's own initial values.

    11.17 million parameters for 3 channels and 10 classes.
    """
    from torchvision.models import resnet18 as build

    net = build(weights=None, num_classes=classes, norm_layer=partial(nn.GroupNorm, groups))
    net.conv1 = nn.Conv2d(channels, 64, 3, padding=1, bias=False)
    net.maxpool = nn.Identity()
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            module.reset_parameters()  # torchvision's own start is another
    return net


def network(settings: Any, channels: int, classes: int) -> nn.Module:
    """The network of a `NetworkConfig`; with `ws` all its convolutions are standardised, the stem too.

    Raises:
        UserError: no such network, or no such start, or widths that do not go with strides and groups.
    """
    if settings.name not in NETWORKS:
        raise UserError(
            f"network.name takes {', '.join(NETWORKS)}; found '{settings.name}'."
            + suggest(settings.name, NETWORKS)
        )
    if settings.start not in STARTS:
        raise UserError(f"network.start takes {', '.join(STARTS)}; found '{settings.start}'.")
    if settings.name == "resnet18":
        net = resnet18(channels, classes, settings.groups)
    else:
        widths, strides = list(settings.widths), list(settings.strides)
        if len(widths) != len(strides) or any(width % settings.groups for width in widths):
            raise UserError(
                f"network: widths {widths} need as many strides, found {strides}, and must be multiples "
                f"of groups={settings.groups}."
            )
        net = ConvNet(channels, classes, widths, strides, settings.groups)
    if settings.ws:
        return standardize_all(net, settings.rho)
    if settings.start == "kaiming":
        for module in net.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_uniform_(module.weight)
    return net
