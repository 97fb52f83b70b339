"""The real sets in their published layouts, and the episodes drawn from them."""

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn.functional import interpolate

from projects.cdfss_sharpness.data import folders
from projects.cdfss_sharpness.data.datamodule import EpisodeData, target_names
from projects.cdfss_sharpness.data.episodes import ImagePool, PoolEpisodes, as_input, nearest, shuffled
from projects.cdfss_sharpness.needs import requirements_of
from shared.data.catalogue import missing
from shared.errors import UserError
from tests.projects.cdfss_sharpness import layouts


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("benchmark")
    layouts.write_all(folder)
    return folder


def benchmark(small, root, **episodes):
    layer = {"data": {"root": str(root)}, "lcm": {"grid": 3}}
    return small.config(layer, **({"source": "pascal", "size": 40, "test": 7} | episodes))


def test_catalogue_knows_these_layouts(small, root, tmp_path):
    assert missing(requirements_of(benchmark(small, root))) == []
    found = missing(requirements_of(benchmark(small, tmp_path)))
    assert len(found) == 6 and "PATNet" in found[-1] and "fss/test.txt" in found[-1]
    (weights,) = requirements_of(small.config({"encoder": {"name": "vit", "weights": ""}}))[2:]
    assert weights.name == "timm/vit_base_patch16_224.augreg_in1k"


def test_pascal_joins_four_folds(root):
    pool, entries = folders.pascal(root, root / "splits")
    assert pool.classes == ("aeroplane", "tvmonitor") and len(entries) == 8
    image, labels = pool.read("2007_000002", 1)
    assert image.size == (48, 40) and labels.shape == (40, 48)
    assert (labels[:9, :9] == 1).all() and (labels[9:11, :9] == 255).all()
    _, other = pool.read("2007_000002", 0)
    disc = layouts.disc(2, (48, 40))
    assert (other[11:, 9:] == disc[11:, 9:]).all() and (other[:9, :9] == 0).all()


def test_pascal_in_the_devkit_folder(tmp_path):
    layouts.write_pascal(tmp_path, base="VOCdevkit/VOC2012")
    pool, _ = folders.pascal(tmp_path, tmp_path / "splits")
    assert pool.read("2007_000000", 0)[0].size == (48, 40)


@pytest.mark.parametrize(
    ("reader", "classes", "images"),
    [(folders.deepglobe, 6, 2), (folders.isic, 3, 2), (folders.chest, 1, 4)],
)
def test_targets(root, reader, classes, images):
    pool = reader(root)
    assert len(pool.classes) == classes and all(len(own) == images for own in pool.members)
    seed = 10 if reader is not folders.chest else 0
    size = (48, 60) if reader is folders.chest else (48, 48)
    image, labels = pool.read(pool.members[0][0], 0)
    assert image.mode == "RGB" and (labels == layouts.disc(seed, size)).all()


def test_fss_has_every_image_once_as_query(small, root):
    data = EpisodeData(benchmark(small, root))
    episodes = data.tests[0]
    assert data.targets == [("fss1000", 2), ("deepglobe", 6), ("isic", 3), ("chest", 1)]
    assert episodes.pool.classes == ("ab_wheel", "zucchini") and len(episodes) == 8
    queries = [episodes.draw(place)[1] for place in range(8)]
    assert len(set(queries)) == 8
    assert [episodes[place].label for place in range(8)] == [0] * 4 + [1] * 4


def test_episode_of_the_other_targets(small, root):
    data = EpisodeData(benchmark(small, root, shots=5))
    for episodes, classes in zip(data.tests[1:], (6, 3, 1), strict=True):
        assert len(episodes) == 7
        for place in range(7):
            label, query, supports = episodes.draw(place)
            assert label == place % classes and len(supports) == 5 and query not in supports
            assert episodes.draw(place) == (label, query, supports)
        episode = episodes[0]
        assert episode.support.shape == (5, 3, 40, 40) and episode.query_labels.shape == (40, 40)
        assert episode.support_labels.dtype == torch.uint8


def test_episodes_are_a_function_of_the_seed(small, root):
    first, again = (EpisodeData(benchmark(small, root)) for _ in range(2))
    assert torch.equal(first.train[3].support, again.train[3].support)
    other = EpisodeData(small.config({"seed": 5, "data": {"root": str(root)}}, source="pascal", test=30))
    draws = [[data.tests[3].draw(place)[1:] for place in range(7)] for data in (first, other)]
    assert draws[0] != draws[1]


