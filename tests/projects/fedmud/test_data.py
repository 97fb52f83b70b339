"""Partitions as the official code deals them, normalisation, augmentation, held-out images, bad input."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from projects.fedmud import data as federated
from projects.fedmud import partitions
from projects.fedmud.config import Config
from projects.fedmud.data import deal, federation
from projects.fedmud.partitions import label_count, label_dirichlet
from shared.data.fetch import locate
from shared.data.images import ImageSet, load_images
from shared.errors import UserError
from shared.federated.settings import validation_places
from shared.training.config import compose
from tests.shared.data.image_files import write_cifar10, write_svhn

LABELS = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 300))


def checked(partition, count):
    """Disjoint and covering."""
    places = np.concatenate(partition.places)
    assert len(places) == count and np.array_equal(np.sort(places), np.arange(count))
    return partition


@pytest.mark.parametrize(("clients", "beta"), [(100, 0.3), (30, 0.1), (7, 5.0)])
def test_label_dirichlet(clients, beta):
    partition = checked(label_dirichlet(LABELS, clients, beta, seed=1234), 3000)
    assert partition.sizes.min() >= 10
    before = np.cumsum(partition.counts(LABELS), axis=1)[:, :-1]
    after = partition.counts(LABELS)[:, 1:]
    assert not after[before >= 3000 / clients].any()  # whoever holds a fair share gets no further class
    assert partition.hash == label_dirichlet(LABELS, clients, beta, seed=1234).hash
    assert partition.hash != label_dirichlet(LABELS, clients, beta, seed=1235).hash


def test_label_dirichlet_shares_follow_the_concentration():
    """The first class is dealt without a cap: its shares have the variance of Dir(beta)."""
    shares = [
        label_dirichlet(LABELS, 10, 0.5, seed=s, min_size=1).counts(LABELS)[:, 0] / 300 for s in range(200)
    ]
    assert np.var(shares) == pytest.approx(0.1 * 0.9 / (10 * 0.5 + 1), rel=0.1)


@pytest.mark.parametrize(("clients", "per_client"), [(100, 3), (20, 1), (7, 4), (3, 10)])
def test_label_count(clients, per_client):
    partition = checked(label_count(LABELS, clients, per_client, seed=1234), 3000)
    counts = partition.counts(LABELS)
    assert ((counts > 0).sum(1) == per_client).all()
    holders = (counts > 0).sum(0)
    assert holders.sum() == clients * per_client and holders.max() - holders.min() <= 1
    for column in counts.T:  # evenly among its holders
        assert np.ptp(column[column > 0]) <= 1
    first = [sorted(np.flatnonzero(row)) for row in counts[:2]]
    assert first[0] == list(range(per_client))  # ties go to the lower numbers
    if per_client == 3:
        assert first[1] == [3, 4, 5] and sorted(np.flatnonzero(counts[3])) == [0, 1, 9]


def test_label_count_leaves_out_classes_that_nobody_took():
    partition = label_count(LABELS, 2, 3, seed=0)
    assert sorted(np.unique(LABELS[np.concatenate(partition.places)])) == [0, 1, 2, 3, 4, 5]


def test_partitions_that_cannot_be(monkeypatch):
    monkeypatch.setattr(partitions, "ATTEMPTS", 3)
    with pytest.raises(UserError, match="labeldir: no draw of 3 gave each of 400 clients 10"):
        label_dirichlet(LABELS[:400], 400, 0.3, seed=0)
    with pytest.raises(UserError, match="alpha must be positive, found 0"):
        label_dirichlet(LABELS, 10, 0, seed=0)
    with pytest.raises(UserError, match="labels_per_client is 1 to 10, found 0"):
        label_count(LABELS, 10, 0, seed=0)


def settings(**changes):
    plain = {
        "partition": "iid",
        "clients": 10,
        "alpha": 0.3,
        "labels_per_client": 3,
        "min_size": 10,
        "partition_seed": None,
        "train_images": 0,
        "validation_images": 0,
    }
    return SimpleNamespace(**(plain | changes))


@pytest.mark.parametrize("partition", federated.PARTITIONS)
def test_subsets_and_held_out_images(partition):
    whole = checked(deal(LABELS, settings(partition=partition), 3), 3000)
    assert whole.hash != deal(LABELS, settings(partition=partition), 4).hash
    fixed = settings(partition=partition, partition_seed=1234)
    assert deal(LABELS, fixed, 3).hash == deal(LABELS, fixed, 4).hash
    some = deal(LABELS, settings(partition=partition, train_images=500, validation_images=700), 3)
    dealt = np.concatenate(some.places)
    assert len(np.unique(dealt)) == 500
    assert not np.intersect1d(dealt, validation_places(3000, 700)).size


def config(*overrides):
    small = {"federation": {"clients": 4, "per_round": 2, "rounds": 2, "partition": "iid", "batch_size": 4}}
    return compose(Config, small, overrides=list(overrides))


def test_svhn_is_normalised_by_its_own_statistics_and_tested_by_the_tests(tmp_path):
    write_svhn(tmp_path)
    data, images = federation(config("federation.dataset=svhn", f"data.root={tmp_path}"))
    assert images.images.shape[1:] == (3, 32, 32) and len(data.server_test) == 20
    raw = images.images[7].float() / 255
    torch.testing.assert_close(data.sources["train"][0][7][0], (raw - 0.4496) / 0.1995)
    raw = load_images("svhn", False, str(tmp_path)).images[3].float() / 255
    torch.testing.assert_close(data.server_test[3][0], (raw - 0.4560) / 0.2244)


def test_cifar_is_augmented_in_training_only(tmp_path):
    write_cifar10(tmp_path)
    data, images = federation(config("federation.dataset=cifar10", f"data.root={tmp_path}"))
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    client = data.client(0, 0)
    (first, _), (again, _) = next(iter(client.loader())), next(iter(client.loader()))
    assert first.shape == (4, 3, 32, 32) and not torch.equal(first, again)
    tested, _ = data.server_test[0]
    raw = load_images("cifar10", False, str(tmp_path)).images[0].float() / 255
    torch.testing.assert_close(tested, (raw - mean.view(3, 1, 1)) / std.view(3, 1, 1))
    held_out, _ = federation(
        config("federation.dataset=cifar10", f"data.root={tmp_path}", "federation.validation_images=30")
    )
    assert len(held_out.server_test) == 30
    place = validation_places(len(images), 30)[0]
    raw = images.images[place].float() / 255
    torch.testing.assert_close(held_out.server_test[0][0], (raw - mean.view(3, 1, 1)) / std.view(3, 1, 1))


@pytest.mark.skipif(locate("fashion-mnist") is None, reason="fashion-mnist is not in the cache")
@pytest.mark.parametrize("train", [True, False])
def test_fashion_mnist_constants_are_those_of_the_sets(train):
    known = federated.SETS["fashion-mnist"]
    (mean,), (std,) = known.train if train else known.test
    (found_mean,), (found_std,) = load_images("fashion-mnist", train).statistics()
    assert found_mean == pytest.approx(mean, abs=1e-4) and found_std == pytest.approx(std, abs=1e-4)


def test_digits_are_normalised_by_their_training_images():
    data, images = federation(config("federation.dataset=digits"))
    x = data.sources["train"][0].tensors[0]
    assert isinstance(images, ImageSet) and x.shape == (1297, 1, 8, 8)
    assert abs(float(x.mean())) < 1e-5 and float(x.std()) == pytest.approx(1, abs=1e-3)
    assert len(data.server_test) == 500 and data.rounds == 2


def test_what_is_refused():
    for override, text in (
        ("federation.dataset=mnist", "dataset takes fashion-mnist, svhn"),
        (
            "federation.partition=labeldirr",
            "partition takes iid, labeldir, labelcnt; found 'labeldirr'. Did you",
        ),
        ("federation.train_images=5000", "train_images=5000, but there are 1297"),
        ("federation.per_round=9", "expected 1 to 4 clients a round, found 9"),
    ):
        with pytest.raises(UserError, match=text):
            federation(config("federation.dataset=digits", override))
