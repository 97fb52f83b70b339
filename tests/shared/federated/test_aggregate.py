"""Means over whatever came, in float64 and in the order of client ids."""

import itertools

import pytest
import torch

from shared.errors import UserError
from shared.federated.aggregate import by_count, by_layer, median, total, trimmed_mean, weighted_mean
from shared.federated.errors import NoReplies
from shared.federated.payload import Payload, Reply


def replies(count=4, names=("0.weight", "1.weight"), seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [
        Reply(
            client,
            Payload(model={n: torch.randn(3, 2, generator=generator) for n in names}, num_samples=client + 1),
        )
        for client in range(count)
    ]


def test_weighted_mean_is_the_formula():
    given = replies()
    got = weighted_mean(given, "model")
    for name in got:
        expected = sum(r["model"][name].double() * r["num_samples"] for r in given) / 10
        assert torch.equal(got[name], expected.float())
    uniform = weighted_mean(given, "model", by=None)["0.weight"]
    assert torch.allclose(uniform, torch.stack([r["model"]["0.weight"] for r in given]).mean(0))
    assert total(given, "num_samples") == 10


def test_order_of_arrival_does_not_matter():
    given = replies(5)
    expected = weighted_mean(given, "model")
    for order in itertools.islice(itertools.permutations(given), 0, 120, 17):
        got = weighted_mean(list(order), "model")
        assert all(torch.equal(got[name], expected[name]) for name in expected)


def test_mean_of_equal_replies_and_of_one_is_the_identity():
    value = {"w": torch.randn(50) * 1e3, "n": torch.tensor(7)}
    same = [Reply(i, Payload(model=value, num_samples=n)) for i, n in enumerate((3, 600, 77, 1021))]
    for subset in (same, same[1:2]):
        got = weighted_mean(subset, "model")
        assert torch.equal(got["w"], value["w"]) and torch.equal(got["n"], value["n"])


def test_missing_keys_are_averaged_over_those_who_sent_them():
    given = [
        Reply(0, Payload(model={"a": torch.tensor([2.0])}, num_samples=1)),
        Reply(1, Payload(model={"a": torch.tensor([6.0]), "b": torch.tensor([5.0])}, num_samples=3)),
    ]
    got = weighted_mean(given, "model")
    assert got["a"].item() == 5.0 and got["b"].item() == 5.0 and set(got) == {"a", "b"}


def test_integer_entries_keep_dtype_and_shape():
    given = [Reply(i, Payload(model={"n": torch.tensor(n)}, num_samples=1)) for i, n in enumerate((4, 9))]
    greatest = weighted_mean(given, "model")["n"]
    assert (greatest.item(), greatest.dtype, greatest.shape) == (9, torch.int64, ())
    assert weighted_mean(given, "model", integers="sum")["n"].item() == 13


def test_layer_weights_of_one_over_n_are_the_plain_mean():
    given = replies()
    layer_of = lambda name: int(name[0])  # noqa: E731
    even = weighted_mean(given, "model", by=by_layer(torch.full((2, 4), 0.25), given, layer_of))
    plain = weighted_mean(given, "model", by=None)
    assert all(torch.equal(even[name], plain[name]) for name in plain)
    weights = torch.tensor([[1.0, 0, 0, 0], [0, 0, 0, 1.0]])
    picked = weighted_mean(given, "model", by=by_layer(weights, given, layer_of))
    assert torch.equal(picked["0.weight"], given[0]["model"]["0.weight"])
    assert torch.equal(picked["1.weight"], given[3]["model"]["1.weight"])
    with pytest.raises(UserError, match=r"\(layers, 4\)"):
        by_layer(torch.ones(2, 3), given, layer_of)


def test_class_means_weigh_by_the_counts_of_their_class():
    given = [
        Reply(0, Payload(means={0: torch.tensor([1.0]), 1: torch.tensor([2.0])}, counts={0: 1, 1: 2})),
        Reply(1, Payload(means={1: torch.tensor([8.0])}, counts={1: 4})),
    ]
    got = weighted_mean(given, "means", by=by_count("counts"))
    assert got["0"].item() == 1.0 and got["1"].item() == 6.0


def test_weights_by_client_and_a_vote_of_the_server():
    given = replies(2)
    got = weighted_mean(given, "model", by={0: 3.0, 1: 1.0}, also=({"0.weight": torch.ones(3, 2)}, 4.0))
    expected = (3 * given[0]["model"]["0.weight"] + given[1]["model"]["0.weight"] + 4) / 8
    assert torch.allclose(got["0.weight"], expected)


def test_nested_groups_and_single_tensors():
    given = [
        Reply(i, Payload(experts={i: {"A": torch.tensor([1.0 + i])}}, token=torch.tensor([float(i)])))
        for i in range(2)
    ]
    got = weighted_mean(given, "experts", by=None)
    assert got["0"]["A"].item() == 1.0 and got["1"]["A"].item() == 2.0
    assert weighted_mean(given, "token", by=None).item() == 0.5


def test_median_and_trimmed_mean_ignore_an_outlier():
    values = [1.0, 2.0, 3.0, 1e9, 2.5]
    given = [Reply(i, Payload(model={"w": torch.tensor([v])})) for i, v in enumerate(values)]
    assert median(given, "model")["w"].item() == 2.5
    assert median(given[:4], "model")["w"].item() == 2.5  # mean of 2 and 3
    assert trimmed_mean(given, "model", 1)["w"].item() == 2.5
    with pytest.raises(UserError, match="more than 6 replies"):
        trimmed_mean(given, "model", 3)


def test_nothing_to_average_is_said():
    with pytest.raises(NoReplies):
        weighted_mean([], "model")
    with pytest.raises(UserError, match="add up to 0"):
        weighted_mean(replies(2), "model", by={0: 0.0, 1: 0.0})
    odd = [Reply(i, Payload(model={"w": torch.zeros(2 + i)}, num_samples=1)) for i in range(2)]
    with pytest.raises(UserError, match=r"'model/w' comes in shapes \(2,\), \(3,\)"):
        weighted_mean(odd, "model")
    with pytest.raises(UserError, match="reply of client 0 lacks 'modle'"):
        weighted_mean(replies(2), "modle")
