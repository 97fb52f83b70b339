"""The few-shot head against a loop that follows the official code line by line, and its invariances."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from projects.recit.prototypes import (
    Bank,
    Episodes,
    accuracies,
    anchors,
    bank,
    distinct,
    draw_episodes,
    mean_and_interval,
    scores,
)
from shared.errors import UserError

COUNTS = [20, 27, 9, 40, 12, 31]
NAMES = [f"class{number}" for number in range(6)]


def domain(width: int = 17, crowded: bool = False) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    labels = torch.repeat_interleave(torch.arange(6), torch.tensor(COUNTS))
    centres = torch.randn(6, width)
    features = centres[labels] + 1.3 * torch.randn(len(labels), width)
    if crowded:
        features = 1000 + features
    order = torch.randperm(len(labels))
    return features[order], labels[order]


def stream(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def by_loop(features: Tensor, episodes: Episodes, transductive: bool = False) -> Tensor:
    """One episode after the other, in float64; `features` in the order of the bank."""
    found = []
    for support_rows, query_rows in zip(episodes.support, episodes.query, strict=True):
        support = features[support_rows].double()
        query = features[query_rows].double().flatten(0, 1)
        support, query = (
            support / support.norm(dim=-1, keepdim=True),
            query / query.norm(dim=-1, keepdim=True),
        )
        flat = support.flatten(0, 1)
        mean = torch.cat([flat, query]).mean(0) if transductive else flat.mean(0)
        support, query = support - mean, query - mean
        support, query = (
            support / support.norm(dim=-1, keepdim=True),
            query / query.norm(dim=-1, keepdim=True),
        )
        prototypes = support.mean(1)
        predicted = torch.tensor(
            [np.argmin([float(((q - p) ** 2).sum()) for p in prototypes]) for q in query]
        )
        truth = torch.arange(len(prototypes)).repeat_interleave(query_rows.shape[1])
        found.append((predicted == truth).double().mean())
    return torch.stack(found)


@pytest.mark.parametrize("shots", [1, 5])
@pytest.mark.parametrize("centre", ["support", "all"])
@pytest.mark.parametrize("crowded", [False, True])
def test_agrees_with_the_loop(shots: int, centre: str, crowded: bool) -> None:
    features, labels = domain(crowded=crowded)
    own = bank(features, labels, NAMES)
    episodes = draw_episodes(own, 70, ways=4, shots=shots, queries=4, stream=stream())
    expected = by_loop(features[labels.argsort(stable=True)], episodes, centre == "all")
    found = accuracies(own, episodes, centre)
    assert 0.3 < float(expected.mean()) < 0.95
    torch.testing.assert_close(found.double(), expected, atol=1e-6, rtol=0)


def test_episodes_hold_different_images_of_the_right_classes() -> None:
    features, labels = domain()
    own = bank(features, labels, NAMES)
    episodes = draw_episodes(own, 500, ways=3, shots=2, queries=5, stream=stream())
    rows = torch.cat([episodes.support, episodes.query], -1)
    assert rows.shape == (500, 3, 7)
    classes = torch.searchsorted(own.starts, rows, right=True) - 1
    assert (classes == classes[..., :1]).all(), "one class a way"
    assert (classes[..., 0].sort(1).values.diff(dim=1) > 0).all(), "different classes"
    assert (rows.sort(-1).values.diff(dim=-1) > 0).all(), "different images"
    assert torch.bincount(classes[..., 0].flatten()).min() > 200  # 250 of each expected
    again = draw_episodes(own, 500, ways=3, shots=2, queries=5, stream=stream())
    assert torch.equal(again.query, episodes.query)


def test_every_subset_is_drawn_as_often() -> None:
    """All 60 ordered triples of 5, and a class that is taken whole."""
    drawn = distinct(torch.full((30_000,), 5), 3, stream())
    keys, counts = torch.unique(drawn @ torch.tensor([25, 5, 1]), return_counts=True)
    assert len(keys) == 60 and (counts - 500).abs().max() < 5 * 500**0.5
    whole = distinct(torch.tensor([[7, 9]]), 7, stream(1))
    assert whole[0, 0].sort().values.tolist() == list(range(7)) and whole[0, 1].max() < 9


def test_scale_of_features_order_of_support_and_names_of_classes_do_not_matter() -> None:
    features, labels = domain()
    own = bank(features, labels, NAMES)
    scaled = bank(features * torch.rand(len(labels), 1).add(0.1), labels, NAMES)
    episodes = draw_episodes(own, 40, shots=3, queries=4, stream=stream())
    torch.testing.assert_close(accuracies(scaled, episodes), accuracies(own, episodes), atol=1e-6, rtol=0)
    support, query = own.features[episodes.support], own.features[episodes.query.flatten(1)]
    found = scored(support, query)
    torch.testing.assert_close(scored(support[:, :, [2, 0, 1]], query), found, atol=1e-5, rtol=0)
    turned = scored(support[:, [3, 0, 4, 1, 2]], query)
    torch.testing.assert_close(turned, found[:, [3, 0, 4, 1, 2]], atol=1e-5, rtol=0)


def scored(support: Tensor, query: Tensor) -> Tensor:
    held = anchors(support)
    return scores(held @ held.transpose(1, 2), held @ query.transpose(1, 2), query.square().sum(-1))


def test_scores_are_minus_half_the_squared_distance_to_prototypes_of_unit_length_in_one_shot() -> None:
    features = normalize(torch.randn(2, 25, 8), dim=-1)
    support, query = features[:, :5, None], features[:, 5:]
    *prototypes, mean = anchors(support).unbind(1)
    prototypes = torch.stack(prototypes, 1)
    torch.testing.assert_close(prototypes.norm(dim=-1), torch.ones(2, 5))
    torch.testing.assert_close(mean, support.mean((1, 2)))
    away = torch.cdist(normalize(query - mean[:, None], dim=-1), prototypes).square().transpose(1, 2)
    found = scored(support, query)
    torch.testing.assert_close(found - found[:, :1], -(away - away[:, :1]) / 2, atol=1e-5, rtol=0)


def test_features_that_are_all_equal_give_no_nan() -> None:
    own = bank(torch.ones(60, 4), torch.arange(6).repeat(10), NAMES)
    found = accuracies(own, draw_episodes(own, 10, shots=2, queries=3, stream=stream()))
    assert found.isfinite().all() and float(found.mean()) == pytest.approx(0.2)


def test_interval() -> None:
    values = torch.tensor([0.2, 0.4, 0.9])
    mean, width = mean_and_interval(values)
    assert mean == pytest.approx(50) and width == pytest.approx(1.96 * np.std([20, 40, 90]) / 3**0.5)


def test_classes_that_are_too_small_are_named_with_their_counts() -> None:
    own = bank(*domain(), NAMES)
    with pytest.raises(UserError, match=r"5 \+ 15 = 20 images of a class; 'class2' has 9, 'class4' has 12\."):
        draw_episodes(own, 10, shots=5, queries=15, stream=stream())
    features, labels = domain()
    empty = bank(features[labels != 3], labels[labels != 3], NAMES)
    with pytest.raises(UserError, match="'class3' has 0"):
        draw_episodes(empty, 10, shots=1, queries=2, stream=stream())


@pytest.mark.parametrize(
    ("change", "text"),
    [({"ways": 7}, "at least 7 classes for 7-way episodes, found 6"), ({"shots": 0}, "found 10, 5, 0 and 2")],
)
def test_impossible_episodes_are_refused(change: dict[str, int], text: str) -> None:
    own = bank(*domain(), NAMES)
    with pytest.raises(UserError, match=text):
        draw_episodes(own, 10, **{"shots": 2, "queries": 2} | change, stream=stream())


def test_an_unknown_centre_is_refused() -> None:
    own: Bank = bank(*domain(), NAMES)
    with pytest.raises(UserError, match="support, all; found 'query'"):
        accuracies(own, draw_episodes(own, 2, shots=2, queries=2, stream=stream()), "query")
