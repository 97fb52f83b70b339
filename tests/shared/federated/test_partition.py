"""Partitioners against closed-form counts and independent implementations; samplers; task streams."""

import numpy as np
import pytest
import torch

from shared.errors import UserError
from shared.federated import partition, sampling
from shared.federated.partition import Partition
from shared.federated.streams import AccuracyMatrix, TaskStream

LABELS = np.repeat(np.arange(10), 120)[np.random.default_rng(0).permutation(1200)]

MAKERS = {
    "iid": lambda seed: partition.iid(1200, 7, seed=seed),
    "dirichlet": lambda seed: partition.dirichlet(LABELS, 7, 0.3, seed=seed, min_size=5),
    "balanced_dirichlet": lambda seed: partition.balanced_dirichlet(LABELS, 8, 0.3, seed=seed),
    "shards": lambda seed: partition.shards(LABELS, 10, 2, seed=seed),
    "classes_per_client": lambda seed: partition.classes_per_client(LABELS, 20, 3, seed=seed),
    "quantity_skew": lambda seed: partition.quantity_skew(1200, 9, 0.5, seed=seed),
    "within": lambda seed: partition.within(partition.by_key(np.arange(1200) % 3), LABELS, 4, 1.0, seed=seed),
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_partitions_are_disjoint_covering_and_functions_of_the_seed(make, tmp_path):
    found = make(3)
    together = np.concatenate(found.places)
    assert len(together) == len(np.unique(together)) == 1200
    assert make(3).hash == found.hash != make(4).hash
    found.save(tmp_path / "p")
    assert Partition.load(tmp_path / "p").hash == found.hash
    assert found.counts(LABELS).sum() == 1200


def test_iid_sizes_differ_by_one_and_classes_are_even():
    found = partition.iid(1205, 7, seed=0)
    assert set(found.sizes) == {172, 173}
    counts = partition.iid(1200, 4, seed=1).counts(LABELS)  # hypergeometric: mean 30, sd 4.5
    assert abs(counts - 30).max() < 5 * 4.5


def test_dirichlet_equals_an_independent_draw():
    """The shares of a class are exactly the cuts of a Dirichlet draw, so sizes follow by hand."""
    found = partition.dirichlet(LABELS, 5, 0.5, seed=11).counts(LABELS)
    stream = partition._stream(11, "dirichlet", 0)
    for label in range(10):
        stream.permutation(120)
        shares = stream.gamma(0.5, size=5)  # a Dirichlet is a normalised gamma
        ends = np.floor(np.cumsum(shares / shares.sum()) * 120 + 1e-9)
        ends[-1] = 120
        assert found[:, label].tolist() == np.diff(ends, prepend=0).tolist()


def test_dirichlet_moments_match_the_closed_form():
    """Var(share) = (1/N)(1 - 1/N) / (N alpha + 1)."""
    shares = np.concatenate(
        [partition.dirichlet(LABELS, 4, 0.5, seed=s).counts(LABELS).ravel() / 120 for s in range(150)]
    )
    assert shares.mean() == pytest.approx(0.25)
    assert shares.var() == pytest.approx(0.25 * 0.75 / (4 * 0.5 + 1), rel=0.08)


def test_small_alpha_concentrates_and_large_alpha_evens_out():
    few = (partition.dirichlet(LABELS, 10, 0.05, seed=0).counts(LABELS) > 0).sum(1).mean()
    many = (partition.dirichlet(LABELS, 10, 1000.0, seed=0).counts(LABELS) > 0).sum(1).mean()
    assert few < 5 and many == 10


def test_impossible_min_size_is_refused():
    with pytest.raises(UserError, match="lower min_size"):
        partition.dirichlet(LABELS[:40] % 2, 20, 0.01, seed=0, min_size=2)


def test_balanced_dirichlet_has_equal_sizes_and_skewed_mixes():
    found = partition.balanced_dirichlet(LABELS, 10, 0.1, seed=0)
    assert set(found.sizes) == {120}
    skewed = (found.counts(LABELS) / 120).max(1).mean()
    even = (partition.balanced_dirichlet(LABELS, 10, 1000.0, seed=0).counts(LABELS) / 120).max(1).mean()
    assert skewed > 0.45 and even < 0.25
    assert set(partition.balanced_dirichlet(LABELS, 7, 1.0, seed=0).sizes) == {1200 // 7}


def test_shards_have_closed_form_sizes_and_classes():
    found = partition.shards(LABELS, 10, 2, seed=0)
    assert set(found.sizes) == {120}
    assert ((found.counts(LABELS) > 0).sum(1) <= 2).all()  # 20 shards of 60 lie inside classes of 120


def test_classes_per_client_are_exact_and_evenly_held():
    counts = partition.classes_per_client(LABELS, 20, 3, seed=0).counts(LABELS)
    assert ((counts > 0).sum(1) == 3).all() and ((counts > 0).sum(0) == 6).all()
    assert set(counts[counts > 0]) == {20}
    disjoint = partition.classes_per_client(LABELS, 5, 2, seed=0).counts(LABELS)
    assert ((disjoint > 0).sum(0) == 1).all() and set(disjoint[disjoint > 0]) == {120}


def test_quantity_skew_has_the_size_and_the_moments_of_its_draw():
    sizes = np.concatenate([partition.quantity_skew(1000, 4, 2.0, seed=s).sizes for s in range(400)]) / 1000
    assert sizes.mean() == pytest.approx(0.25)
    assert sizes.var() == pytest.approx(0.25 * 0.75 / (4 * 2 + 1), rel=0.1)
    assert partition.quantity_skew(20, 10, 0.01, seed=0).sizes.min() == 1


def test_by_key_gives_a_client_for_each_domain_or_user():
    found = partition.by_key(np.array(["b", "a", "b", "c", "a"]))
    assert [own.tolist() for own in found.places] == [[1, 4], [0, 2], [3]]


def test_split_is_disjoint_and_of_the_asked_size():
    first, second = partition.iid(1200, 7, seed=0).split(0.25, seed=1)
    assert second.sizes.tolist() == [round(0.25 * n) for n in partition.iid(1200, 7, seed=0).sizes]
    for client in range(7):
        both = np.concatenate([first[client], second[client]])
        assert np.array_equal(np.sort(both), partition.iid(1200, 7, seed=0)[client])


def test_altered_or_foreign_files_are_refused(tmp_path):
    path = tmp_path / "p.npz"
    partition.iid(20, 2, seed=0).save(path)
    with np.load(path) as file:
        content = dict(file)
    content["places"][0] += 1
    np.savez(path, **content)
    with pytest.raises(UserError, match="altered"):
        Partition.load(path)
    path.write_bytes(b"no")
    with pytest.raises(UserError, match="cannot be read"):
        Partition.load(path)
    np.savez(path, places=np.array([object()], dtype=object), sizes=[1], hash="x")
    with pytest.raises(UserError, match="cannot be read"):
        Partition.load(path)


@pytest.mark.parametrize(
    "make",
    [
        lambda: partition.dirichlet(LABELS, 3, 0.0, seed=0),
        lambda: partition.dirichlet(np.zeros((4, 2)), 3, 1.0, seed=0),
        lambda: partition.classes_per_client(LABELS, 3, 11, seed=0),
        lambda: partition.shards(LABELS[:5], 3, 2, seed=0),
        lambda: partition.quantity_skew(5, 10, 1.0, seed=0),
        lambda: sampling.uniform(5, 6, seed=0),
        lambda: sampling.predrawn([]),
    ],
)
def test_impossible_settings_are_refused(make):
    with pytest.raises(UserError):
        make()


def test_labels_may_be_tensors():
    assert partition.dirichlet(torch.tensor(LABELS), 3, 1.0, seed=0).hash == (
        partition.dirichlet(LABELS, 3, 1.0, seed=0).hash
    )


def test_cohorts_are_functions_of_seed_and_round():
    draw, again = sampling.uniform(100, 10, seed=3), sampling.uniform(100, 10, seed=3)
    later = again(7)  # the order of asking does not matter
    assert [draw(r) for r in range(8)][7] == later
    assert all(len(set(draw(r))) == 10 for r in range(50))
    assert draw(0) != sampling.uniform(100, 10, seed=4)(0)
    seen = np.bincount(np.concatenate([draw(r) for r in range(2000)]), minlength=100)
    assert abs(seen - 200).max() < 5 * np.sqrt(200 * 0.9)


def test_fractions_first_rounds_traces_and_late_clients():
    assert len(sampling.uniform(50, 0.05, seed=0)(1)) == 2
    assert len(sampling.uniform(10, 0.001, seed=0)(1)) == 1
    first = sampling.uniform([4, 5, 6, 7], 2, seed=0, first_round_all=True)
    assert first(0) == [4, 5, 6, 7] and len(first(1)) == 2
    odd = sampling.available(sampling.everyone(range(6)), lambda client, number: client % 2 == number % 2)
    assert odd(1) == [1, 3, 5]
    late = sampling.joining(sampling.everyone(range(3)), {2: 5})
    assert late(4) == [0, 1] and late(5) == [0, 1, 2]
    assert sampling.predrawn([[1], [2, 3]])(3) == [2, 3]


def test_dropouts_have_their_probability():
    vanishes = sampling.dropouts(0.3, seed=0)
    assert np.mean([vanishes(c, r) for c in range(40) for r in range(50)]) == pytest.approx(0.3, abs=0.05)
    assert vanishes(1, 2) == vanishes(1, 2)


def test_stages_and_orders_of_a_stream():
    stream = TaskStream(tasks=3, rounds_per_task=2)
    assert [stream.stage(r) for r in range(7)] == [0, 0, 1, 1, 2, 2, 2]
    assert [r for r in range(6) if stream.starts(r)] == [0, 2, 4]
    assert [r for r in range(6) if stream.ends(r)] == [1, 3, 5]
    mixed = TaskStream(3, 2, order=lambda client, stage, position: (client + stage + position) % 3)
    assert mixed.task(client=2, round=2, position=1) == 1


def test_accuracy_matrix_by_hand():
    matrix = AccuracyMatrix()
    for row in ([0.9], [0.7, 0.8], [0.6, 0.85, 0.5]):
        matrix.add(row)
    assert matrix.average == pytest.approx((0.6 + 0.85 + 0.5) / 3)
    assert matrix.forgetting == pytest.approx(((0.9 - 0.6) + (0.8 - 0.85)) / 2)
    assert matrix.tensor().isnan().sum() == 3
    alone = AccuracyMatrix([[0.4]])
    assert alone.forgetting == 0 and alone.average == 0.4
