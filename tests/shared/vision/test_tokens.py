"""Hooked tokens: the plain forward is timm's, positions of other grids, edits, collected blocks."""

from __future__ import annotations

import math

import pytest
import timm
import torch
from torch import nn

from shared.errors import UserError
from shared.vision.tokens import TokenViT, collected, edited, resize_positions

SHAPE = {"img_size": 24, "patch_size": 8, "embed_dim": 12, "depth": 3, "num_heads": 2, "num_classes": 0}


def small(**changes: object) -> nn.Module:
    torch.manual_seed(0)
    return timm.create_model("vit_small_patch16_224", pretrained=False, **SHAPE | changes).eval()


def test_the_plain_forward_is_timms_bit_for_bit() -> None:
    images = torch.randn(2, 3, 24, 24)
    expected = small()(images)
    model = TokenViT(small())
    assert torch.equal(model(images), expected)
    assert torch.equal(model.eval()(images), expected)
    assert (model.patch, model.width) == (8, 12)


def test_an_edit_comes_before_positions_and_sees_the_images() -> None:
    vit, images = small(), torch.randn(2, 3, 24, 24)
    seen = []

    def edit(tokens: torch.Tensor, given: torch.Tensor) -> torch.Tensor:
        seen.append((tokens, given))
        return tokens.flip(1)

    found = TokenViT(vit)(images, edit=edit)
    tokens = vit.patch_embed(images)
    assert torch.equal(seen[0][0], tokens) and seen[0][1] is images
    z = torch.cat([vit.cls_token.expand(2, -1, -1), tokens.flip(1)], 1) + vit.pos_embed
    torch.testing.assert_close(found, vit.norm(vit.blocks(z))[:, 0])
    assert torch.equal(vit(images), small()(images)), "the hook is gone"


def test_no_positions_means_that_patches_have_no_order() -> None:
    model, images = TokenViT(small()), torch.randn(2, 3, 24, 24)

    def turned(positions: bool) -> float:
        one = model(images, positions=positions)
        other = model(images, edit=lambda tokens, _: tokens[:, torch.randperm(9)], positions=positions)
        return float((one - other).detach().abs().max())

    assert turned(positions=False) < 1e-5
    assert turned(positions=True) > 1e-3


@pytest.mark.parametrize(("height", "width"), [(40, 40), (16, 32), (8, 24)])
def test_images_of_other_sizes(height: int, width: int) -> None:
    vit = small()
    model = TokenViT(vit)
    with torch.no_grad():
        vit.pos_embed[:, 1:] = 0.7  # equal positions stay equal, whatever the grid
    images = torch.randn(2, 3, height, width)
    found = model(images)
    tokens = torch.cat([vit.cls_token.expand(2, -1, -1), vit.patch_embed(images)], 1)
    z = tokens + torch.cat([vit.pos_embed[:, :1], torch.full((1, tokens.shape[1] - 1, 12), 0.7)], 1)
    torch.testing.assert_close(found, vit.norm(vit.blocks(z))[:, 0], atol=1e-5, rtol=1e-5)
    model(images).sum().backward()
    assert float(vit.pos_embed.grad.norm()) > 0


@pytest.mark.parametrize("size", [(25, 24), (24, 20), (0, 8)])
def test_sizes_that_patches_do_not_divide_are_refused(size: tuple[int, int]) -> None:
    with pytest.raises(UserError, match=rf"multiples of the patch \(8 pixels\), found {size[0]} x {size[1]}"):
        TokenViT(small())(torch.zeros(1, 3, *size))


def test_positions_of_the_same_grid_are_the_parameter_itself() -> None:
    positions = nn.Parameter(torch.randn(1, 10, 4))
    assert resize_positions(positions, (3, 3), (3, 3)) is positions
    with pytest.raises(UserError, match=r"expected 1 \+ 4 x 4 positions, found 10"):
        resize_positions(positions, (4, 4), (3, 3))


def cubic(x: float, a: float = -0.75) -> float:
    x = abs(x)
    if x <= 1:
        return (a + 2) * x**3 - (a + 3) * x**2 + 1
    return a * x**3 - 5 * a * x**2 + 8 * a * x - 4 * a if x < 2 else 0.0


@pytest.mark.parametrize(("old", "new"), [(5, 8), (5, 3), (14, 32)])
def test_interpolation_is_bicubic_at_dinos_scale(old: int, new: int) -> None:
    """Written out: the weights of the four neighbours on each axis, clamped at the border."""
    positions = torch.randn(1, 1 + old * old, 2, dtype=torch.float64)
    found = resize_positions(positions, (old, old), (new, new))
    assert torch.equal(found[:, :1], positions[:, :1])
    weights = torch.zeros(new, old, dtype=torch.float64)
    for place in range(new):
        at = (place + 0.5) * old / (new + 0.1) - 0.5
        base = math.floor(at)
        for neighbour in range(base - 1, base + 3):
            weights[place, min(max(neighbour, 0), old - 1)] += cubic(at - neighbour)
    plane = positions[0, 1:].reshape(old, old, 2)
    expected = torch.einsum("ia,jb,abd->ijd", weights, weights, plane).reshape(-1, 2)
    torch.testing.assert_close(found[0, 1:], expected, atol=1e-6, rtol=1e-6)


def test_blocks_are_collected_for_as_long_as_asked() -> None:
    vit, images = small(), torch.randn(2, 3, 24, 24)
    with collected(vit, [0, -1]) as tokens:
        feature = vit(images)
    assert tokens[0].shape == (2, 10, 12)
    torch.testing.assert_close(vit.norm(tokens[-1])[:, 0], feature)
    before = tokens[-1]
    vit(torch.zeros(2, 3, 24, 24))
    assert tokens[-1] is before
    with pytest.raises(UserError, match=r"expected blocks 0 to 2.*found \[3\]"), collected(vit, [3]):
        pass


def test_the_hook_goes_also_after_an_error() -> None:
    vit, images = small(), torch.randn(1, 3, 24, 24)
    with pytest.raises(ZeroDivisionError), edited(vit, lambda tokens, _: 1 / 0):
        vit(images)
    assert torch.equal(vit(images), small()(images))


def test_other_networks_are_refused() -> None:
    with pytest.raises(
        UserError, match="absolute position embedding and dynamic_img_size=False, found Vision"
    ):
        TokenViT(small(dynamic_img_size=True))
    with pytest.raises(UserError, match="found ResNet"):
        TokenViT(timm.create_model("resnet18", pretrained=False))
