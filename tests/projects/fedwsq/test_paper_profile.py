"""The paper profile cannot rot: every recipe composes, its rows take steps on files in the real layouts."""

import copy

import pytest
import torch
from torch import nn

from projects.fedwsq import build, experiments, networks, requirements
from projects.fedwsq.config import Config
from projects.fedwsq.networks import ConvNet
from shared.errors import UserError
from shared.reproduction.published import find_cell, read_tables
from shared.reproduction.recipe import load_recipe, recipes, tables
from shared.training.config import base_layer, compose
from shared.training.experiment import run_experiment
from tests.shared.data import image_files

PAPER = "fedwsq"
TABLES = [name for name in tables(PAPER) if "paper" in load_recipe(PAPER, name).profiles]


def layers(recipe, profile, row, column):
    return [
        base_layer(),
        recipe.config,
        recipe.profiles[profile].config,
        recipe.rows[row].config,
        recipe.columns[column].config,
    ]


@pytest.mark.parametrize("name", tables(PAPER))
def test_every_row_and_column_composes(name):
    recipe = load_recipe(PAPER, name)
    for profile in recipe.profiles:
        at = recipe.at(profile)
        cells = [(row, next(iter(at.columns))) for row in at.rows]
        cells += [(next(iter(at.rows)), column) for column in at.columns]
        configs = [compose(Config, *layers(at, profile, row, column)) for row, column in cells]
        assert len(at.profiles[profile].seeds) >= 3
        assert requirements(configs[0])[0].kind == (
            "data" if profile == "paper" or name == "digits" else "embedded"
        )
        for config in configs:
            assert config.federation.rounds % config.federation.evaluate_every == 0


def test_the_papers_setting():
    at = load_recipe(PAPER, "cifar10").at("paper")
    config = compose(Config, *layers(at, "paper", "fedwsq_4", "alpha_0.3"))
    f, o, q = config.federation, config.optimizer, config.quantizer
    assert (f.clients, f.per_round, f.rounds, f.local_epochs, f.batch_size) == (100, 5, 1000, 5, 50)
    assert (f.partition, f.alpha, o.lr, o.decay, o.weight_decay, o.clip) == (
        *("balanced_dirichlet", 0.3),
        *(0.1, 0.998, 1e-3, 10),
    )
    assert (q.name, q.bits, q.beta, q.initial_scale, q.levels, q.warm_start) == (
        *("danuq", 4, 0.1, 1e-3),
        *("published", False),
    )
    assert config.network.ws and config.network.rho == 1e-3 and config.augment
    for name, images in (("cifar10", 50_000), ("cifar100", 50_000), ("cifar100_500_clients", 50_000)):
        own = compose(
            Config, *layers(load_recipe(PAPER, name).at("paper"), "paper", "fedws", "iid")
        ).federation
        assert images // own.clients // own.batch_size == 10  # ten iterations a local epoch, always
    for name in ("accuracy", "tiny_imagenet_500_clients"):
        own = compose(
            Config, *layers(load_recipe(PAPER, name).at("paper"), "paper", "fedws", "iid")
        ).federation
        assert own.dataset == "tiny-imagenet" and 100_000 // own.clients // own.batch_size == 10


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    image_files.write_cifar10(folder)
    image_files.write_cifar100(folder)
    image_files.write_tiny_imagenet(folder)
    return folder


def shrunk(root, clients=4):
    """Two rounds of two clients on the CPU, in whole precision."""
    return {
        "data": {"root": str(root)},
        "wandb": {"mode": "disabled"},
        "trainer": {"accelerator": "cpu", "devices": 1},
        "optimizer": {"precision": None},
        "federation": {
            "clients": clients,
            "per_round": 2,
            "rounds": 2,
            "evaluate_every": 2,
            "batch_size": 8,
            "local_epochs": 1,
        },
    }


class Small(nn.Module):
    """Stands for ResNet-18: a stem and two further convolutions, three channels."""

    def __new__(cls, channels, classes, groups=2):
        return ConvNet(channels, classes, (4, 4, 6), (2, 2, 2), groups)


