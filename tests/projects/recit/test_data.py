"""Readers of the real sets in their layouts, JSON lists, transforms, and the embedded domains."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from projects.recit import data
from projects.recit.data import file_lists, laptop
from projects.recit.data.pools import (
    EpochSampler,
    Jitter,
    Pool,
    PoolDataset,
    open_image,
    train_transform,
)
from projects.recit.data.pools import (
    test_transform as squeeze_and_crop,
)
from projects.recit.data.real import CHESTX, ISIC
from shared.errors import UserError
from tests.projects.recit.real_sets import IMAGES, write_chestx, write_isic, write_mini_imagenet


def settings(root: Path | str = "", layout: str = "folders", size: int = 32, seed: int = 0) -> Any:
    return SimpleNamespace(
        data=SimpleNamespace(root=str(root)),
        domains=SimpleNamespace(layout=layout),
        network=SimpleNamespace(image_size=size),
        seed=seed,
    )


@pytest.mark.parametrize(("name", "classes"), [(n, 6 if n == "mini-imagenet" else 7) for n in data.REAL])
def test_a_published_layout_is_read(name: str, classes: int, real_root: Path) -> None:
    pool = data.load_pool(name, "novel", settings(real_root))
    assert len(pool) == IMAGES * classes and len(pool.classes) == classes
    assert pool.labels.bincount().tolist() == [IMAGES] * classes
    dataset = PoolDataset(pool, squeeze_and_crop(32))
    for label in (0, classes - 1):  # the colour tells the class
        place = int((pool.labels == label).nonzero()[0])
        image, found, at = dataset[place]
        assert image.shape == (3, 32, 32) and (found, at) == (label, place)
        if name != "chestx":
            red = 255 * (image[0].mean() * 0.229 + 0.485)
            assert abs(float(red) - (40 + 30 * (label % 7))) < 12


def test_parts_of_mini_imagenet_are_other_classes(real_root: Path) -> None:
    base, novel = (data.load_pool("mini-imagenet", part, settings(real_root)) for part in ("base", "novel"))
    assert not set(base.classes) & set(novel.classes)


def test_labels_of_the_tables(real_root: Path) -> None:
    isic = data.load_pool("isic", "novel", settings(real_root))
    assert (
        isic.classes == ISIC
        and isic.images[IMAGES].name == "ISIC_0010000.jpg"
        and int(isic.labels[IMAGES]) == 1
    )
    chestx = data.load_pool("chestx", "novel", settings(real_root))
    assert chestx.classes == CHESTX and not any("other" in image.name for image in chestx.images)
    assert open_image(chestx.images[0]).mode == "RGB"


def test_requirements_name_what_is_missing(tmp_path: Path, real_root: Path) -> None:
    from shared.data.catalogue import missing

    domains = SimpleNamespace(source="mini-imagenet", targets=list(data.REAL[1:]), layout="folders")
    config = settings(tmp_path)
    config.domains = domains
    found = missing(data.requirements(config))
    assert len(found) == 5 and "Data_Entry_2017.csv" in " ".join(found)
    config.data.root = str(real_root)
    assert missing(data.requirements(config)) == []
    domains.layout = "lists"
    (first, *_) = found = missing(data.requirements(config))
    assert len(found) == 5 and "miniImageNet/{base,novel}.json" in first


def test_lists_are_read_as_the_folders_they_were_written_from(tmp_path: Path, real_root: Path) -> None:
    for name in data.REAL:
        pool = data.load_pool(name, "novel", settings(real_root))
        file_lists.write_list(pool, tmp_path / file_lists.FOLDERS[name] / "novel.json")
        again = data.load_pool(name, "novel", settings(tmp_path, "lists"))
        assert again.classes == pool.classes and torch.equal(again.labels, pool.labels)
        assert again.images == pool.images


def write(path: Path, **changes: Any) -> Path:
    image = path.parent / "a.png"
    Image.new("RGB", (4, 4)).save(image)
    content = {"label_names": ["x", "y"], "image_names": ["a.png", str(image)], "image_labels": [1, 0]}
    path.write_text(json.dumps(content | changes))
    return path


def test_labels_of_a_list_need_not_begin_at_zero(tmp_path: Path) -> None:
    pool = file_lists.read_list("eurosat", write(tmp_path / "novel.json"))
    assert (
        pool.classes == ("x", "y") and pool.labels.tolist() == [1, 0] and pool.images[0] == tmp_path / "a.png"
    )
    names = [f"class{number}" for number in range(100)]
    pool = file_lists.read_list(
        "eurosat", write(tmp_path / "n.json", label_names=names, image_labels=[99, 80])
    )
    assert pool.classes == ("class80", "class99") and pool.labels.tolist() == [1, 0]
    pool = file_lists.read_list("eurosat", write(tmp_path / "n.json", image_labels=[99, 80]))
    assert pool.classes == ("x", "y")


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"image_labels": [1]}, "as many labels as images; found 1 and 2"),
        ({"image_labels": [1, "0"]}, "numbers from 0 on, found '0'"),
        ({"image_labels": [1, -1]}, "numbers from 0 on, found -1"),
        ({"image_names": ["a.png", "gone.png"]}, r"1 of 2 images are missing, the first is .*gone\.png"),
        ({"label_names": None}, "expected an object with the lists label_names"),
        ({"image_names": [], "image_labels": []}, "found 0 and 0"),
    ],
)
def test_bad_lists_are_refused(tmp_path: Path, changes: dict[str, Any], text: str) -> None:
    with pytest.raises(UserError, match=text):
        file_lists.read_list("eurosat", write(tmp_path / "novel.json", **changes))


def test_lists_that_are_no_lists(tmp_path: Path) -> None:
    path = tmp_path / "novel.json"
    with pytest.raises(UserError, match=r"eurosat: expected the file list .*novel\.json, found none"):
        file_lists.read_list("eurosat", path)
    path.write_text('{"label_names": [')
    with pytest.raises(UserError, match=r"novel\.json is not JSON"):
        file_lists.read_list("eurosat", path)
    path.write_text("[1]")
    with pytest.raises(UserError, match="found list"):
        file_lists.read_list("eurosat", path)


def test_damaged_sets_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="mini-imagenet: expected a folder of classes at .*train, found none"):
        data.load_pool("mini-imagenet", "base", settings(tmp_path))
    write_mini_imagenet(tmp_path, 1, 1)
    (image,) = tmp_path.glob("mini_imagenet_full_size/test/*/*.JPEG")
    image.write_bytes(b"no image")
    with pytest.raises(UserError, match=r"_0\.JPEG cannot be read as an image"):
        open_image(image)
    image.unlink()
    with pytest.raises(UserError, match="found no such file"):
        data.load_pool("mini-imagenet", "novel", settings(tmp_path))
    write_isic(tmp_path, 1)
    next(tmp_path.glob("ISIC/*Input/*.jpg")).unlink()
    with pytest.raises(UserError, match="isic: 1 of 7 images of the table are missing"):
        data.load_pool("isic", "novel", settings(tmp_path))
    table = next(tmp_path.glob("ISIC/*GroundTruth/*.csv"))
    table.write_text("image,MEL\na,1\n")
    with pytest.raises(UserError, match="expected the columns image, MEL, NV.*found image, MEL"):
        data.load_pool("isic", "novel", settings(tmp_path))
    table.write_text("image," + ",".join(ISIC) + "\na,1,0\n")
    with pytest.raises(UserError, match="line 2: expected a name and 7 numbers, found a,1,0"):
        data.load_pool("isic", "novel", settings(tmp_path))
    write_chestx(tmp_path, 1)
    (tmp_path / "ChestX/Data_Entry_2017.csv").write_text("Image Index,Finding Labels\n")
    with pytest.raises(UserError, match="expected a head and rows below it, found 1 lines"):
        data.load_pool("chestx", "novel", settings(tmp_path))


def test_names_and_roots() -> None:
    with pytest.raises(UserError, match="no domain 'eurosatt'. Did you mean 'eurosat'"):
        data.load_pool("eurosatt", "novel", settings())
    with pytest.raises(UserError, match="data.root is not set"):
        data.load_pool("eurosat", "novel", settings())


def test_the_test_transform_squeezes_to_257_and_cuts_224() -> None:
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (90, 300, 3), dtype=np.uint8))
    found = squeeze_and_crop(224)(image)
    resized = image.resize((257, 257), Image.Resampling.BILINEAR).crop((16, 16, 240, 240))
    mean, std = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
    expected = (np.asarray(resized) / 255 - mean) / std
    assert np.abs(found.permute(1, 2, 0).numpy() - expected).max() < 1e-5


def test_augmentation_is_a_function_of_seed_epoch_and_place(real_root: Path) -> None:
    pool = data.load_pool("mini-imagenet", "base", settings(real_root))
    dataset = PoolDataset(pool, train_transform(24), seed=3)
    first = dataset[(1, 5)][0]
    state = torch.random.get_rng_state()
    assert torch.equal(dataset[(1, 5)][0], first)
    assert torch.equal(torch.random.get_rng_state(), state), "the global stream is left alone"
    assert not torch.equal(dataset[(2, 5)][0], first)
    assert not torch.equal(PoolDataset(pool, train_transform(24), seed=4)[(1, 5)][0], first)
    sampler = EpochSampler(10, 3, shuffle=True)
    sampler.set_epoch(2)
    keys = list(sampler)
    assert {epoch for epoch, _ in keys} == {2} and sorted(place for _, place in keys) == list(range(10))


def test_jitter_stays_within_its_bounds() -> None:
    grey = Image.new("RGB", (8, 8), (100, 100, 100))
    torch.manual_seed(0)
    values = torch.tensor([np.asarray(Jitter()(grey)).mean() for _ in range(300)])
    assert 59 <= values.min() < 70 and 130 < values.max() <= 141  # brightness alone changes a grey image


@pytest.mark.parametrize("name", ["digits", "grey-textures"])
def test_embedded_domains(name: str) -> None:
    pool = data.load_pool(name, "novel", settings())
    count = 497 if name == "digits" else 560
    assert pool.images.shape == (count, 3, 32, 32) and len(pool.labels) == count
    assert torch.equal(pool.images[:, 0], pool.images[:, 2])
    if name == "digits":
        base = data.load_pool(name, "base", settings())
        assert len(base) == 1300
        digits = torch.cat([base.images, pool.images])[:, 0].flatten(1).double()
        everything = torch.cat([base.labels, pool.labels])
        other_base, other = (data.load_pool(name, part, settings(seed=1)) for part in ("base", "novel"))
        again = torch.cat([other_base.images, other.images])[:, 0].flatten(1).double()
        assert torch.allclose(digits.sum(0), again.sum(0)), "the two parts are all digits, each once"
        assert torch.equal(everything.bincount(), torch.cat([other_base.labels, other.labels]).bincount())
        assert 0.2 < float(pool.images.mean() * 0.35 + 0.3) < 0.4  # about a third of the ink
    else:
        torch.testing.assert_close(pool.images[:, 0].mean((1, 2)), torch.zeros(count), atol=1e-4, rtol=0)
        assert pool.labels.bincount().tolist() == [40] * 14
    other = data.load_pool(name, "novel", settings(seed=1))
    assert not torch.equal(other.images, pool.images)
    assert torch.equal(data.load_pool(name, "novel", settings()).images, pool.images)


def test_grey_textures_need_a_size_that_divides_the_crop() -> None:
    with pytest.raises(UserError, match="divides 64, found 48"):
        data.load_pool("grey-textures", "novel", settings(size=48))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "count", "classes"), [("stamps", 280, 14), ("fashion-mnist", 250, 10), ("furniture", 184, 8)]
)
def test_larger_embedded_domains(name: str, count: int, classes: int) -> None:
    pool = data.load_pool(name, "novel", settings(size=112))
    assert pool.images.shape == (count, 3, 112, 112) and len(pool.classes) == classes
    assert pool.labels.bincount().min() >= 15 and pool.images.isfinite().all()
    assert float(pool.images.std()) > 0.3


@pytest.mark.slow
def test_cut_outs_of_one_part_are_not_in_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    used: dict[str, set[bytes]] = {}

    def note(stamp: np.ndarray, size: int, stream: torch.Generator) -> np.ndarray:
        used[part].add(stamp.tobytes())
        return np.zeros((size, size, 3), np.uint8)

    monkeypatch.setattr(laptop, "_pasted", note)
    for part in ("base", "novel"):
        used[part] = set()
        data.load_pool("stamps", part, settings(size=112))
    assert used["base"] and used["novel"] and not used["base"] & used["novel"]


def test_fine_textures_are_enlarged_crops() -> None:
    pool: Pool = data.load_pool("textures", "novel", settings(size=28))
    assert pool.images.shape == (350, 3, 28, 28) and pool.classes == laptop.textures.TEXTURES
