"""Linear CKA against its definition by Gram matrices, its invariances, and the form for domains."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from shared.errors import UserError
from shared.vision.cka import domain_cka, linear_cka


def by_hsic(a: torch.Tensor, b: torch.Tensor) -> float:
    """HSIC(K, L) / sqrt(HSIC(K, K) HSIC(L, L)) with explicit centring of linear kernels."""
    n = len(a)
    centring = np.eye(n) - np.ones((n, n)) / n
    k, m = (x.double().numpy() @ x.double().numpy().T for x in (a, b))

    def hsic(p: np.ndarray, q: np.ndarray) -> float:
        return float(np.trace(p @ centring @ q @ centring))

    return hsic(k, m) / np.sqrt(hsic(k, k) * hsic(m, m))


@pytest.mark.parametrize(("n", "d1", "d2"), [(12, 5, 7), (6, 40, 3), (5, 9, 11)])
def test_agrees_with_the_definition(n: int, d1: int, d2: int) -> None:
    a, b = torch.randn(n, d1) + 3, torch.randn(n, d2) - 1
    assert linear_cka(a, b) == pytest.approx(by_hsic(a, b), abs=1e-10)


def test_rotation_scale_and_shift_change_nothing_and_other_features_are_less_alike() -> None:
    a = torch.randn(50, 8)
    rotation = torch.linalg.qr(torch.randn(8, 8)).Q
    assert linear_cka(a, 2.5 * a @ rotation + 7) == pytest.approx(1.0, abs=1e-6)
    assert linear_cka(a, torch.randn(50, 8)) < 0.5


def test_domains_with_one_covariance_are_alike_and_channels_must_correspond() -> None:
    mix = torch.randn(6, 6) * torch.tensor([5.0, 3, 1, 1, 0.5, 0.1])
    source, target = torch.randn(4000, 6) @ mix.T, torch.randn(4000, 6) @ mix.T + 10
    assert domain_cka(source, target) > 0.99
    rolled = target.roll(1, dims=1)
    assert domain_cka(source, rolled) < 0.9
    expected = linear_cka((source - source.mean(0)).T, (target - target.mean(0)).T)
    assert domain_cka(source, target) == pytest.approx(expected, abs=1e-9)


def test_constant_features_are_like_nothing() -> None:
    assert linear_cka(torch.ones(5, 3), torch.randn(5, 3)) == 0.0


def test_shapes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(UserError, match=r"found \(5, 3\) and \(4, 3\)"):
        linear_cka(torch.ones(5, 3), torch.ones(4, 3))
    with pytest.raises(UserError, match=r"as many images and channels.*\(5, 3\) and \(5, 4\)"):
        domain_cka(torch.ones(5, 3), torch.ones(5, 4))
