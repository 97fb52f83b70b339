"""Forms and their sizes: closed counts, torch.kron, ranks, linearity; layers against plain ones."""

import math
from functools import partial

import pytest
import torch
from torch import nn

from projects.fedmud import aad
from projects.fedmud.aad import PATTERNS, Update, update
from projects.fedmud.bkd import Kronecker
from projects.fedmud.decomposition import Matrix, draw, fit_ratio, parameters
from projects.fedmud.fedhm import truncated
from projects.fedmud.fedlmt import LowRank
from projects.fedmud.fedpara import Hadamard
from projects.fedmud.layers import decompose, decomposed_layers, matrix_shape, restart, trained_values
from projects.fedmud.networks import make
from shared.errors import UserError

FORMS = [(kind, pattern) for kind in aad.KINDS for pattern in PATTERNS]


def filled(form, seed=0):
    """All factors at random, trained ones too."""
    stream = torch.Generator().manual_seed(seed)
    return {
        name: torch.randn(shape, generator=stream) for name, shape in {**form.trained, **form.frozen}.items()
    }


@pytest.mark.parametrize(("kind", "pattern"), FORMS)
@pytest.mark.parametrize(("rows", "columns"), [(6, 35), (64, 64), (1, 9), (13, 1)])
def test_every_update_starts_at_zero_and_has_the_shape(kind, pattern, rows, columns):
    form = update(rows, columns, 0.3, kind, pattern, magnitude=5.0)
    factors = form.start(7, "layer", 0)
    assert torch.equal(form(factors), torch.zeros(rows, columns))
    assert {name: tuple(value.shape) for name, value in factors.items()} == {**form.trained, **form.frozen}
    assert form(filled(form)).abs().min() > 0  # no entry is out of the factors' reach


@pytest.mark.parametrize(("kind", "pattern"), FORMS)
def test_what_is_drawn(kind, pattern):
    """Uniform within +- a or normal, by the seed alone; two layers and the two products of one differ."""
    form = update(24, 36, 0.25, kind, pattern, magnitude=3.0)
    random = {"ab": ["left"], "fab": ["frozen_left"], "fab+cfd": ["frozen_left", "frozen_right"]}[pattern]
    torch.manual_seed(99)
    one, same, other = form.start(7, "layer", 0), form.start(7, "layer", 0), form.start(7, "layer", 1)
    for name, value in one.items():
        assert torch.equal(value, same[name])
        assert (name in random) == bool(value.any())
        if name in random:
            assert 2.0 < value.abs().max() <= 3.0 and not torch.equal(value, other[name])
    if pattern == "fab+cfd" and kind == "kron":
        assert not torch.equal(one["frozen_left"], one["frozen_right"])
    normal = update(200, 200, 0.5, kind, pattern, 3.0, "normal").start(1)[random[0]]
    assert normal.abs().max() > 6 and abs(float(normal.std()) - 3) < 0.2


def test_draws_refuse_what_they_cannot_do():
    with pytest.raises(UserError, match="magnitude must be positive, found 0"):
        draw((2,), 0.0, "uniform", 1)
    with pytest.raises(UserError, match="law takes uniform or normal; found 'gauss'"):
        draw((2,), 1.0, "gauss", 1)
    with pytest.raises(UserError, match=r"kind takes mat, kron; found 'krom'. Did you mean 'kron'"):
        update(4, 4, 0.5, "krom", "ab")
    with pytest.raises(UserError, match="pattern takes ab, fab"):
        update(4, 4, 0.5, "mat", "abc")
    for ratio in (0.0, -1.0, 1.5):
        with pytest.raises(UserError, match=r"ratio must lie in \(0, 1\]"):
            fit_ratio([(4, 4)], 0, partial(update, kind="mat", pattern="ab"), ratio)


@pytest.mark.parametrize(("rows", "columns"), [(16, 16), (7, 31), (18, 27)])
def test_kronecker_blocks_are_those_of_torch(rows, columns):
    """Blocks from torch.kron, laid out one after the other, row by row, cut at rows * columns."""
    form = Kronecker.of_ratio(rows, columns, 0.4)
    left, right = filled(Update(form, "ab")).values()
    flat = torch.cat([torch.kron(a, b).reshape(-1) for a, b in zip(left, right, strict=True)])
    assert len(flat) >= rows * columns
    assert torch.equal(form(left, right), flat[: rows * columns].reshape(rows, columns))


