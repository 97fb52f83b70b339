"""Each rule gives what its operation gives one lane after the other, and so do its gradients."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from shared.federated.engines.vectorized.rules import LaneOperations

K, B = 3, 4


def normal(*shape):
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def images(lanes=K, channels=4):
    return normal(lanes, B, channels, 6, 6)


def channels_last():
    """(K, B, 4, 6, 6) as a convolution of lanes leaves it."""
    x = torch.randn(B, 6, 6, K, 4, dtype=torch.float64).permute(3, 0, 4, 1, 2)
    return x.requires_grad_()


def labels(*shape):
    return torch.randint(0, 5, shape)


CASES = {
    "conv": (lambda x, w, b: F.conv2d(x, w, b, 2, 1), [images(), normal(K, 6, 4, 3, 3), normal(K, 6)]),
    "conv without bias": (lambda x, w: F.conv2d(x, w, padding="same"), [images(), normal(K, 6, 4, 3, 3)]),
    "conv of groups": (
        lambda x, w, b: F.conv2d(x, w, b, dilation=2, groups=2),
        [images(), normal(K, 6, 2, 2, 2), normal(K, 6)],
    ),
    "conv of one image": (lambda x, w: F.conv2d(x[0], w), [images(), normal(K, 6, 4, 3, 3)]),
    "linear": (F.linear, [normal(K, B, 5), normal(K, 3, 5), normal(K, 3)]),
    "linear of sequences": (F.linear, [normal(K, B, 2, 5), normal(K, 3, 5)]),
    "linear of a vector": (lambda x, w: F.linear(x[0], w), [normal(K, B, 5), normal(K, 3, 5)]),
    "max pool": (lambda x: F.max_pool2d(x, 2), [images()]),
    "max pool in channels": (lambda x: F.max_pool2d(x, 3, stride=1, padding=1), [channels_last()]),
    "max pool with indices": (lambda x: F.max_pool2d(x, 2, return_indices=True)[0], [images()]),
    "avg pool": (lambda x: F.avg_pool2d(x, 2, ceil_mode=True), [channels_last()]),
    "adaptive avg pool": (lambda x: F.adaptive_avg_pool2d(x, 2), [images()]),
    "adaptive max pool": (lambda x: F.adaptive_max_pool2d(x, 3), [channels_last()]),
    "group norm": (lambda x, w, b: F.group_norm(x, 2, w, b), [images(), normal(K, 4), normal(K, 4)]),
    "group norm in channels": (lambda x: F.group_norm(x, 4), [channels_last()]),
    "batch norm": (
        lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True),
        [channels_last(), normal(K, 4), normal(K, 4)],
    ),
    "batch norm of features": (lambda x: F.batch_norm(x, None, None, training=True), [normal(K, B, 5)]),
    "cross entropy": (F.cross_entropy, [normal(K, B, 5), labels(K, B)]),
    "smoothed": (lambda x, y: F.cross_entropy(x, y, label_smoothing=0.1), [normal(K, B, 5), labels(K, B)]),
    "some ignored": (lambda x, y: F.cross_entropy(x, y, ignore_index=1), [normal(K, B, 5), labels(K, B)]),
    "summed": (lambda x, y: F.cross_entropy(x, y, reduction="sum"), [normal(K, B, 5), labels(K, B)]),
    "soft labels": (lambda x, y: F.cross_entropy(x, y.softmax(1)), [normal(K, B, 5), normal(K, B, 5)]),
}


SOME_SHARED = [(name, shared) for name, (_, o) in CASES.items() for shared in range(min(len(o), 2))]


@pytest.mark.parametrize(("name", "shared"), SOME_SHARED)
def test_rules(name, shared):
    """`shared`: as many last operands are the same for all lanes, as what is frozen is."""
    function, operands = CASES[name]
    places = [0] * (len(operands) - shared) + [None] * shared
    given = [*operands[:-1], operands[-1][0]] if shared else operands
    expected = torch.stack(
        [function(*(o if p is None else o[k] for o, p in zip(given, places, strict=True))) for k in range(K)]
    )
    with LaneOperations([]):
        found = torch.vmap(function, in_dims=tuple(places))(*given)
    assert torch.allclose(found, expected)
    learned = [o for o in operands if o.requires_grad]
    weights = torch.randn_like(expected)
    for left, right in zip(
        torch.autograd.grad((found * weights).sum(), learned),
        torch.autograd.grad((expected * weights).sum(), learned),
        strict=True,
    ):
        assert torch.allclose(left, right)


@pytest.mark.parametrize("drop", [F.dropout, F.dropout1d, F.dropout2d, F.dropout3d])
def test_dropout_draws_what_each_client_would(drop):
    x = {F.dropout1d: normal(K, B, 4, 5), F.dropout3d: normal(K, B, 4, 2, 3, 3)}.get(drop, images())
    with LaneOperations([torch.Generator().manual_seed(k) for k in range(K)]):
        found = torch.vmap(lambda x: drop(drop(x, 0.3), 0.5))(x)
    for k in range(K):
        torch.manual_seed(k)
        assert torch.equal(found[k], drop(drop(x[k], 0.3), 0.5))


def test_running_statistics_are_each_lanes_own():
    x, norm = images(), nn.BatchNorm2d(4).double()
    mean, var = torch.zeros(K, 4, dtype=torch.float64), torch.ones(K, 4, dtype=torch.float64)
    with LaneOperations([]):
        torch.vmap(lambda x, mean, var: F.batch_norm(x, mean, var, training=True))(x, mean, var)
    for k in range(K):
        norm.reset_running_stats()
        norm(x[k])
        assert torch.allclose(mean[k], norm.running_mean) and torch.allclose(var[k], norm.running_var)


def test_rules_stay_out_of_a_modules_own_vmap():
    x, w = normal(K, B, 5), normal(K, 3, 5)
    with LaneOperations([]):
        found = torch.vmap(lambda x, w: torch.vmap(F.linear, in_dims=(0, None))(x, w))(x, w)
    assert torch.allclose(found, torch.einsum("kbi,koi->kbo", x, w))
