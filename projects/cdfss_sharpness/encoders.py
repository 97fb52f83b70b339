"""Encoders cut into named stages, so that something can be done to the features between any two."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from shared.errors import UserError, suggest

TIMM = {"resnet50": "resnet50s.gluon_in1k", "vit": "vit_base_patch16_224.augreg_in1k"}
STAGES = ("stage1", "stage2", "stage3", "stage4")
Change = Callable[[Tensor], Tensor]


class StagedEncoder(nn.Module):
    """`stages` one after the other.

    Args:
        stages: name -> module, from the image up.
        frozen: the first so many do not learn; their features carry no gradient.

    Batch normalisation never learns: it stays in evaluation mode and its affine part is fixed.
    """

    def __init__(self, stages: Mapping[str, nn.Module], frozen: int = 0) -> None:
        super().__init__()
        if not 0 <= frozen <= len(stages):
            raise UserError(f"encoder.frozen is a number of stages from 0 to {len(stages)}, found {frozen}.")
        self.stages, self.frozen = nn.ModuleDict(stages), frozen
        for stage in list(self.stages.values())[:frozen]:
            stage.requires_grad_(False)
        for module in self.modules():
            if isinstance(module, _BatchNorm):
                module.requires_grad_(False)

    def forward(self, images: Tensor, after: Mapping[str, Change] | None = None) -> dict[str, Tensor]:
        """Feature maps (N, C, h, w) behind every stage, each changed by `after[name]` where that is given.

        A change acts outside the frozen stages' `no_grad`, and on what later stages see.
        """
        after = after or {}
        if unknown := set(after) - set(self.stages):
            raise UserError(f"there is no stage {min(unknown)!r}; there are {', '.join(self.stages)}.")
        state, maps = images, {}
        for number, (name, stage) in enumerate(self.stages.items()):
            with torch.set_grad_enabled(torch.is_grad_enabled() and number >= self.frozen):
                state = stage(state)
            if name in after:
                state = self.with_map(state, after[name](self.as_map(state)))
            maps[name] = self.as_map(state)
        return maps

    def as_map(self, state: Tensor) -> Tensor:
        """What a stage hands on, as a feature map."""
        return state

    def with_map(self, state: Tensor, changed: Tensor) -> Tensor:
        """`state` with its feature map replaced."""
        return changed

    def train(self, mode: bool = True) -> StagedEncoder:
        super().train(mode)
        for stage in list(self.stages.values())[: self.frozen]:
            stage.eval()
        for module in self.modules():
            if isinstance(module, _BatchNorm):
                module.eval()
        return self


class StagedViT(StagedEncoder):
    """Stages hand on tokens (N, prefix + h w, C); class and register tokens are out of every map."""

    def __init__(
        self, stages: Mapping[str, nn.Module], frozen: int, grid: tuple[int, int], prefix: int
    ) -> None:
        super().__init__(stages, frozen)
        self.grid, self.prefix = grid, prefix

    def as_map(self, state: Tensor) -> Tensor:
        return state[:, self.prefix :].transpose(1, 2).unflatten(2, self.grid)

    def with_map(self, state: Tensor, changed: Tensor) -> Tensor:
        return torch.cat([state[:, : self.prefix], changed.flatten(2).transpose(1, 2)], 1)


def encoder(settings: Any, size: int) -> StagedEncoder:
    """The encoder of `config.encoder` for images of `size` x `size` pixels."""
    made: dict[str, Callable[[Any, int], StagedEncoder]] = {
        "resnet50": resnet50,
        "vit": vit,
        "efficientnet": efficientnet,
        "convnet": convnet,
    }
    if settings.name not in made:
        raise UserError(
            f"encoder.name takes {', '.join(made)}; found {settings.name!r}." + suggest(settings.name, made)
        )
    return made[settings.name](settings, size)


def resnet50(settings: Any, size: int = 0) -> StagedEncoder:
    """SSP's ResNet-50: deep stem, stride 8 (layer3 dilated), no layer4, no ReLU at the end of layer3."""
    net = pretrained(settings, output_stride=8)
    net.layer3[-1].act3 = nn.Identity()
    stem = nn.Sequential(net.conv1, net.bn1, net.act1, net.maxpool)
    return StagedEncoder(
        dict(zip(STAGES, (stem, net.layer1, net.layer2, net.layer3), strict=True)), settings.frozen
    )


