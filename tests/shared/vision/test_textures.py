"""Crops of the photographs of scikit-image."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from shared.errors import UserError
from shared.vision.textures import PHOTOGRAPHS, TEXTURES, crops, photograph


def test_all_pictures_are_there_in_colour() -> None:
    assert len(TEXTURES) == 14
    for name in PHOTOGRAPHS:
        pixels = photograph(name)
        assert pixels.dtype == np.uint8 and pixels.ndim == 3 and pixels.shape[2] == 3, name
        assert min(pixels.shape[:2]) >= 150 and pixels.std() > 10, name


def test_crops_are_pieces_of_the_picture_and_follow_the_stream() -> None:
    pixels = photograph("text")
    cut = crops("text", 3, 172, torch.Generator().manual_seed(1))
    assert cut.shape == (3, 172, 172, 3) and cut.dtype == np.uint8
    for one in cut:  # the picture is 172 high: a crop is a run of columns
        assert any((pixels[:, left : left + 172] == one).all() for left in range(pixels.shape[1] - 171))
    again = crops("text", 3, 172, torch.Generator().manual_seed(1))
    other = crops("text", 3, 172, torch.Generator().manual_seed(2))
    assert (cut == again).all() and not (cut == other).all()


def test_grey_crops_are_the_luma() -> None:
    colour = crops("coffee", 2, 33, torch.Generator().manual_seed(0)).astype(float)
    grey = crops("coffee", 2, 33, torch.Generator().manual_seed(0), grey=True)
    expected = 0.299 * colour[..., 0] + 0.587 * colour[..., 1] + 0.114 * colour[..., 2]
    assert np.abs(grey - expected).max() <= 0.5
    assert crops("coffee", 0, 33).shape == (0, 33, 33, 3)


def test_unknown_names_and_sizes_are_refused() -> None:
    with pytest.raises(UserError, match="no photograph 'gras'. Did you mean 'grass'"):
        photograph("gras")
    with pytest.raises(UserError, match="'text' has 172 x 448 pixels; expected crops of 1 to 172, found 173"):
        crops("text", 1, 173)