def test_kronecker_ranks():
    left, right = torch.randn(2, 4, 4, generator=torch.Generator().manual_seed(3))
    form = Kronecker(16, 16, blocks=1, side=4)
    rank = torch.linalg.matrix_rank
    assert rank(form(left[None], right[None])) == 16  # of 32 values; a plain product has rank 1
    left[:, 2:] = 0  # rank 2
    right[:, 1:] = 0  # rank 1
    assert rank(form(left[None], right[None])) == 2


@pytest.mark.parametrize("pattern", ["ab", "fab", "fab+cfd"])
def test_matrix_ranks(pattern):
    form = Update(Matrix(20, 30, 3), pattern)
    assert torch.linalg.matrix_rank(form(filled(form))) == (6 if pattern == "fab+cfd" else 3)


@pytest.mark.parametrize(("rows", "columns", "ratio"), [(192, 96, 0.03125), (50, 7, 0.11), (3, 5, 0.9)])
def test_counts_are_the_closed_ones(rows, columns, ratio):
    count = rows * columns
    rank = max(1, math.ceil(count * ratio / (rows + columns)))
    blocks = math.ceil(ratio**2 * count / 4)
    side = next(z for z in range(1, 1000) if blocks * z**4 >= count)
    for pattern in ("ab", "fab+cfd"):
        assert parameters(update(rows, columns, ratio, "mat", pattern)) == rank * (rows + columns)
        assert parameters(update(rows, columns, ratio, "kron", pattern)) == 2 * blocks * side**2
    assert (
        parameters(update(rows, columns, ratio, "mat", "fab")) == math.ceil(count * ratio / columns) * columns
    )
    half = Kronecker.of_ratio(rows, columns, 2 * ratio)
    assert parameters(update(rows, columns, ratio, "kron", "fab")) == half.blocks * half.side**2
    half_rank = max(1, math.ceil(count * ratio / (2 * (rows + columns))))
    assert parameters(Hadamard.of_ratio(rows, columns, ratio)) == 2 * half_rank * (rows + columns)
    assert parameters(LowRank.of_ratio(rows, columns, ratio)) == rank * (rows + columns)


def test_sides_are_exact_where_the_fourth_root_is_whole():
    for side in range(1, 40):
        for blocks in (1, 3, 16):
            form = Kronecker.of_ratio(blocks, side**4, (4 * (blocks - 0.5) / (blocks * side**4)) ** 0.5)
            assert (form.blocks, form.side) == (blocks, side)


NETWORKS = {  # network, image, classes: values in all, dense ones
    "fmnist": ("cnn", (1, 28), 10, 390_880, 3_808),
    "svhn": ("cnn", (3, 32), 10, 399_136, 12_064),
    "cifar10": ("deep_cnn", (3, 32), 10, 4_719_328, 9_952),
    "cifar100": ("deep_cnn", (3, 32), 100, 4_765_408, 56_032),
}
RANKS = {
    "fmnist": [2, 3, 5],
    "svhn": [1, 1, 1],
    "cifar10": [2, 2, 3, 4, 6, 8, 12, 15, 23],
    "cifar100": [1, 2, 2, 3, 4, 5, 8, 10, 15],
}
BLOCKS = {
    "fmnist": [(2, 10), (8, 10), (31, 10)],
    "svhn": [(1, 12), (1, 17), (1, 24)],
    "cifar10": [(2, 9), (4, 9), (7, 9), (14, 9), (28, 9), (55, 9), (110, 9), (219, 9), (438, 9)],
    "cifar100": [(1, 10), (2, 10), (4, 10), (8, 10), (16, 10), (31, 10), (61, 10), (121, 10), (242, 10)],
}
RATIOS = {
    "fmnist": (0.03037, 0.03072),
    "svhn": (0.03528, 0.03528),
    "cifar10": (0.03217, 0.03221),
    "cifar100": (0.03138, 0.03216),
}