def test_training_goes_through_the_list(small, root):
    data = EpisodeData(benchmark(small, root, train=20))
    entries = [data.train.draw(place)[:2] for place in range(20)]
    _, listed = folders.pascal(root, root / "splits")
    assert sorted(entries[:8]) == sorted(entries[8:16]) == sorted(listed) and len(data.train) == 20
    assert entries[:8] != entries[8:16]
    assert len(shuffled(listed, 3, 0)) == 3


def test_resizing():
    """Images by bilinear resizing to a square, labels by the nearest pixel as torch has it."""
    pixels = np.random.default_rng(0).integers(0, 256, (31, 47, 3), dtype=np.uint8)
    found = as_input(Image.fromarray(pixels), 20)
    wanted = np.asarray(Image.fromarray(pixels).resize((20, 20), Image.Resampling.BILINEAR)) / 255
    wanted = (wanted - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]
    np.testing.assert_allclose(found.numpy(), wanted.transpose(2, 0, 1), atol=1e-5)
    labels = np.random.default_rng(1).integers(0, 3, (31, 47)).astype(np.uint8)
    wanted = interpolate(torch.tensor(labels)[None, None].float(), (20, 20), mode="nearest")[0, 0]
    assert torch.equal(nearest(labels, 20).float(), wanted)


def pool_of(counts, foreground=1):
    def read(image, label):
        labels = np.full((9, 7), foreground, np.uint8)
        return Image.new("RGB", (7, 9)), labels

    members = tuple(tuple(f"{label}/{n}" for n in range(count)) for label, count in enumerate(counts))
    return ImagePool("made up", tuple(f"class {n}" for n in range(len(counts))), members, read)


@pytest.mark.parametrize(("count", "images"), [(0, "0 images"), (1, "1 image;")])
def test_a_class_with_too_few_images_is_named(count, images):
    with pytest.raises(UserError, match=f"made up: class 'class 1' has {images}.*at least 2"):
        PoolEpisodes(pool_of([3, count]), shots=1, size=8, seed=0, count=4)


def test_a_support_mask_without_foreground_is_named():
    episodes = PoolEpisodes(pool_of([3], foreground=0), shots=1, size=8, seed=0, count=4)
    with pytest.raises(UserError, match=r"mask of 0/\d has no foreground \(class 'class 0'\)"):
        episodes[0]


def test_odd_sizes_and_five_shots_from_two_images():
    episodes = PoolEpisodes(pool_of([2]), shots=5, size=13, seed=0, count=3)
    assert episodes[2].support.shape == (5, 3, 13, 13)
    assert len(set(episodes.draw(0)[2])) == 1  # supports may coincide
    with pytest.raises(IndexError):
        episodes[3]
    with pytest.raises(UserError, match="shots"):
        PoolEpisodes(pool_of([2]), shots=0, size=13, seed=0, count=3)


def test_what_is_missing_or_wrong(small, root, tmp_path):
    with pytest.raises(UserError, match=r"data.root is not set"):
        EpisodeData(small.config(source="pascal"))
    layouts.write_pascal(tmp_path)
    pool, _ = folders.pascal(tmp_path, tmp_path / "splits")
    (tmp_path / "VOC2012/JPEGImages/2007_000001.jpg").unlink()
    with pytest.raises(UserError, match=r"2007_000001.jpg, found none"):
        pool.read("2007_000001", 0)
    (tmp_path / "VOC2012/SegmentationClassAug/2007_000003.png").write_bytes(b"no picture")
    with pytest.raises(UserError, match=r"2007_000003.png cannot be read as a picture"):
        pool.read("2007_000003", 0)
    layouts.picture(tmp_path / "VOC2012/SegmentationClassAug/2007_000002.png", 0)
    with pytest.raises(UserError, match=r"class numbers 0..20.*one channel"):
        pool.read("2007_000002", 0)
    with pytest.raises(UserError, match=r"list .*fss.test.txt, found none.*PATNet"):
        folders.fss1000(tmp_path, tmp_path / "splits")
    with pytest.raises(UserError, match=r"ISIC 2018: expected \*.jpg in"):
        folders.isic(tmp_path)


def test_a_damaged_list(tmp_path):
    layouts.write_pascal(tmp_path)
    (tmp_path / "splits/pascal/trn/fold2.txt").write_text("2007_000000__21\n")
    with pytest.raises(UserError, match=r"<class 1..20>, found '2007_000000__21'"):
        folders.pascal(tmp_path, tmp_path / "splits")


def test_wrong_names(small):
    with pytest.raises(UserError, match="Did you mean 'pascal'"):
        target_names(small.config(source="pascl").episodes)
    with pytest.raises(UserError, match=r"targets of digits are inverted.*found 'isic'"):
        target_names(small.config(targets=["isic"]).episodes)
