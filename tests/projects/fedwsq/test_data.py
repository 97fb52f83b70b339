"""Partitions (property 12), published split files, augmentation."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torchvision.transforms import functional as TF

from projects.fedwsq import data
from projects.fedwsq.config import Config
from shared.errors import UserError
from shared.training.config import compose

LABELS = np.repeat(np.arange(10), 60)


def entropy(partition, labels):
    shares = partition.counts(labels) / partition.sizes[:, None]
    return float(-(shares * np.log(np.where(shares > 0, shares, 1))).sum(1).mean())


@pytest.mark.parametrize("alpha", [0.01, 0.1, 0.6, 100.0])
@pytest.mark.parametrize("clients", [1, 7, 30])
def test_every_client_has_the_same_number_and_nobody_shares(alpha, clients):
    dealt = data.balanced_dirichlet(LABELS, clients, alpha, seed=0)
    assert set(dealt.sizes.tolist()) == {600 // clients}
    everything = np.concatenate(dealt.places)
    assert len(np.unique(everything)) == len(everything) == 600 // clients * clients
    assert dealt.hash == data.balanced_dirichlet(LABELS, clients, alpha, seed=0).hash
    if clients > 1:
        assert dealt.hash != data.balanced_dirichlet(LABELS, clients, alpha, seed=1).hash


def test_the_mix_of_labels_grows_with_alpha():
    found = [
        entropy(data.balanced_dirichlet(LABELS, 20, a, seed=3), LABELS) for a in (0.03, 0.1, 0.3, 0.6, 10)
    ]
    assert found == sorted(found) and found[0] < 1.0 < found[-1]


def test_the_draw_follows_the_weights():
    """First client, many seeds: its share of a class is the Dirichlet mean, its spread that of Dir(alpha)."""
    labels = np.repeat(np.arange(2), 200)
    shares = np.array(
        [data.balanced_dirichlet(labels, 10, 2.0, seed=s).counts(labels, 2)[0, 0] / 40 for s in range(300)]
    )
    assert shares.mean() == pytest.approx(0.5, abs=0.05)
    variance = 0.25 / 5 + (0.25 - 0.25 / 5) / 40  # of Beta(2, 2), and of 40 draws given it
    assert shares.var() == pytest.approx(variance, rel=0.2)


def settings(*overrides):
    return compose(Config, overrides=list(overrides))


def test_split_files_are_read_as_published(tmp_path):
    path = tmp_path / "client_data" / "CIFAR10" / "balanced" / "dirichlet0.3_clients3.txt"
    path.parent.mkdir(parents=True)
    path.write_text("{0: [4, 1], 1: [0, 2], 2: [5, 3]}\n")
    config = settings(f"federation.partition=split:{path}", "federation.clients=3")
    dealt = data.dealt(np.zeros(6), config, 0)
    assert [own.tolist() for own in dealt.places] == [[4, 1], [0, 2], [5, 3]]
    path.write_text("{'0': [4, 1], '1': [0, 2], '2': [5, 3]}")
    assert data.read_split(path, 3, 6).hash == dealt.hash


def test_repeated_samples_of_the_published_files_are_told(tmp_path, caplog):
    path = tmp_path / "dirichlet0.01_clients2.txt"
    path.write_text("{0: [0, 1], 1: [1, 3]}")
    assert data.read_split(path, 2, 4).sizes.tolist() == [2, 2]
    assert "deals 4 samples, 3 of them distinct" in caplog.text


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{0: [0, 1], 1: [2,", "cannot be read as a dict"),
        ("[1, 2, 3]", "cannot be read as a dict"),
        ("{0: [0], 1: ['x']}", "cannot be read as a dict"),
        ("__import__('os').system('true')", "cannot be read as a dict"),
        ("", "cannot be read as a dict"),
        ("{0: [0, 1]}", "of 1 clients, expected 0 .. 1"),
        ("{0: [0, 1], 5: [2]}", "expected 0 .. 1"),
        ("{0: [0, 1], 1: [9]}", "deals samples 0 to 9; the set has 4"),
        ("{0: [0, -1], 1: [2]}", "deals samples -1 to 2"),
    ],
)
def test_damaged_split_files_are_refused(tmp_path, text, reason):
    path = tmp_path / "split.txt"
    path.write_text(text)
    with pytest.raises(UserError, match=reason):
        data.read_split(path, 2, 4)


def test_other_mistakes(tmp_path):
    with pytest.raises(UserError, match="expected a split file at"):
        data.read_split(tmp_path / "none.txt", 2, 4)
    with pytest.raises(UserError, match="must be positive"):
        data.balanced_dirichlet(LABELS, 3, 0, seed=0)
    with pytest.raises(UserError, match="cannot share"):
        data.balanced_dirichlet(LABELS, 601, 1, seed=0)
    config = settings("federation.partition=split:x", "federation.train_images=5")
    with pytest.raises(UserError, match="leave train_images"):
        data.dealt(LABELS, config, 0)


def test_subsets_and_seeds():
    config = settings(
        "federation.partition=balanced_dirichlet", "federation.train_images=200", "federation.clients=10"
    )
    dealt = data.dealt(LABELS, config, 0)
    assert dealt.sizes.tolist() == [20] * 10 and np.concatenate(dealt.places).max() < 600
    assert dealt.hash != data.dealt(LABELS, config, 1).hash
    config.federation.partition_seed = 5
    assert data.dealt(LABELS, config, 0).hash == data.dealt(LABELS, config, 1).hash
    config.federation.validation_images = 100
    held = set(data.validation_places(600, 100).tolist())
    assert not held & set(np.concatenate(data.dealt(LABELS, config, 0).places).tolist())
    assert data.dealt(LABELS, settings("federation.partition=iid"), 0) is None


def fixed(monkeypatch, angle, top, left, flip):
    """Augmentation with these draws for the one image."""
    draws = iter([torch.tensor([(angle / data.DEGREES + 1) / 2]), torch.tensor([[[0.0 if flip else 1.0]]])])
    fake = SimpleNamespace(
        **{name: getattr(torch, name) for name in ("deg2rad", "arange", "where")},
        rand=lambda *shape: next(draws).view(*shape),
        randint=lambda high, shape: torch.tensor([top, left]).view(shape),
    )
    monkeypatch.setattr(data, "torch", fake)


@pytest.mark.parametrize(
    ("angle", "top", "left", "flip"), [(0, 4, 4, False), (0, 0, 7, False), (7, 4, 4, False), (-9, 2, 8, True)]
)
def test_augmentation_is_torchvisions(monkeypatch, angle, top, left, flip):
    image = torch.randint(0, 256, (3, 17, 17), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    wanted = TF.rotate(image, angle)
    wanted = TF.crop(TF.pad(wanted, [4] * 4), top, left, 17, 17)
    wanted = TF.hflip(wanted) if flip else wanted
    fixed(monkeypatch, angle, top, left, flip)
    got = data.augment(image[None])[0]
    assert (got == wanted).float().mean() > 0.98  # where two pixels are equally near, either is right


def test_augmentation_draws_for_each_image_and_keeps_the_type():
    images = torch.full((64, 3, 32, 32), 200, dtype=torch.uint8)
    torch.manual_seed(0)
    got = data.augment(images)
    assert got.shape == images.shape and got.dtype == torch.uint8 and set(got.unique().tolist()) == {0, 200}
    assert len({tuple(image[0, 0].tolist()) for image in got}) > 10
    torch.manual_seed(0)
    assert torch.equal(got, data.augment(images))