@pytest.mark.parametrize("pattern", ["ab", "fab+cfd"])
@pytest.mark.parametrize("name", NETWORKS)
def test_the_networks_at_a_ratio_of_1_32(name, pattern):
    """Ranks, blocks and sides of every layer; the real ratio, which SVHN's cannot bring to 1/32."""
    network, (channels, size), classes, total, dense = NETWORKS[name]
    for kind, expected, ratio in (
        ("mat", RANKS[name], RATIOS[name][0]),
        ("kron", BLOCKS[name], RATIOS[name][1]),
    ):
        model = make(network, channels, size, classes, seed=0)
        assert trained_values(model) == total
        decompose(model, partial(update, kind=kind, pattern=pattern), 1 / 32, base=True)
        products = [layer.form.product for _, layer in decomposed_layers(model)]
        found = [p.rank if kind == "mat" else (p.blocks, p.side) for p in products]
        assert found == expected
        shapes = [layer.shape for _, layer in decomposed_layers(model)]
        each = [
            r * 3 * (s[0] + s[1]) if kind == "mat" else 2 * r[0] * r[1] ** 2
            for r, s in zip(expected, shapes, strict=True)
        ]
        assert trained_values(model) == dense + sum(each)
        assert trained_values(model) / total == pytest.approx(ratio, abs=5e-6)
        weights = [b for n, b in model.named_buffers() if n.endswith(".weight")]
        assert sum(w.numel() for w in weights) == total - dense  # W is there, and not trained


def test_the_middle_layer_of_the_perceptron():
    """Rank 4, or 16 blocks of side 8: 2,048 values, at a ratio of 0.2485 for the whole network."""
    for kind, size in (("mat", (4,)), ("kron", (16, 8))):
        model = decompose(
            make("mlp", 1, 8, 10, 0), partial(update, kind=kind, pattern="ab"), 0.2485, base=True
        )
        ((_, layer),) = decomposed_layers(model)
        product = layer.form.product
        assert (product.rank,) == size if kind == "mat" else (product.blocks, product.side) == size
        assert trained_values(model) == 64 * 256 + 2048 + 2560


