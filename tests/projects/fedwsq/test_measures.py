"""The Hessian's top eigenvalue against the whole Hessian; errors of updates against plain code."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from projects.fedwsq.hessian import top_eigenvalue, top_eigenvalue_of
from projects.fedwsq.levels import PUBLISHED
from projects.fedwsq.update_error import UpdateError, errors
from shared.training.config import compose


def stream(seed=0):
    return torch.Generator().manual_seed(seed)


def test_a_quadratic_has_the_eigenvalue_of_its_matrix():
    q, _ = torch.linalg.qr(torch.randn(6, 6, generator=stream(), dtype=torch.float64))
    for values in ([5, 3, 1, 0.5, 0.1, 0], [-7, 3, 2, 1, 0, 0]):
        matrix = q @ torch.diag(torch.tensor(values, dtype=torch.float64)) @ q.T
        w = torch.randn(6, generator=stream(1), dtype=torch.float64, requires_grad=True)
        found = top_eigenvalue(
            lambda w=w, m=matrix: w @ m @ w / 2, [w], generator=stream(), tolerance=1e-9, iterations=500
        )
        assert found == pytest.approx(values[0], rel=1e-5)  # the sign is kept


def test_a_network_against_its_full_hessian(fed):
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.GroupNorm(1, 2), nn.Tanh(), nn.Flatten(), nn.Linear(32, 3)
    ).double()
    images, labels = fed.images(20).tensors
    images = images.double()
    shapes = {name: p.shape for name, p in net.named_parameters()}

    def loss(flat):
        parts = flat.split([shape.numel() for shape in shapes.values()])
        held = {name: part.view(shapes[name]) for name, part in zip(shapes, parts, strict=True)}
        return F.cross_entropy(torch.func.functional_call(net, held, images), labels)

    flat = torch.cat([p.detach().reshape(-1) for p in net.parameters()])
    hessian = torch.autograd.functional.hessian(loss, flat)
    eigenvalues = torch.linalg.eigvalsh(hessian)
    wanted = max(eigenvalues.tolist(), key=abs)
    found = top_eigenvalue_of(net, images, labels, generator=stream(), iterations=2000, tolerance=1e-10)
    assert found == pytest.approx(wanted, rel=1e-3)
    assert net.training and all(p.grad is None for p in net.parameters())


def test_standardised_networks_have_a_hessian(fed):
    images, labels = fed.images(20).tensors
    assert top_eigenvalue_of(fed.net(), images, labels, generator=stream()) > 0


def test_errors_of_normal_updates_are_those_of_the_tables():
    update = {"w": 0.03 * torch.randn(150_000, generator=stream())}
    found = errors([update], {"w": torch.tensor(0.03)}, stream())
    for bits, wanted in ((1, 0.3634), (2, 0.1351), (4, 0.00972)):
        assert found[f"error/danuq_{bits}"] == pytest.approx(wanted, rel=0.015)
        assert found[f"error/danuq_shared_{bits}"] == pytest.approx(wanted, rel=0.015)
        assert found[f"error/danuq_lloyd_{bits}"] <= found[f"error/danuq_{bits}"] + 1e-4
        assert found[f"error/uniform_{bits}"] > found[f"error/danuq_{bits}"]
    assert found["error/nf_4"] > found["error/danuq_4"] and found["error/nf_2"] > found["error/danuq_2"]
    assert found["error/kurtosis"] == pytest.approx(0, abs=0.05)
    assert {"error/fp_4", "error/qsgd_1"} <= set(found) and "error/nf_1" not in found


def test_errors_are_means_over_clients_and_tensors():
    updates = [
        {"a": torch.randn(30, generator=stream(i)), "b": torch.randn(7, 5, generator=stream(9 + i))}
        for i in (1, 2)
    ]
    found = errors(updates, {"a": torch.tensor(2.0), "b": torch.tensor(0.5)}, stream())
    shared, own = [], []
    for update in updates:
        for name, scale in (("a", 2.0), ("b", 0.5)):
            d = update[name]
            for s, into in ((scale, shared), (float(d.std()), own)):
                levels = s * torch.tensor(PUBLISHED[2])
                restored = levels[(d[..., None] - levels).abs().argmin(-1)]
                into.append(float((restored - d).square().sum() / d.square().sum()))
    assert found["error/danuq_shared_2"] == pytest.approx(sum(shared) / 4, rel=1e-4)
    assert found["error/danuq_2"] == pytest.approx(sum(own) / 4, rel=1e-4)


def test_the_experiment_measures_its_last_round_and_trains_as_fedavg(fed, tmp_path):
    from projects.fedwsq import build
    from projects.fedwsq.config import Config
    from shared.training.experiment import run_experiment

    layer = {
        "task": "update_error",
        "quantizer": {"name": "none"},
        "trainer": {"accelerator": "cpu", "devices": 1},
        "wandb": {"mode": "disabled"},
        "network": {"widths": [4, 6, 8], "strides": [1, 2, 1]},
        "federation": {
            "dataset": "digits",
            "partition": "balanced_dirichlet",
            "train_images": 120,
            "clients": 6,
            "per_round": 3,
            "rounds": 3,
            "batch_size": 10,
            "local_epochs": 1,
            "engine": "sequential",
        },
    }
    measured = run_experiment(build, compose(Config, layer), tmp_path / "a", group="g", name="n")
    assert 0 < measured["error/danuq_4"] < measured["error/danuq_2"] < measured["error/danuq_1"] < 1
    assert measured["error/danuq_shared_4"] > measured["error/danuq_4"]  # three rounds are few
    plain = run_experiment(
        build, compose(Config, layer, {"task": "federation"}), tmp_path / "b", group="g", name="n"
    )
    assert measured["test/loss"] == pytest.approx(plain["test/loss"], rel=1e-5)
    assert UpdateError.server_state == ("scales",)