def vit(settings: Any, size: int) -> StagedViT:
    """Embedding and block 1, block 2, the lower and the upper half of the others; then the final norm."""
    net = pretrained(settings, img_size=size)
    blocks = list(net.blocks)
    if not 4 <= settings.blocks <= len(blocks):
        raise UserError(f"encoder.blocks is a number from 4 to {len(blocks)}, found {settings.blocks}.")
    middle = (2 + settings.blocks) // 2
    parts = (
        nn.Sequential(Tokens(net), blocks[0]),
        blocks[1],
        nn.Sequential(*blocks[2:middle]),
        nn.Sequential(*blocks[middle : settings.blocks], net.norm),
    )
    stages = dict(zip(STAGES, parts, strict=True))
    return StagedViT(stages, settings.frozen, net.patch_embed.grid_size, net.num_prefix_tokens)


class Tokens(nn.Module):
    """Patches, class token and positions of a timm transformer, without its blocks."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.patch_embed, self.prefix = net.patch_embed, net.num_prefix_tokens
        self.cls_token, self.pos_embed, self.norm_pre = net.cls_token, net.pos_embed, net.norm_pre

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.patch_embed(images)  # (N, h w, C)
        tokens = torch.cat([self.cls_token.expand(len(tokens), -1, -1), tokens], 1)
        return self.norm_pre(tokens + self.pos_embed)


def efficientnet(settings: Any, size: int = 0) -> StagedEncoder:
    """EfficientNet-Lite0 with the embedded ImageNet weights: stride 8, without its last two groups of blocks.

    Stages end at 16, 24, 40 and 112 channels; none of them ends with an activation.
    """
    from projects.cdfss_sharpness import efficientnet_lite

    net = efficientnet_lite.load(pretrained=settings.weights != "none")
    groups = net.blocks
    stem = nn.Sequential(efficientnet_lite.Rescale(), net.conv_stem, net.bn1, groups[0])
    parts = (stem, groups[1], groups[2], nn.Sequential(groups[3], groups[4]))
    return StagedEncoder(dict(zip(STAGES, parts, strict=True)), settings.frozen)


def pretrained(settings: Any, **options: Any) -> nn.Module:
    """A timm network; `encoder.weights`: empty for its usual weights, a timm id, a folder, or `none`."""
    import timm

    architecture = TIMM[settings.name].partition(".")[0]
    if settings.weights == "none":
        return timm.create_model(architecture, pretrained=False, num_classes=0, **options)
    named = settings.weights or TIMM[settings.name]
    source = f"local-dir:{Path(named).expanduser()}" if Path(named).expanduser().is_dir() else named
    return timm.create_model(source, pretrained=True, num_classes=0, **options)


def convnet(settings: Any, size: int = 0) -> StagedEncoder:
    """Four stages of 3x3 convolutions, of which 2 and 3 halve the image. No pretraining, hence group
    instead of frozen batch normalisation; the last ReLU is left out, as in the ResNet."""
    if len(settings.widths) != len(STAGES):
        raise UserError(f"encoder.widths has {len(STAGES)} numbers of channels, found {settings.widths}.")
    stages, before = {}, 3
    for name, width in zip(STAGES, settings.widths, strict=True):
        stride = 2 if name in ("stage2", "stage3") else 1
        layers: list[nn.Module] = []
        for number in range(settings.depth):
            layers += _convolution(before, width, 1 if number else stride)
            before = width
        stages[name] = nn.Sequential(*layers[: -1 if name == STAGES[-1] else None])
    return StagedEncoder(stages, settings.frozen)


def _convolution(before: int, width: int, stride: int) -> list[nn.Module]:
    groups = next(count for count in (8, 4, 2, 1) if width % count == 0)
    return [nn.Conv2d(before, width, 3, stride, 1, bias=False), nn.GroupNorm(groups, width), nn.ReLU()]
