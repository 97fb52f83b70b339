"""Tiles of land cover, lesions by class."""

import numpy as np
import pytest
from PIL import Image

from projects.cdfss_sharpness.data import folders, prepare
from shared.errors import UserError
from tests.projects.cdfss_sharpness import layouts

YELLOW, CYAN, GREEN, BLACK = (255, 255, 0), (0, 255, 255), (0, 255, 0), (0, 0, 0)


@pytest.fixture
def download(tmp_path):
    """Tiles of 12 x 12 pixels. Tile 00 is half yellow and half cyan, 01 has 1/12 green, 02 has 1/24
    green, 03 is half unknown; all else is yellow."""
    folder = tmp_path / "download"
    folder.mkdir()
    colours = np.full((72, 72, 3), YELLOW, np.uint8)
    colours[:6, :12] = CYAN
    colours[:1, 12:24] = GREEN
    colours[:1, 24:30] = GREEN
    colours[:6, 36:48] = BLACK
    layouts.picture(folder / "119_sat.jpg", 0, (72, 72))
    Image.fromarray(colours).save(folder / "119_mask.png")
    layouts.picture(folder / "200_sat.jpg", 0, (72, 72))  # without a mask
    return folder


def test_tiles_and_binary_masks(download, tmp_path):
    assert prepare.deepglobe(download, tmp_path) == 5
    written = sorted(
        str(p.relative_to(tmp_path / "Deepglobe")) for p in (tmp_path / "Deepglobe").rglob("*.png")
    )
    assert written == [
        "1/test/groundtruth/119_00.png",
        "1/test/groundtruth/119_01.png",
        "1/test/groundtruth/119_03.png",
        "2/test/groundtruth/119_00.png",
        "4/test/groundtruth/119_01.png",
    ]
    for path in written:
        assert (
            tmp_path / "Deepglobe" / path.replace("groundtruth", "origin").replace(".png", ".jpg")
        ).is_file()
    mask = np.asarray(Image.open(tmp_path / "Deepglobe/2/test/groundtruth/119_00.png"))
    assert mask.shape == (12, 12) and (mask[:6] == 255).all() and (mask[6:] == 0).all()
    with (
        Image.open(tmp_path / "Deepglobe/2/test/origin/119_00.jpg") as tile,
        Image.open(download / "119_sat.jpg") as whole,
    ):
        apart = np.asarray(tile).astype(float) - np.asarray(whole)[:12, :12]
        assert np.abs(apart).mean() < 12  # encoded again


def test_real_tiles_are_408_pixels():
    assert [tile.shape for _, tile in prepare.tiles(np.zeros((2448, 2448, 3), np.uint8))] == [
        (408, 408, 3)
    ] * 36


def test_the_reader_takes_what_was_written(tmp_path):
    source = tmp_path / "download"
    source.mkdir()
    colours = list(prepare.COLOURS)
    for name in range(2):
        pixels = np.zeros((72, 72, 3), np.uint8)
        for number in range(36):
            row, column = divmod(number, 6)
            pair = colours[number % 6], colours[(number + 1) % 6]
            pixels[row * 12 : row * 12 + 6, column * 12 : column * 12 + 12] = pair[0]
            pixels[row * 12 + 6 : row * 12 + 12, column * 12 : column * 12 + 12] = pair[1]
        layouts.picture(source / f"{name}_sat.jpg", name, (72, 72))
        Image.fromarray(pixels).save(source / f"{name}_mask.png")
    prepare.main(["deepglobe", str(source), str(tmp_path)])
    pool = folders.deepglobe(tmp_path)
    assert [len(own) for own in pool.members] == [24] * 6
    assert all(pool.read(own[0], label)[1].mean() == 0.5 for label, own in enumerate(pool.members))


def test_lesions_by_class(tmp_path):
    layouts.write_isic(tmp_path)
    base = tmp_path / "ISIC" / "ISIC2018_Task1-2_Training_Input"
    rows, names = ["ID,Class"], {"1": "nevus", "2": "seborrheic_keratosis", "3": "melanoma"}
    for path in sorted(base.rglob("*.jpg")):
        rows.append(f"{path.stem},{names[path.parent.name]}")
        path.rename(base / path.name)
    table = tmp_path / "class_id.csv"
    table.write_text("\n".join(rows))
    for folder in names:
        (base / folder).rmdir()
    assert prepare.isic(table, tmp_path) == 6
    pool = folders.isic(tmp_path)
    assert [len(own) for own in pool.members] == [2, 2, 2]
    assert (pool.read(pool.members[2][1], 2)[1] == layouts.disc(31)).all()


def test_what_is_wrong_is_said(download, tmp_path):
    with pytest.raises(UserError, match=r"_sat.jpg and <id>_mask.png"):
        prepare.deepglobe(tmp_path, tmp_path)
    layouts.picture(download / "200_mask.png", 0, (60, 72))
    with pytest.raises(UserError, match="expected equal shapes"):
        prepare.deepglobe(download, tmp_path)
    table = tmp_path / "table.csv"
    with pytest.raises(UserError, match="found nothing at"):
        prepare.isic(table, tmp_path)
    for text, message in (
        ("a,b\n1,2\n", "columns ID and Class"),
        ("ID,Class\nx,wart\n", "found 'wart'"),
        ("ID,Class\nx,nevus\n", "names x.jpg"),
    ):
        table.write_text(text)
        with pytest.raises(UserError, match=message):
            prepare.isic(table, tmp_path)
