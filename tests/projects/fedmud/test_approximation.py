"""Best approximations against an optimiser, against closed optima, and in a real run."""

import pytest
import torch

from projects.fedmud.aad import KINDS, PATTERNS, Update
from projects.fedmud.approximation import rearranged, relative_error, residual
from projects.fedmud.bkd import Kronecker
from projects.fedmud.decomposition import Matrix

FORMS = [(kind, pattern) for kind in KINDS for pattern in PATTERNS]


def target(rows, columns, seed=0):
    stream = torch.Generator().manual_seed(seed)
    return torch.randn(rows, columns, generator=stream, dtype=torch.float64)


def fitted(wanted, form, factors, seed):
    """The squared error at which L-BFGS over the trained factors ends, from a random start."""
    stream = torch.Generator().manual_seed(seed)
    trained = {
        name: torch.randn(shape, generator=stream, dtype=torch.float64).requires_grad_()
        for name, shape in form.trained.items()
    }
    frozen = {name: factors[name].double() for name in form.frozen}
    optimizer = torch.optim.LBFGS(
        list(trained.values()), max_iter=400, tolerance_grad=1e-10, line_search_fn="strong_wolfe"
    )

    def closure():
        optimizer.zero_grad()
        value = (wanted - form(frozen | trained)).square().sum()
        value.backward()
        return value

    optimizer.step(closure)
    return float(closure())


@pytest.mark.parametrize(("kind", "pattern"), FORMS)
def test_residuals_are_those_of_an_optimiser(kind, pattern):
    """8 x 11 values: a block of side 3 holds 81, so the second of two is cut."""
    wanted = target(8, 11)
    product = Matrix(8, 11, 2) if kind == "mat" else Kronecker(8, 11, blocks=2, side=3)
    form = Update(product, pattern)
    factors = form.start(4)
    found = residual(wanted, form, factors)
    assert 0 < found < float(wanted.square().sum())
    starts = range(6 if pattern == "ab" else 1)  # linear in what is trained, any start will do
    assert found == pytest.approx(min(fitted(wanted, form, factors, seed) for seed in starts), rel=1e-4)


def test_rearranged_blocks_are_outer_products():
    product = Kronecker(16, 16, blocks=1, side=4)
    left, right = target(4, 4, 1), target(4, 4, 2)
    blocks, known = rearranged(torch.kron(left, right), product)
    torch.testing.assert_close(blocks[0], torch.outer(left.flatten(), right.flatten()))
    assert known.all()
    assert residual(torch.kron(left, right), Update(product, "ab"), {}) < 1e-20


def test_blocks_beyond_the_matrix_cost_nothing():
    wanted = target(3, 27)
    product = Kronecker(3, 27, blocks=3, side=3)  # the first block holds all 81 values
    enough = Kronecker(3, 27, blocks=1, side=3)
    assert residual(wanted, Update(product, "ab"), {}) == pytest.approx(
        residual(wanted, Update(enough, "ab"), {})
    )


def test_more_values_come_nearer():
    updates = [target(24, 36), target(36, 12, 1)]
    for kind, pattern in FORMS:
        errors = [relative_error(updates, 0, ratio, kind, pattern, seed=0) for ratio in (0.1, 0.3)]
        assert 1 > errors[0] > errors[1] > 0


def test_a_low_rank_update_is_one_of_plain_products():
    wanted = target(30, 4) @ target(4, 20, 1)
    assert residual(wanted, Update(Matrix(30, 20, 4), "ab"), {}) < 1e-18
    assert residual(wanted, Update(Matrix(30, 20, 3), "ab"), {}) > 1e-3


def test_of_a_run(fed, tmp_path):
    """The last round's update of a small federation, measured apart."""
    from projects.fedmud.approximation import ApproximationError
    from shared.federated.classifier import ImageClassifier

    module = ApproximationError(ImageClassifier(fed.network(), lr=0.1), ratio=0.5)
    seen = []
    update = module.update

    def watch(mean):
        seen.append({name: value.clone() for name, value in module.theta().items()})
        update(mean)

    module.update = watch
    loop = fed.trainer()
    loop.fit(module, datamodule=fed.data(rounds=2))
    errors = {n: float(v) for n, v in loop.callback_metrics.items() if n.startswith("approximation/")}
    assert len(errors) == 6 and all(0 < error < 1 for error in errors.values())
    shapes = {"net.3.weight": (18, 12), "net.6.weight": (15, 18)}
    changes = [(module.theta()[n] - seen[-1][n]).view(shape) for n, shape in shapes.items()]
    dense = sum(p.numel() for p in module.model.parameters()) - 18 * 12 - 15 * 18
    assert errors["approximation/mat_ab"] == pytest.approx(
        relative_error(changes, dense, 0.5, "mat", "ab", 0)
    )