CELLS = [("cifar10", row, "alpha_0.1") for row in load_recipe(PAPER, "cifar10").at("paper").rows]
CELLS += [
    ("cifar100", "fedwsq_2", "iid"),
    ("accuracy", "fedwsq_4", "alpha_0.6"),
    ("accuracy", "fedacg", "iid"),
]


@pytest.mark.parametrize(("table", "row", "column"), CELLS)
def test_a_cell_trains_on_files_in_the_published_layout(table, row, column, root, tmp_path, monkeypatch):
    monkeypatch.setattr(networks, "resnet18", Small)
    recipe = load_recipe(PAPER, table).at("paper")
    config = compose(Config, *layers(recipe, "paper", row, column), shrunk(root))
    metrics = run_experiment(build, config, tmp_path, group=table, name=row)
    assert 0 <= metrics["last/accuracy"] <= 100 and metrics["uplink/ratio"] >= 0.9
    assert metrics["train/loss"] > 0 and metrics["total/up_bytes"] > 0


def test_the_real_network_takes_a_step_as_in_the_paper_profile(root, tmp_path):
    recipe = load_recipe(PAPER, "cifar10").at("paper")
    small = shrunk(root, clients=25)
    small["federation"] |= {"per_round": 1, "rounds": 1, "evaluate_every": 1, "batch_size": 4}
    config = compose(Config, *layers(recipe, "paper", "fedwsq_1", "alpha_0.1"), small)
    metrics = run_experiment(build, config, tmp_path, group="g", name="n")
    assert metrics["uplink/ratio_quantised"] == pytest.approx(32, rel=0.001)
    quantised, others, scales = 11_157_504, 16_458, 19
    whole = (quantised + others) * 4 / (quantised / 8 + (others + scales) * 4)
    assert metrics["uplink/ratio"] == pytest.approx(whole, rel=1e-3)


def test_half_precision_of_the_local_training_is_passed_on(root):
    recipe = load_recipe(PAPER, "cifar10").at("paper")
    full = compose(Config, *layers(recipe, "paper", "fedws", "iid"), {"data": {"root": str(root)}})
    full = copy.deepcopy(full)
    full.federation.clients, full.federation.per_round = 4, 2
    experiment = build(full)
    assert experiment.module.client.training.precision == "16-mixed"
    assert experiment.module.client.training.gradient_clip_val == 10
    assert sum(p.numel() for p in experiment.module.parameters()) == 11_173_962


def test_every_published_cell_that_we_run_exists():
    recipe = load_recipe(PAPER, "accuracy").at("paper")
    for row in recipe.rows.values():
        for column in recipe.columns.values():
            assert find_cell(PAPER, recipe.published, row.published, column.published).value is not None
    ours = {row.published for row in recipe.rows.values()}
    (table,) = read_tables(PAPER)["tables"]
    assert {line["method"] for line in table["rows"]} - ours == {"FedMLB", "FedDecorr", "FedRCL"}


def test_one_default_and_unknown_tasks(fed):
    assert [recipe.table for recipe in recipes(PAPER) if recipe.default] == ["accuracy"]
    with pytest.raises(UserError, match="task takes federation, update_error; found 'update'"):
        experiments.experiment_of(compose(Config, overrides=["task=update"]))


def test_arms_share_the_network_of_a_seed():
    """With and without quantiser the start is equal."""
    layer = {
        "federation": {"dataset": "digits", "clients": 5, "per_round": 2, "partition": "balanced_dirichlet"}
    }
    made = [
        build(compose(Config, layer, overrides=list(over))).module.model.state_dict()
        for over in ((), ("quantizer.name=none",), ("quantizer.bits=1",), ("seed=1",))
    ]
    assert all(torch.equal(made[0][n], made[1][n]) and torch.equal(made[0][n], made[2][n]) for n in made[0])
    assert not torch.equal(made[0]["net.head.weight"], made[3]["net.head.weight"])
