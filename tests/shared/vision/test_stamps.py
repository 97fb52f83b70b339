"""Stamps: masks, categories and captions; the embedded set as it is."""

import numpy as np
import pytest
from PIL import Image

from shared.errors import UserError
from shared.vision.stamps import cut_out, load


@pytest.fixture
def folder(tmp_path):
    """A square in colour, the same mirrored, a grey one without caption, an opaque one."""
    birds = tmp_path / "animals" / "birds"
    birds.mkdir(parents=True)
    (tmp_path / "food").mkdir()
    pixels = np.zeros((21, 30, 4), np.uint8)
    pixels[5:15, 10:20] = (200, 10, 20, 255)
    Image.fromarray(pixels).save(birds / "robin.png")
    Image.fromarray(pixels[:, ::-1].copy()).save(birds / "robin_mirror.png")
    (birds / "robin.txt").write_text("A robin.\nde.utf8=Ein Rotkehlchen.\n", encoding="utf-8")
    Image.fromarray(pixels[..., [0, 3]].copy(), "LA").save(tmp_path / "food" / "apple.png")
    Image.fromarray(np.full((8, 8, 3), 9, np.uint8)).save(tmp_path / "food" / "tile.png")
    return tmp_path


def test_reads_what_is_there(folder):
    robin, apple, tile = load(folder=folder)
    assert (robin.name, robin.folders, robin.caption) == ("robin", ("animals", "birds"), "A robin.")
    assert (robin.category, robin.kind) == ("animals", "animals/birds")
    assert (apple.category, apple.kind, apple.caption) == ("food", "food", "")
    assert robin.image.shape == (21, 30, 4) and robin.image.dtype == np.uint8
    assert robin.mask.sum() == 100 and apple.mask.sum() == 100 and tile.mask.all()
    assert (apple.image[..., 0] == apple.image[..., 2]).all()


def test_cut_out_leaves_opaque_ones_and_crops(folder):
    robin, apple = cut_out(load(folder=folder), centre=True)
    assert robin.image.shape == apple.image.shape == (10, 10, 4) and robin.mask.all()
    assert [stamp.image.shape for stamp in cut_out(load(folder=folder))] == [(21, 30, 4)] * 2


def test_sizes(folder):
    assert [stamp.image.shape[:2] for stamp in load(max_side=10, folder=folder)] == [(7, 10), (7, 10), (8, 8)]
    assert len(load(min_side=9, folder=folder)) == 2
    with pytest.raises(UserError, match="from 1 on, found 0"):
        load(max_side=0, folder=folder)


def test_an_empty_folder(tmp_path):
    with pytest.raises(UserError, match=r"download_data.py stamps"):
        load(folder=tmp_path)


def test_the_embedded_set():
    stamps = load()
    assert len(stamps) == 785 and len({stamp.category for stamp in stamps}) == 16
    assert sum((~stamp.mask).mean() > 0.02 for stamp in stamps) > 700
    assert not [stamp.name for stamp in stamps if "mirror" in stamp.name]
    assert sum(stamp.kind == "animals/birds" for stamp in stamps) == 38
    frog = next(stamp for stamp in stamps if stamp.name == "frog-1")
    assert frog.caption == "A frog."
    assert load() is stamps
