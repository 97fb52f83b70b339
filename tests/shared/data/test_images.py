"""Image sets: every published layout read from made-up files, damage explained, no pickle run."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Subset, TensorDataset

from shared.data import image_readers
from shared.data.catalogue import entry, locate, missing
from shared.data.images import (
    KNOWN,
    ImageDataset,
    ImageSet,
    crop_and_flip,
    image_dataset,
    image_requirements,
    load_images,
)
from shared.errors import UserError
from tests.shared.data.image_files import (
    pixels,
    python2_pickle,
    write_cifar10,
    write_cifar100,
    write_svhn,
    write_tiny_imagenet,
)


def made(count: int = 12, channels: int = 3, side: int = 6) -> ImageSet:
    images, labels = pixels(count, 4, (channels, side, side))
    return ImageSet(torch.from_numpy(images), torch.from_numpy(labels), 4)


def test_cifar10(tmp_path: Path) -> None:
    write_cifar10(tmp_path)
    train, test = (load_images("cifar10", part, str(tmp_path)) for part in (True, False))
    assert (
        train.images.shape == (100, 3, 32, 32) and train.images.dtype == torch.uint8 and train.classes == 10
    )
    for number in range(5):  # in the order of the files
        images, labels = pixels(20, 10, (3, 32, 32), number)
        own = slice(20 * number, 20 * (number + 1))
        assert (train.images[own].numpy() == images).all() and (train.labels[own].numpy() == labels).all()
    assert (
        test.images.numpy() == pixels(10, 10, (3, 32, 32), 5)[0]
    ).all() and test.labels.dtype == torch.int64


def test_cifar100_has_fine_labels(tmp_path: Path) -> None:
    write_cifar100(tmp_path)
    train = load_images("cifar100", True, str(tmp_path))
    assert (
        train.labels.tolist() == [*range(100)] * 2
        and len(load_images("cifar100", False, str(tmp_path))) == 100
    )


def test_svhn(tmp_path: Path) -> None:
    write_svhn(tmp_path / "SVHN")
    test = load_images("svhn", False, str(tmp_path))
    images, labels = pixels(20, 10, (3, 32, 32), 20)
    assert (test.images.numpy() == images).all()
    assert (test.labels.numpy() == labels).all()  # 10 is the digit 0


@pytest.mark.parametrize("folder", ["tiny-imagenet-200", "tiny_imagenet"])
def test_tiny_imagenet(tmp_path: Path, cache: Path, folder: str) -> None:
    write_tiny_imagenet(tmp_path, folder=folder)
    train, test = (load_images("tiny-imagenet", part, str(tmp_path)) for part in (True, False))
    assert train.images.shape == (6, 3, 64, 64) and train.labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert test.labels.tolist() == [2, 1, 0]
    brightness = test.images.float().mean((1, 2, 3))
    assert torch.allclose(brightness, 20 + 60 * test.labels.float(), atol=2)


def test_tiny_imagenet_is_decoded_once(tmp_path: Path, cache: Path) -> None:
    write_tiny_imagenet(tmp_path)
    first, _ = image_readers.tiny_imagenet(tmp_path, True)
    (kept,) = (cache / "decoded").iterdir()
    time = kept.stat().st_mtime_ns
    again, _ = image_readers.tiny_imagenet(tmp_path, True)
    assert torch.equal(first, again) and kept.stat().st_mtime_ns == time
    kept.write_bytes(kept.read_bytes()[:-100])  # damaged: decoded again
    assert torch.equal(image_readers.tiny_imagenet(tmp_path, True)[0], first)
    image = next((tmp_path / "tiny-imagenet-200" / "train").rglob("*_1.JPEG"))
    os.utime(image, ns=(0, 0))  # another file: another entry
    image_readers.tiny_imagenet(tmp_path, True)
    assert len(list((cache / "decoded").iterdir())) == 2


def test_digits() -> None:
    pytest.importorskip("sklearn")
    from sklearn.datasets import load_digits

    train, test = load_images("digits", True), load_images("digits", False)
    assert train.images.shape == (1297, 1, 8, 8) and len(test) == 500
    theirs, labels = load_digits(return_X_y=True)
    ours = torch.cat([train.images, test.images]).flatten(1).double() * 16 / 255
    rows = {tuple(row): label for row, label in zip(theirs.tolist(), labels.tolist(), strict=True)}
    found = [rows[tuple(row)] for row in ours.round().tolist()]
    assert found == torch.cat([train.labels, test.labels]).tolist() and len(rows) > 1700


@pytest.mark.skipif(locate("fashion-mnist") is None, reason="fashion-mnist is not in the cache")
def test_fashion_mnist() -> None:
    train, test = load_images("fashion-mnist", True), load_images("fashion-mnist", False)
    assert train.images.shape == (60000, 1, 28, 28) and test.images.shape == (10000, 1, 28, 28)
    mean, std = train.statistics()
    assert mean == pytest.approx([0.2860], abs=1e-4) and std == pytest.approx([0.3530], abs=1e-4)
    assert load_images("fashion-mnist", True) is train  # once a process


# Damage and absence.


class Evil:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple:
        return (Path.touch, (self.path,))


def test_a_pickle_that_would_run_code_is_refused(tmp_path: Path) -> None:
    write_cifar10(tmp_path)
    file, touched = tmp_path / "cifar-10-batches-py" / "test_batch", tmp_path / "touched"
    for content in (Evil(touched), {"data": Evil(touched), "labels": []}):
        file.write_bytes(pickle.dumps(content, protocol=2))
        with pytest.raises(UserError, match="test_batch cannot be read .* asks for "):
            load_images("cifar10", False, str(tmp_path))
    file.write_bytes(b"cos\nsystem\n(S'touch %s'\ntR." % str(touched).encode())
    with pytest.raises(UserError, match="asks for os.system"):
        load_images("cifar10", False, str(tmp_path))
    file.write_bytes(b"c_codecs\nencode\n(S'x'\nS'zlib'\ntR.")
    with pytest.raises(UserError, match="asks for the codec zlib"):
        load_images("cifar10", False, str(tmp_path))
    assert not touched.exists()
    pickle.loads(pickle.dumps(Evil(touched)))  # it would have
    assert touched.exists()


def test_newer_pickles_of_arrays_are_read(tmp_path: Path) -> None:
    write_cifar10(tmp_path)
    images, labels = pixels(7, 10, (3, 32, 32))
    content = {"data": images.reshape(7, -1), "labels": labels.tolist()}
    (tmp_path / "cifar-10-batches-py" / "test_batch").write_bytes(pickle.dumps(content, protocol=2))
    assert (load_images("cifar10", False, str(tmp_path)).images.numpy() == images).all()


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "truncated": (
        lambda file: file.write_bytes(file.read_bytes()[:2000]),
        "cannot be read as a pickled dict",
    ),
    "empty": (lambda file: file.write_bytes(b""), "cannot be read as a pickled dict"),
    "no pickle": (
        lambda file: file.write_bytes(b"<html>not found</html>"),
        "cannot be read as a pickled dict",
    ),
    "absent": (lambda file: file.unlink(), "found no such file. Get it: cifar-10-python.tar.gz"),
    "other keys": (lambda file: file.write_bytes(python2_pickle({"x": 1})), "data and labels"),
    "a list": (lambda file: file.write_bytes(python2_pickle([1, 2])), "data and labels"),
    "other shape": (
        lambda file: file.write_bytes(python2_pickle({"data": np.zeros((2, 5), np.uint8), "labels": [0, 1]})),
        r"expected data of shape \(N, 3072\), uint8; found \(2, 5\)",
    ),
    "other length": (
        lambda file: file.write_bytes(python2_pickle({"data": np.zeros((2, 3072), np.uint8), "labels": [0]})),
        r"2 images have labels of shape \(1,\)",
    ),
    "other labels": (
        lambda file: file.write_bytes(
            python2_pickle({"data": np.zeros((1, 3072), np.uint8), "labels": [10]})
        ),
        "expected labels 0 .. 9, found 10 .. 10",
    ),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_cifar_is_explained(tmp_path: Path, damage: str) -> None:
    write_cifar10(tmp_path)
    act, expected = DAMAGE[damage]
    act(tmp_path / "cifar-10-batches-py" / "data_batch_3")
    with pytest.raises(UserError, match=expected) as caught:
        load_images("cifar10", True, str(tmp_path))
    assert "data_batch_3" in str(caught.value)


def test_damaged_svhn_is_explained(tmp_path: Path) -> None:
    from scipy.io import savemat

    with pytest.raises(UserError, match=r"train_32x32.mat or .*found no such file"):
        load_images("svhn", True, str(tmp_path))
    write_svhn(tmp_path)
    file = tmp_path / "train_32x32.mat"
    file.write_bytes(file.read_bytes()[:500])
    with pytest.raises(UserError, match="cannot be read as a MAT file with X and y"):
        load_images("svhn", True, str(tmp_path))
    savemat(file, {"X": np.zeros((3, 32, 32, 4), np.uint8), "y": np.ones((4, 1))})
    with pytest.raises(UserError, match=r"expected X of shape \(32, 32, 3, N\)"):
        load_images("svhn", True, str(tmp_path))


def test_damaged_tiny_imagenet_is_explained(tmp_path: Path, cache: Path) -> None:
    with pytest.raises(UserError, match="wnids.txt, found no such file"):
        load_images("tiny-imagenet", True, str(tmp_path))
    write_tiny_imagenet(tmp_path)
    top = tmp_path / "tiny-imagenet-200"
    notes = top / "val" / "val_annotations.txt"
    lines = notes.read_text()
    notes.write_text(lines.replace("n0000", "n7777", 1))
    with pytest.raises(UserError, match="val_annotations.txt cannot be read"):
        load_images("tiny-imagenet", False, str(tmp_path))
    notes.write_text(lines.replace("val_1.JPEG", "val_9.JPEG"))
    with pytest.raises(UserError, match="val_9.JPEG cannot be read as an image"):
        load_images("tiny-imagenet", False, str(tmp_path))
    next((top / "train").rglob("*.JPEG")).write_bytes(b"\xff\xd8 torn")
    with pytest.raises(UserError, match="cannot be read as a JPEG image"):
        load_images("tiny-imagenet", True, str(tmp_path))
    assert not list((cache / "decoded").glob("*"))  # nothing half done is kept


def test_names_and_roots_are_checked(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="unknown image set 'cifar-10'. Did you mean 'cifar10'"):
        load_images("cifar-10", True, str(tmp_path))
    with pytest.raises(UserError, match="data.root is not set"):
        load_images("cifar10", True)


def test_requirements_name_what_the_loaders_read(tmp_path: Path) -> None:
    assert all(known.entry == "" or entry(known.entry) for known in KNOWN.values())
    (need,) = image_requirements("cifar10", str(tmp_path))
    assert "cifar-10-batches-py/data_batch_1" in missing([need])[0]
    write_cifar10(tmp_path)
    assert missing([need]) == []
    assert image_requirements("fashion-mnist")[0].kind == "embedded"
    assert "pip install scikit-learn" in image_requirements("digits")[0].get


# Data sets.


@pytest.mark.parametrize("channels", [1, 3])
def test_items_are_normalised(channels: int) -> None:
    found = made(channels=channels)
    mean, std = found.statistics()
    dataset = ImageDataset(found, mean, std)
    x, y = dataset[5]
    expected = (found.images[5] / 255 - torch.tensor(mean)[:, None, None]) / torch.tensor(std)[:, None, None]
    assert torch.allclose(x, expected, atol=1e-6) and x.dtype == torch.float32 and y == 1
    whole = dataset.normalised()
    assert isinstance(whole, TensorDataset) and torch.equal(whole.tensors[0][5], x)
    assert torch.allclose(whole.tensors[0].mean((0, 2, 3)), torch.zeros(channels), atol=1e-5)
    assert torch.allclose(whole.tensors[0].std((0, 2, 3), unbiased=False), torch.ones(channels), atol=1e-4)
    assert type(image_dataset(found, mean, std)) is TensorDataset
    assert type(image_dataset(found, mean, std, crop_and_flip)) is ImageDataset
    with pytest.raises(UserError, match=f"each of {channels} channels, found 2"):
        ImageDataset(found, (0, 0), std)


def test_loaders_get_whole_batches() -> None:
    calls = []

    def augment(batch: torch.Tensor) -> torch.Tensor:
        calls.append(tuple(batch.shape))
        return 255 - batch

    found = made()
    loader = DataLoader(Subset(ImageDataset(found, [0.0], [1.0], augment), [3, 1, 7]), batch_size=2)
    x = torch.cat([batch for batch, _ in loader])
    assert calls == [(2, 3, 6, 6), (1, 3, 6, 6)]
    assert torch.allclose(x, (255 - found.images[[3, 1, 7]].float()) / 255)


def test_crops_and_flips_are_windows_of_the_padded_image() -> None:
    image = torch.arange(2 * 5 * 7, dtype=torch.uint8).view(1, 2, 5, 7) + 1
    padded = torch.nn.functional.pad(image, (2,) * 4)[0]
    windows = {}
    for top in range(5):
        for left in range(5):
            window = padded[:, top : top + 5, left : left + 7]
            windows[tuple(window.flatten().tolist())] = (top, left, False)
            windows[tuple(window.flip(-1).flatten().tolist())] = (top, left, True)
    torch.manual_seed(0)
    found = [windows[tuple(one.flatten().tolist())] for one in crop_and_flip(image.repeat(2000, 1, 1, 1), 2)]
    assert len(set(found)) == 50  # every place, flipped and not
    assert 0.45 < sum(flip for _, _, flip in found) / 2000 < 0.55
