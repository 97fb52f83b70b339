"""The comparison: its methods, networks and settings, the paper profile on made-up CIFAR files, resuming."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from projects.fl_classics import build, requirements
from projects.fl_classics.chosen import best_rows
from projects.fl_classics.config import METHODS, NETWORKS, NORMS, Config, NetworkConfig
from projects.fl_classics.networks import network
from shared.data.catalogue import locate, missing
from shared.data.images import ImageSet
from shared.errors import UserError
from shared.federated.algorithms.fedavg import FedAvg
from shared.federated.algorithms.fedbn import FedBN
from shared.federated.algorithms.fednova import FedNova
from shared.federated.algorithms.fedprox import FedProx
from shared.federated.algorithms.moon import Moon
from shared.federated.algorithms.scaffold import Scaffold
from shared.reproduction.published import read_tables
from shared.reproduction.recipe import load_recipe
from shared.training.config import base_layer, compose
from shared.training.experiment import Interrupted, run_experiment
from tests.shared.data.image_files import write_cifar10

PAPER = "fl_classics"
SMALL = {
    "federation": {
        "dataset": "digits",
        "train_images": 300,
        "client_test": 0.2,
        "clients": 5,
        "per_round": 3,
        "rounds": 4,
        "evaluate_every": 2,
        "alpha": 0.5,
        "batch_size": 10,
        "local_epochs": 1,
        "targets": [0.3],
        "engine": "sequential",
    },
    "network": {"width": 4},
    "trainer": {"accelerator": "cpu"},
    "wandb": {"mode": "disabled"},
}


def config(*overrides: str) -> Any:
    return compose(Config, base_layer(), SMALL, overrides=overrides)


def run(folder: Path, *overrides: str, stop_after: int | None = None) -> dict[str, float]:
    calls = iter(range(10_000))
    stop = (lambda: False) if stop_after is None else (lambda: next(calls) >= stop_after)
    return run_experiment(build, config(*overrides), folder, group="g", name="n", stop=stop)


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, float]]:
    """Metrics of four rounds of every method."""
    folder = tmp_path_factory.mktemp("runs")
    return {method: run(folder / method, f"method={method}") for method in METHODS}


def test_every_method_logs_every_column(ran: dict[str, dict[str, float]]) -> None:
    recipe = load_recipe(PAPER, "classics")
    columns = {column.metric or recipe.metric for column in recipe.columns.values()}
    for metrics in ran.values():
        assert {name.replace("_70", "_30") for name in columns} <= set(metrics)
        assert "mb_up" in metrics  # of a claim


def test_methods_differ_where_they_should(ran: dict[str, dict[str, float]]) -> None:
    losses = {method: metrics["test/loss"] for method, metrics in ran.items()}
    assert len(set(losses.values())) == len(METHODS)
    up = {method: metrics["bytes_up"] for method, metrics in ran.items()}
    assert 1.8 * up["fedavg"] < up["scaffold"] < 2 * up["fedavg"]  # controls for parameters, not for buffers
    assert up["fedbn"] < up["fedavg"] and up["local"] < 0.1 * up["fedavg"]
    assert up["fedprox"] == up["moon"] == up["fedavgm"] == up["fedadam"] == up["fedavg"]


def test_the_federation_learns_and_local_models_learn_alone(ran: dict[str, dict[str, float]]) -> None:
    longer = ["federation.rounds=20", "federation.train_images=0", "optimizer.lr=0.2"]
    # ten classes: chance is 10 %
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as folder:
        assert run(Path(folder), *longer)["last/accuracy"] > 60
    assert ran["local"]["test/accuracy"] < 0.25  # nothing has reached the server
    assert ran["local"]["last/personal/accuracy"] > 35
    assert ran["fedavg"]["tuned/accuracy"] > ran["fedavg"]["last/personal/accuracy"]


def test_methods_are_the_shared_algorithms() -> None:
    kinds = {
        "fedavg": FedAvg,
        "fedavgm": FedAvg,
        "fedadam": FedAvg,
        "fedprox": FedProx,
        "scaffold": Scaffold,
        "fednova": FedNova,
        "moon": Moon,
        "fedbn": FedBN,
    }
    for method, kind in kinds.items():
        assert type(build(config(f"method={method}")).module) is kind
    step = build(config("method=fedavgm", "settings.server_lr=0.3")).module.configure_server_optimizers()[0]
    assert step.param_groups[0]["lr"] == 0.3 and step.param_groups[0]["momentum"] == 0.9
    adam = build(config("method=fedadam")).module.configure_server_optimizers()[0]
    assert adam.param_groups[0]["betas"] == (0.9, 0.99) and adam.param_groups[0]["eps"] == 1e-3


def test_all_methods_see_the_same_federation() -> None:
    made = [build(config(f"method={method}")) for method in METHODS]
    assert len({run.datamodule.partitions[0].hash for run in made}) == 1
    assert len({str([run.datamodule.sampler(r) for r in range(9)]) for run in made}) == 1
    other = build(config("seed=1"))
    assert other.datamodule.partitions[0].hash != made[0].datamodule.partitions[0].hash


@pytest.mark.parametrize("method", ["scaffold", "fedbn", "local", "fedavgm"])
def test_resumed_equals_uninterrupted(ran: dict[str, dict[str, float]], tmp_path: Path, method: str) -> None:
    with pytest.raises(Interrupted):
        run(tmp_path, f"method={method}", stop_after=3)
    torch.rand(5)
    assert run(tmp_path, f"method={method}") == ran[method]


# Networks.


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize(("channels", "side"), [(1, 28), (3, 32), (3, 17)])
def test_networks_have_gradients_at_odd_sizes(name: str, norm: str, channels: int, side: int) -> None:
    images = ImageSet(torch.zeros(1, channels, side, side, dtype=torch.uint8), torch.zeros(1).long(), 7)
    net = network(NetworkConfig(name=name, norm=norm), images)
    out = net(torch.randn(3, channels, side, side))
    assert out.shape == (3, 7)
    out.square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in net.parameters())
    batch_norms = [m for m in net.modules() if isinstance(m, torch.nn.modules.batchnorm._NormBase)]
    assert bool(batch_norms) == (norm == "batch")
    assert net.head.out_features == 7


def test_the_network_of_the_table_has_the_size_that_is_told() -> None:
    images = ImageSet(torch.zeros(1, 1, 28, 28, dtype=torch.uint8), torch.zeros(1).long(), 10)
    settings = load_recipe(PAPER, "classics").config["network"]
    count = sum(p.numel() for p in network(NetworkConfig(**settings), images).parameters())
    assert 51_500 < count < 52_500


# Bad input.


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["method=fedprx"], "method takes .*found 'fedprx'. Did you mean 'fedprox'"),
        (["network.name=resnet"], "network.name takes small_cnn, lenet, resnet18; found 'resnet'"),
        (["network.norm=layer"], "network.norm takes batch, group, none; found 'layer'"),
        (["network.name=resnet18"], "resnet18 needs images of 16 x 16 at least, found 8 x 8"),
        (["method=scaffold", "optimizer.momentum=0.9"], "SGD without momentum"),
        (["federation.dataset=cifar"], "unknown image set 'cifar'"),
        (["federation.dataset=cifar10"], "data.root is not set"),
    ],
)
def test_mistakes_are_explained(overrides: list[str], expected: str) -> None:
    with pytest.raises(UserError, match=expected):
        build(config(*overrides))


# The recipes.


def cells(table: str, profile: str) -> list[tuple[str, list[dict[str, Any]]]]:
    recipe = load_recipe(PAPER, table)
    view, scale = recipe.at(profile), recipe.profiles[profile]
    first = next(iter(view.columns.values()))
    return [(row.id, [recipe.config, scale.config, row.config, first.config]) for row in view.rows.values()]


@pytest.mark.parametrize(("row", "layers"), cells("classics", "paper"), ids=lambda value: str(value)[:12])
def test_the_paper_profile_on_made_up_files(row: str, layers: list[dict[str, Any]], tmp_path: Path) -> None:
    write_cifar10(tmp_path / "data", per_file=30, test=20)
    shrunk = {
        "federation": {"clients": 4, "per_round": 2, "rounds": 1, "evaluate_every": 1, "min_size": 8},
        "network": {"name": "lenet"},
        "data": {"root": str(tmp_path / "data")},
        "trainer": {"accelerator": "cpu"},
        "wandb": {"mode": "disabled"},
    }
    shrunk["federation"] |= {"local_epochs": 1, "alpha": 5.0, "engine": "sequential"}
    composed = compose(Config, base_layer(), *layers, shrunk)
    assert composed.federation.dataset == "cifar10" and composed.augment
    assert missing(requirements(composed)) == []
    metrics = run_experiment(build, composed, tmp_path / "run", group="g", name=row)
    assert metrics["test/accuracy"] >= 0 and metrics["bytes_up"] > 0
    recipe = load_recipe(PAPER, "classics").at("paper")
    assert {column.metric or recipe.metric for column in recipe.columns.values()} <= set(metrics)


def test_the_paper_profile_builds_its_own_network(tmp_path: Path) -> None:
    write_cifar10(tmp_path, per_file=240, test=20)
    _, layers = cells("classics", "paper")[0]
    made = build(
        compose(
            Config, base_layer(), *layers, {"data": {"root": str(tmp_path)}, "federation": {"min_size": 1}}
        )
    )
    assert sum(p.numel() for p in made.module.model.parameters()) == 11_173_962  # ResNet-18, stem for 32 x 32
    assert made.datamodule.rounds == 500 and len(made.datamodule.clients) == 100


@pytest.mark.skipif(locate("fashion-mnist") is None, reason="fashion-mnist is not in the cache")
@pytest.mark.parametrize("table", ["classics", "tuning"])
def test_the_laptop_profile_steps(table: str, tmp_path: Path) -> None:
    _, layers = cells(table, "laptop")[0]
    short = {"federation": {"rounds": 2, "train_images": 1000, "local_epochs": 1}}
    short |= {"trainer": {"accelerator": "cpu", "limit_test_batches": 2}, "wandb": {"mode": "disabled"}}
    metrics = run_experiment(
        build, compose(Config, base_layer(), *layers, short), tmp_path, group="g", name="n"
    )
    assert metrics["last5/accuracy"] > 12 and metrics["mb_up"] > 1


def test_no_figure_is_published_for_this_table() -> None:
    tables = read_tables(PAPER)
    assert tables["tables"] == [] and tables["paper"]["slug"] == PAPER
    recipe = load_recipe(PAPER, "classics")
    for profile in recipe.profiles:
        view = recipe.at(profile)
        assert view.published is None
        assert not any(entry.published for entry in (*view.rows.values(), *view.columns.values()))


def test_rows_of_the_table_use_settings_of_the_trial() -> None:
    """Every row's settings are a cell of `tuning`, so that none was chosen by what the table shows."""
    trial, table = load_recipe(PAPER, "tuning"), load_recipe(PAPER, "classics")
    tried = [
        compose(Config, row.config, column.config)
        for row in trial.rows.values()
        for column in trial.columns.values()
    ]
    for row in table.rows.values():
        assert compose(Config, row.config) in tried, row.id
    assert not set(trial.profiles["laptop"].seeds) & set(table.profiles["laptop"].seeds)


def test_the_best_cell_of_each_method_is_chosen() -> None:
    trial = load_recipe(PAPER, "tuning").at("laptop")
    cells = [
        {"row": row, "column": column, "mean": 50.0, "n": 1} for row in trial.rows for column in trial.columns
    ]
    for cell in cells:
        if (cell["row"], cell["column"]) in {("fedprox_01", "lr_0.3"), ("fedavg_gn", "lr_0.03")}:
            cell["mean"] = 60.0
        if cell["row"] == "scaffold" and cell["column"] != "lr_0.1":
            cell["mean"] = None  # diverged
    found = best_rows({"cells": cells}, trial)
    assert set(found) == set(load_recipe(PAPER, "classics").rows)
    assert found["fedprox"] == {"method": "fedprox", "settings": {"mu": 0.1}, "optimizer": {"lr": 0.3}}
    assert found["fedavg_gn"]["optimizer"] == {"lr": 0.03} and found["scaffold"]["optimizer"] == {"lr": 0.1}
    cells[4]["n"] = 0
    with pytest.raises(UserError, match="has not been measured"):
        best_rows({"cells": cells}, trial)