@pytest.mark.parametrize(("kind", "pattern"), [(k, p) for k, p in FORMS if p != "ab"])
def test_the_mean_of_factors_is_the_mean_of_updates(kind, pattern):
    form = update(24, 35, 0.3, kind, pattern, magnitude=2.0)
    frozen = {name: value for name, value in form.start(5).items() if name in form.frozen}
    clients = [filled(form, seed) | frozen for seed in range(4)]
    weights = torch.tensor([0.1, 0.2, 0.3, 0.4])
    mean = {name: sum(w * c[name] for w, c in zip(weights, clients, strict=True)) for name in form.trained}
    right = sum(w * form(c) for w, c in zip(weights, clients, strict=True))
    torch.testing.assert_close(form(frozen | mean), right, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", aad.KINDS)
def test_the_mean_of_plain_factors_is_not(kind):
    form = update(1, 1, 1.0, kind, "ab")
    clients = [
        {name: torch.full(shape, sign) for name, shape in form.trained.items()} for sign in (1.0, -1.0)
    ]
    mean = {name: (clients[0][name] + clients[1][name]) / 2 for name in form.trained}
    assert sum(form(client) for client in clients) / 2 == 1 and form(mean) == 0


def test_full_rank_can_be_any_update():
    """r = min(p, q) with an orthonormal frozen factor: L_f R = U for R = L_f^T U."""
    target = torch.randn(12, 20, generator=torch.Generator().manual_seed(0))
    form = Update(Matrix(12, 20, 12), "fab+cfd")
    frozen_left = torch.linalg.qr(torch.randn(12, 12, generator=torch.Generator().manual_seed(1))).Q
    factors = form.start(0) | {"frozen_left": frozen_left, "right": frozen_left.T @ target}
    torch.testing.assert_close(form(factors), target)


def test_hadamard_product_and_its_rank():
    form = Hadamard(12, 15, 3)
    f = filled(form)
    plain = sum(
        torch.outer(f["left1"][:, a] * f["left2"][:, b], f["right1"][a] * f["right2"][b])
        for a in range(3)
        for b in range(3)
    )
    torch.testing.assert_close(form(f), plain)
    assert torch.linalg.matrix_rank(form(f)) == 9


@pytest.mark.parametrize("kind", [LowRank, Hadamard])
def test_factorised_weights_start_with_the_dense_spread(kind):
    form = kind.of_ratio(384, 768, 0.25, 0.02)
    assert float(form(form.start(3)).std()) == pytest.approx(0.02, rel=0.1)


def test_truncated_svd_is_the_best_of_its_rank():
    weight = torch.randn(9, 14, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    left, right = truncated(weight, 4)
    assert left.shape == (9, 4) and right.shape == (4, 14)
    left_over = (weight - left @ right).square().sum()
    assert float(left_over) == pytest.approx(float(torch.linalg.svdvals(weight)[4:].square().sum()))
    torch.testing.assert_close(left.T @ left, right @ right.T)  # the singular values are shared evenly


def test_a_convolution_is_viewed_without_moving_an_axis():
    weight = torch.arange(4 * 5 * 3 * 3.0).reshape(4, 5, 3, 3)
    assert matrix_shape(weight) == (12, 15)
    matrix = weight.view(matrix_shape(weight))
    assert torch.equal(matrix.view(weight.shape), weight)
    assert matrix[2, 4] == weight.flatten()[2 * 15 + 4]
    assert matrix_shape(torch.zeros(3, 7)) == (3, 7)


def test_layers_compute_with_w_plus_delta():
    """Against nn.Conv2d and nn.Linear that hold the sum, with gradients of the factors by the chain rule."""
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv2d(2, 3, 3, padding=1, bias=False),
        nn.Conv2d(3, 5, 3, stride=2, padding=1, bias=False),
        nn.Flatten(),
        nn.Linear(5 * 9, 7, bias=False),
        nn.Linear(7, 4, bias=False),
    )
    plain = [layer.weight.detach().clone() for layer in network if hasattr(layer, "weight")]
    x = torch.randn(6, 2, 6, 6)
    before = network(x)
    decompose(network, partial(update, kind="mat", pattern="ab", magnitude=0.5), 0.5, base=True)
    restart(network, seed=3)
    assert torch.equal(network(x), before)  # Delta = 0: the dense network, bit for bit
    conv, linear = network[1], network[3]
    with torch.no_grad():
        conv.right.normal_()
        linear.right.normal_()
    merged = [
        plain[1] + (conv.left @ conv.right).detach().view(5, 3, 3, 3),
        plain[2] + (linear.left @ linear.right).detach(),
    ]
    merged = [w.requires_grad_() for w in merged]
    y = nn.functional.conv2d(nn.functional.conv2d(x, plain[0], padding=1), merged[0], stride=2, padding=1)
    y = nn.functional.linear(nn.functional.linear(y.flatten(1), merged[1]), plain[3])
    torch.testing.assert_close(network(x), y)
    network(x).square().sum().backward()
    y.square().sum().backward()
    torch.testing.assert_close(conv.left.grad, merged[0].grad.view(15, 9) @ conv.right.detach().T)
    torch.testing.assert_close(linear.right.grad, linear.left.detach().T @ merged[1].grad)
    assert not conv.weight.requires_grad


def test_networks_that_cannot_be_decomposed():
    form = partial(update, kind="mat", pattern="ab")
    with pytest.raises(UserError, match="at least three are needed; found 2"):
        decompose(nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)), form, 0.5, base=True)
    grouped = nn.Sequential(nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 3, groups=2), nn.Linear(4, 2))
    with pytest.raises(UserError, match="'1' is a grouped convolution"):
        decompose(grouped, form, 0.5, base=True)
    with pytest.raises(UserError, match="images of 32 x 32 at least, found 28"):
        make("deep_cnn", 1, 28, 10, 0)
    with pytest.raises(UserError, match="network takes cnn, deep_cnn, mlp; found 'resnet'"):
        make("resnet", 1, 28, 10, 0)
