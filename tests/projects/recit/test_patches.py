"""The four simple disruptions and the warm-up."""

from __future__ import annotations

import pytest
import torch

from projects.recit.patches import (
    draw_order,
    from_patches,
    shuffle_amplitudes,
    shuffle_patches,
    shuffle_phases,
    to_patches,
)
from projects.recit.warmup import draw_grid, enlarge, shuffle_tokens
from shared.errors import UserError

IMAGES = torch.randn(3, 2, 12, 18)


@pytest.mark.parametrize("pieces", [1, 2, 6, (4, 9), (12, 18), (3, 1)])
def test_patches_and_back(pieces: int | tuple[int, int]) -> None:
    rows, columns = (pieces, pieces) if isinstance(pieces, int) else pieces
    patches = to_patches(IMAGES, pieces)
    high, wide = 12 // rows, 18 // columns
    assert patches.shape == (3, rows * columns, 2, high, wide)
    last = IMAGES[1, :, -high:, -wide:]
    assert torch.equal(patches[1, -1], last) and torch.equal(patches[1, 0], IMAGES[1, :, :high, :wide])
    assert torch.equal(from_patches(patches, pieces), IMAGES)


def test_an_order_says_which_patch_comes_where() -> None:
    order = torch.stack([torch.randperm(6) for _ in range(3)])
    shuffled = to_patches(shuffle_patches(IMAGES, (2, 3), order), (2, 3))
    patches = to_patches(IMAGES, (2, 3))
    for b in range(3):
        for k in range(6):
            assert torch.equal(shuffled[b, k], patches[b, order[b, k]])


@pytest.mark.parametrize(("shuffle", "foreign"), [(shuffle_amplitudes, "abs"), (shuffle_phases, "angle")])
def test_one_part_of_the_spectrum_is_exchanged(shuffle, foreign: str) -> None:
    order = torch.stack([torch.randperm(6) for _ in range(3)])
    before = torch.fft.fft2(to_patches(IMAGES, (2, 3)))
    after = torch.fft.fft2(to_patches(shuffle(IMAGES, (2, 3), order), (2, 3)))
    taken = before[torch.arange(3)[:, None], order]
    amplitude = taken.abs() if foreign == "abs" else before.abs()
    phase = before.angle() if foreign == "abs" else taken.angle()
    torch.testing.assert_close(after, amplitude * torch.exp(1j * phase), atol=1e-4, rtol=1e-4)
    assert not torch.allclose(after, before, atol=0.1)


@pytest.mark.parametrize("shuffle", [shuffle_patches, shuffle_amplitudes, shuffle_phases])
def test_the_identity_order_and_the_whole_image_change_nothing(shuffle) -> None:
    order = torch.arange(6).expand(3, -1)
    torch.testing.assert_close(shuffle(IMAGES, (2, 3), order), IMAGES, atol=1e-5, rtol=0)
    torch.testing.assert_close(shuffle(IMAGES, 1), IMAGES, atol=1e-5, rtol=0)
    half = shuffle(IMAGES.half(), 2)
    assert half.dtype == torch.float16 and half.shape == IMAGES.shape


def test_every_image_has_an_order_of_its_own() -> None:
    order = draw_order(20, 9)
    assert (order.sort(1).values == torch.arange(9)).all() and len(
        {tuple(row) for row in order.tolist()}
    ) > 15
    first = order[:, 0].float()
    assert first.std() > 1


@pytest.mark.parametrize("pieces", [5, (4, 4), 0])
def test_pieces_that_do_not_divide_are_refused(pieces) -> None:
    with pytest.raises(UserError, match="pieces divide, found 12 x 18 pixels"):
        to_patches(IMAGES, pieces)


def test_grids_are_uniform_with_both_ends() -> None:
    torch.manual_seed(0)
    drawn = torch.tensor([draw_grid(14, 32) for _ in range(4000)])
    counts = torch.bincount(drawn, minlength=33)
    assert counts[:14].sum() == 0 and len(counts) == 33
    assert (counts[14:] > 140).all() and (counts[14:] < 290).all()  # 211 expected of each
    assert draw_grid(4, 4) == 4
    with pytest.raises(UserError, match="1 <= smallest <= largest; found 5 and 4"):
        draw_grid(5, 4)


def test_images_become_grids_of_patches() -> None:
    images = torch.rand(2, 3, 32, 32)
    assert enlarge(images, 4, 8) is images
    larger = enlarge(images, 7, 8)
    assert larger.shape == (2, 3, 56, 56)
    assert float(larger.mean()) == pytest.approx(float(images.mean()), abs=0.02)
    assert float(larger.amin()) >= float(images.amin()) and float(larger.amax()) <= float(images.amax())


def test_one_order_for_the_batch_and_no_token_is_lost() -> None:
    tokens = torch.randn(2, 50, 6)
    shuffled = shuffle_tokens(tokens)
    order = [int((tokens[0] == row).all(1).nonzero()) for row in shuffled[0]]
    assert sorted(order) == list(range(50)) and order != list(range(50))
    assert torch.equal(shuffled[1], tokens[1, order])
