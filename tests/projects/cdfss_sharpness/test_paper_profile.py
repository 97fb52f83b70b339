"""The paper profile cannot rot: its cells are stepped on generated files in the published layouts."""

import math

import pytest
import timm
import torch

from projects.cdfss_sharpness import build, requirements
from projects.cdfss_sharpness.config import Config
from projects.cdfss_sharpness.module import LoEC
from shared.reproduction.published import find_cell, read_tables
from shared.reproduction.recipe import load_recipe, tables
from shared.training.config import base_layer, compose
from shared.training.experiment import run_experiment
from tests.projects.cdfss_sharpness import layouts

PAPER = "cdfss_sharpness"
TABLES = ("main_comparison", "ablation", "freeze")


def layers(recipe, row, column):
    parts = (
        recipe.config,
        recipe.profiles["paper"].config,
        recipe.rows[row].config,
        recipe.columns[column].config,
    )
    return [base_layer(), *parts]


def cells():
    for table in TABLES:
        recipe = load_recipe(PAPER, table).at("paper")
        for row in recipe.rows:
            for column in recipe.columns:
                if table == "ablation" or column in ("mean_5", "mean"):
                    yield table, row, column


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("benchmark")
    layouts.write_all(folder)
    return folder


@pytest.fixture
def shrunk(monkeypatch):
    """Narrow networks of the same make."""
    real = timm.create_model

    def create(name, **options):
        if name.startswith("resnet"):
            return timm.models.resnet.ResNet(
                timm.models.resnet.Bottleneck,
                [1, 1, 2, 1],
                stem_type="deep",
                stem_width=8,
                base_width=8,
                num_classes=0,
                output_stride=options["output_stride"],
            )
        return real(name, embed_dim=16, num_heads=2, **options)

    monkeypatch.setattr(timm, "create_model", create)


SMALL = {
    "episodes": {"size": 80, "train": 4, "batch": 2, "test": 3},
    "encoder": {"weights": "none"},
    "sharpness": {"episodes": 2, "draws": 1, "sizes": [1.0]},
    "trainer": {"accelerator": "cpu", "val_check_interval": 2, "limit_val_batches": 1},
    "wandb": {"mode": "disabled"},
    "runtime": {"num_workers": 0},
    "pictures": {"queries": 1},
}


@pytest.mark.parametrize(("table", "row", "column"), list(cells()))
def test_a_cell_trains(table, row, column, root, shrunk, tmp_path):
    recipe = load_recipe(PAPER, table).at("paper")
    full = compose(Config, *layers(recipe, row, column))
    grid = 5 if full.encoder.name == "vit" else 10  # of the score map at 80 pixels
    config = compose(
        Config, *layers(recipe, row, column), SMALL, {"data": {"root": str(root)}, "lcm": {"grid": grid}}
    )
    metrics = run_experiment(build, config, tmp_path, group=table, name=row)
    metric = recipe.columns[column].metric or recipe.rows[row].metric or recipe.metric
    assert math.isfinite(metrics[metric]) and 0 <= metrics[metric] <= 100
    assert math.isfinite(metrics["sharpness/low"]) and math.isfinite(metrics["cka/stage2"])


@pytest.mark.parametrize("table", TABLES)
def test_the_setting_of_the_paper(table):
    recipe = load_recipe(PAPER, table).at("paper")
    for row in recipe.rows:
        for column in recipe.columns:
            config = compose(Config, *layers(recipe, row, column))
            episodes, encoder, lem, lcm = config.episodes, config.encoder, config.lem, config.lcm
            assert (episodes.source, episodes.size, episodes.train, episodes.test) == (
                "pascal",
                400,
                24000,
                600,
            )
            assert episodes.batch == 4 and episodes.shots == (5 if column.endswith("_5") else 1)
            assert (lem.sigma, lem.kernel, lem.stage, lem.prob, lem.match_rms) == (0.1, 3, 2, 1.0, False)
            assert (lcm.anchors, lcm.weight, lcm.beta, lcm.grid, lcm.on) == (3, 0.6, "0.7", 25, "cosine")
            assert (config.optimizer.lr, config.optimizer.momentum) == (1e-3, 0.9)
            assert config.optimizer.weight_decay == 5e-4 and config.sam.rho == 0
            assert config.head.name == ("prototype" if row == "prototypes" else "ssp")
            frozen = {"none": 0, "one": 1}.get(row, 2)
            assert encoder.frozen == frozen and encoder.weights == "" and encoder.blocks == 12
            names = [need.name for need in requirements(config)]
            assert names[:5] == [
                *("pascal-voc-sbd", "fss-1000", "deepglobe", "isic2018-segmentation", "lung-segmentation")
            ]
            assert names[-1].startswith("timm/")


def test_shapes_at_full_size():
    """400 pixels: a 50 x 50 score map (25 x 25 tokens) and 2 x 2 pixels (one token) to a patch of LCM."""
    from projects.cdfss_sharpness.segmenter import segmenter

    for name, side, channels in (("resnet50", 50, 256), ("vit", 25, 768)):
        config = compose(Config, {"encoder": {"name": name, "weights": "none"}})
        net = segmenter(config).eval()
        with torch.no_grad():
            features = net.encoder(torch.randn(1, 3, 400, 400))
        assert features["stage4"].shape[2:] == (side, side) and side % config.lcm.grid == 0
        assert features["stage2"].shape[1] == channels


def test_published_figures():
    published = {table["id"]: table for table in read_tables(PAPER)["tables"]}
    assert set(published) == {"main_comparison", "ablation_modules", "freeze_study"}
    for row in published["main_comparison"]["rows"]:
        cells = row["cells"]
        for shots in (0, 1):
            own = cells[shots:8:2]
            if None not in own and cells[8 + shots] is not None:
                one_decimal = row["source"] == "D" or row["method"].startswith("LoEC")
                assert cells[8 + shots] == pytest.approx(sum(own) / 4, abs=0.06 if one_decimal else 0.011), (
                    row
                )
    for table in TABLES:
        recipe = load_recipe(PAPER, table).at("paper")
        for row in recipe.rows.values():
            for column in recipe.columns.values():
                found = find_cell(PAPER, recipe.published, row.published, column.published)
                assert row.published is None or found is not None
    assert {"digits", "stamps", *TABLES} <= set(tables(PAPER))


def test_sam_has_nothing_to_act_on_where_low_stages_are_frozen(root, shrunk, tmp_path):
    from shared.errors import UserError

    config = compose(
        Config,
        base_layer(),
        SMALL,
        {
            "data": {"root": str(root)},
            "sam": {"rho": 0.05},
            "lcm": {"grid": 10},
            "trainer": {"max_epochs": 1},
        },
    )
    with pytest.raises(UserError, match="encoder.frozen below sam.stages"):
        run_experiment(build, config, tmp_path, group="test", name="sam")
    assert LoEC(config, [("isic", 3)]).low_level(4)
