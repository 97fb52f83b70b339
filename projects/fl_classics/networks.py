"""Networks of the comparison: a body, and a linear layer `head` whose input is the representation."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torchvision.models import resnet18

from projects.fl_classics.config import NETWORKS, NORMS
from shared.data.images import ImageSet
from shared.errors import UserError, suggest

Norm = Callable[[int], nn.Module]


class Net(nn.Module):
    """(B, C, H, W) -> (B, classes) through a representation (B, features)."""

    def __init__(self, body: nn.Module, features: int, classes: int) -> None:
        super().__init__()
        self.body, self.head = body, nn.Linear(features, classes)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.body(images))


def network(settings: Any, images: ImageSet) -> Net:
    """The network that a `NetworkConfig` names, for images of this size.

    Raises:
        UserError: no such network or normalisation, or images that are too small for it.
    """
    for value, known, key in (
        (settings.name, NETWORKS, "network.name"),
        (settings.norm, NORMS, "network.norm"),
    ):
        if value not in known:
            raise UserError(f"{key} takes {', '.join(known)}; found '{value}'.{suggest(value, known)}")
    channels, side = images.images.shape[1], min(images.images.shape[2:])
    least = {"small_cnn": 4, "lenet": 16, "resnet18": 16}[settings.name]
    if side < least:
        raise UserError(f"{settings.name} needs images of {least} x {least} at least, found {side} x {side}.")
    norm = {"batch": nn.BatchNorm2d, "group": group_norm, "none": lambda width: nn.Identity()}[settings.norm]
    if settings.name == "resnet18":
        return _resnet18(channels, images.classes, norm)
    shape = tuple(images.images.shape[2:])
    if settings.name == "lenet":
        return _lenet(channels, shape, images.classes, norm)
    return _small_cnn(channels, shape, images.classes, norm, settings.width)


def group_norm(width: int) -> nn.GroupNorm:
    """Groups of four channels."""
    return nn.GroupNorm(max(1, width // 4), width)


def _small_cnn(channels: int, shape: tuple[int, int], classes: int, norm: Norm, width: int) -> Net:
    """Two 3 x 3 convolutions of stride 2 and a hidden layer of 64."""
    sides = [math.ceil(side / 4) for side in shape]
    body = nn.Sequential(
        nn.Conv2d(channels, width, 3, stride=2, padding=1),
        norm(width),
        nn.ReLU(),
        nn.Conv2d(width, 2 * width, 3, stride=2, padding=1),
        norm(2 * width),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(2 * width * sides[0] * sides[1], 64),
        nn.ReLU(),
    )
    return Net(body, 64, classes)


def _lenet(channels: int, shape: tuple[int, int], classes: int, norm: Norm) -> Net:
    """McMahan et al. (2017, section 3): 5 x 5 convolutions of 32 and 64, 2 x 2 max pooling, 512 units."""
    body = nn.Sequential(
        nn.Conv2d(channels, 32, 5, padding=2),
        norm(32),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5, padding=2),
        norm(64),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * (shape[0] // 4) * (shape[1] // 4), 512),
        nn.ReLU(),
    )
    return Net(body, 512, classes)


def _resnet18(channels: int, classes: int, norm: Norm) -> Net:
    """ResNet-18 with the usual stem for small images: 3 x 3, stride 1, no pooling."""
    body = resnet18(weights=None, norm_layer=norm)
    body.conv1 = nn.Conv2d(channels, 64, 3, padding=1, bias=False)
    body.maxpool, body.fc = nn.Identity(), nn.Identity()
    return Net(body, 512, classes)
