"""The paper profile cannot rot: its cells are stepped on generated files in the published layouts."""

import math

import pytest
import torch

from projects.fedmud import build, requirements
from projects.fedmud import data as federated
from projects.fedmud.config import Config
from shared.data.images import ImageSet
from shared.reproduction.published import read_tables
from shared.reproduction.recipe import Recipe, load_recipe, tables
from shared.training.config import base_layer, compose
from shared.training.experiment import run_experiment
from tests.shared.data.image_files import write_cifar10, write_cifar100, write_svhn

PAPER = "fedmud"
SETS = {"fmnist": "fashion-mnist", "svhn": "svhn", "cifar10": "cifar-10", "cifar100": "cifar-100"}
ROWS = ("fedavg", "fedlmt", "fedpara", "fedhm", "mud", "mud_bkd", "mud_aad", "mud_bkd_aad")


def at_paper(table: str) -> Recipe:
    return load_recipe(PAPER, table).at("paper")


def layers(recipe, row, column):
    profile = recipe.profiles["paper"]
    return [
        base_layer(),
        recipe.config,
        profile.config,
        recipe.rows[row].config,
        recipe.columns[column].config,
    ]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    write_svhn(folder, train=120)
    write_cifar10(folder, per_file=20)
    write_cifar100(folder, train=200)
    return folder


def random_images(name, train, root=""):
    stream = torch.Generator().manual_seed(int(train))
    pixels = torch.randint(256, (120 if train else 20, 1, 28, 28), generator=stream, dtype=torch.uint8)
    return ImageSet(pixels, torch.arange(len(pixels)) % 10, 10)


CELLS = [("svhn", row, "labeldir") for row in ROWS]
CELLS += [("svhn", "mud_bkd_aad", "iid"), ("svhn", "mud_bkd_aad", "labelcnt")]
CELLS += [("cifar10", "mud_bkd_aad", "iid"), ("cifar10", "fedhm", "labelcnt"), ("cifar100", "mud_aad", "iid")]
CELLS += [
    ("fmnist", "mud_bkd", "labelcnt"),
    ("approximation", "mat_ab", "r_1_32"),
    ("aggregation", "mud", "iid"),
]
CELLS += [("reset", "mud_bkd_aad", "s_4"), ("magnitude", "mud", "a_3"), ("ratios", "mud_aad", "r_1_64")]


@pytest.mark.parametrize(("table", "row", "column"), CELLS)
def test_a_cell_trains(table, row, column, root, tmp_path, monkeypatch):
    """Two rounds by the recipe's own config, with few clients and small parts."""
    recipe = at_paper(table)
    full = compose(Config, *layers(recipe, row, column))
    if full.federation.dataset == "fashion-mnist":
        monkeypatch.setattr(federated, "load_images", random_images)
    small = {
        "data": {"root": str(root)},
        "trainer": {"accelerator": "cpu"},
        "wandb": {"mode": "disabled"},
        "federation": {"clients": 4, "per_round": 2, "rounds": 2, "local_epochs": 1, "min_size": 2},
    }
    config = compose(Config, *layers(recipe, row, column), small)
    metrics = run_experiment(build, config, tmp_path, group=table, name=row)
    metric = recipe.columns[column].metric or recipe.rows[row].metric or recipe.metric
    assert math.isfinite(metrics[metric]) and 0 <= metrics[metric] <= 100
    if config.method.name == "fedmud" and table in SETS and table != "svhn":
        assert metrics["compression/ratio"] == pytest.approx(1 / 32, abs=0.0011)


@pytest.mark.parametrize("table", [t for t in tables(PAPER) if "paper" in load_recipe(PAPER, t).profiles])
def test_the_federation_of_the_official_scripts(table):
    recipe = at_paper(table)
    for row in recipe.rows:
        for column in recipe.columns:
            config = compose(Config, *layers(recipe, row, column))
            own = config.federation
            assert (own.clients, own.per_round, own.batch_size, own.local_epochs) == (100, 10, 64, 3)
            assert own.partition_seed == 1234 and own.min_size == 10 and own.train_images == 0
            hundred = own.dataset == "cifar100"
            assert own.rounds == (200 if own.dataset.startswith("cifar") else 100)
            assert config.network == ("deep_cnn" if own.dataset.startswith("cifar") else "cnn")
            if own.partition == "labeldir":
                assert own.alpha == (0.1 if hundred else 0.3)
            if own.partition == "labelcnt":
                assert own.labels_per_client == (10 if hundred else 3)
            assert config.method.law == "uniform"
            if row == "fedavg":
                assert config.lr == 0.03
            if row == "mud_bkd_aad" and table in SETS:
                method = config.method
                assert (config.lr, method.magnitude, method.reset_every) == (0.01, 5.0, 1)
                assert (method.kind, method.pattern, method.ratio) == ("kron", "fab+cfd", 1 / 32)


@pytest.mark.parametrize(("table", "name"), SETS.items())
def test_what_a_cell_needs(table, name):
    recipe = at_paper(table)
    assert list(recipe.rows) == list(ROWS) and list(recipe.columns) == ["iid", "labeldir", "labelcnt"]
    (need,) = requirements(compose(Config, *layers(recipe, "mud", "iid")))
    assert need.name == name and need.kind == ("embedded" if table == "fmnist" else "data")


def test_no_recipe_compares_with_another_papers_network():
    assert all(at_paper(table).published is None for table in SETS)
    (third,) = read_tables(PAPER)["tables"]
    assert third["third_party"] and [row["method"] for row in third["rows"] if row["ours"]] == ["FedMUD"]
