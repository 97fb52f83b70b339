import math

import pytest

from shared.errors import UserError
from shared.reproduction import published
from shared.reproduction.plan import make_plan
from shared.reproduction.recipe import Entry, load_recipe
from shared.reproduction.results import Results
from shared.reproduction.store import RunStore
from shared.reproduction.synthetic import synthetic_results

VALUES = {("a", "x"): {0: 0.5, 1: 0.7}, ("b", "x"): {0: {"score": 0.25, "loss": 2.0}, 1: {"score": math.inf}}}


def test_figures_are_scaled_and_ordered(tmp_path):
    results = synthetic_results(tmp_path, VALUES, scale=100.0)
    assert (results.rows, results.columns) == (["a", "b"], ["x"])
    assert results.per_seed("a", "x") == {0: 50.0, 1: 70.0}
    assert results.mean("a", "x") == pytest.approx(60.0)
    assert results.std("a", "x") == pytest.approx(math.sqrt(200.0))
    assert results.per_seed("b", "x", "loss") == {0: 2.0}  # not a metric of the table: as it was logged


def test_what_is_not_finite_is_kept_and_has_no_mean(tmp_path):
    results = synthetic_results(tmp_path, VALUES)
    assert results.per_seed("b", "x")[1] == math.inf
    assert results.mean("b", "x") is None
    assert results.std("b", "x") is None


def test_unknown_names_offer_the_nearest(tmp_path):
    results = synthetic_results(tmp_path, {("plain", "fast"): {0: 1.0}})
    with pytest.raises(UserError, match="Did you mean 'plain'"):
        results.per_seed("plian", "fast")
    with pytest.raises(UserError, match="Did you mean 'fast'"):
        results.mean("plain", "fats")
    with pytest.raises(UserError, match=r"no metric 'scores'.*Did you mean 'score'"):
        results.per_seed("plain", "fast", "scores")
    with pytest.raises(UserError, match="no seed 7; it has 0"):
        results.run_dir("plain", "fast", 7)


def test_runs_that_failed_are_left_out(tmp_path):
    results = synthetic_results(tmp_path, {("a", "x"): {0: 1.0}}, missing={("a", "x", 1): "failed"})
    assert results.per_seed("a", "x") == {0: 1.0}
    assert results.run("a", "x", 1).state == "failed"


def test_history_config_and_artifacts(tmp_path):
    lines = [(0, "val/loss", 0.7), (10, "val/loss", 0.5), (10, "test/acc", 0.8)]
    results = synthetic_results(
        tmp_path,
        {("a", "x"): {0: 1.0}},
        histories={("a", "x", 0): lines},
        configs={("a", "x"): {"optimizer": {"lr": 0.1}}},
    )
    with (results.run_dir("a", "x", 0) / "history.csv").open("a") as file:
        file.write("20,val/lo")  # torn by a kill
    assert results.curve("a", "x", 0, "val/loss") == [(0, 0.7), (10, 0.5)]
    assert results.history("a", "x", 0)["test/acc"] == [(10, 0.8)]
    with pytest.raises(UserError, match="Did you mean 'val/loss'"):
        results.curve("a", "x", 0, "val/los")
    assert results.config("a", "x") == {"seed": 0, "optimizer": {"lr": 0.1}}
    assert results.artifacts("a", "x", 0) == results.run_dir("a", "x", 0) / "artifacts"


def test_a_planned_table_reads_the_store(toy, tmp_path):
    plan = make_plan(load_recipe("toy"), "laptop")
    store = RunStore(tmp_path / "runs")
    for number, spec in enumerate(plan.runs):
        store.begin(spec)
        store.end(spec, "finished", {"test/error": float(number)})
    results = Results(plan, store)
    assert results.profile == "laptop"
    ids = [results.plan.cell("plain", "slow").runs[seed] for seed in (0, 1, 2)]
    numbers = {spec.id: float(number) for number, spec in enumerate(plan.runs)}
    assert list(results.per_seed("plain", "slow").values()) == [numbers[run] for run in ids]
    assert results.config("plain", "fast", 2)["optimizer"]["lr"] == 0.1
    assert results.config("plain", "fast", 2)["seed"] == 2


TABLES = """
paper: {slug: toy, title: Toy lines, venue: None 2025}
tables:
  - id: main
    third_party: true
    columns: ["1e-3", "1e-2"]
    rows:
      - {method: "A|B", ours: true, cells: [1.5, null], std: [0.5, null]}
      - {method: plain, ours: false, cells: [2, 3], std: null}
    setting: 3 seeds
    source: a report
  - id: figure
    confidence: secondary
    tolerance: 0.5
    columns: [x]
    rows: [{method: plain, ours: true, cells: [7], std: null, source: another report}]
"""


@pytest.fixture
def toy_tables(toy):
    (toy / "projects" / "toy" / "tables.yaml").write_text(TABLES)
    return toy


def test_published_figures(toy_tables, tmp_path):
    rows = {"a": Entry("a", published="A|B"), "p": Entry("p", published="plain"), "q": Entry("q")}
    columns = {"s": Entry("s", published="1e-3"), "f": Entry("f", published="1e-2")}
    results = synthetic_results(
        tmp_path / "s", {("a", "s"): {0: 1.0}}, rows=rows, columns=columns, published="main"
    )
    found = results.published("a", "s")
    assert (found.value, found.std, found.tolerance) == (1.5, 0.5, None)
    assert found.provenance == "third-party re-evaluation, a report (3 seeds)"
    assert results.published("a", "f").value is None
    assert results.published("p", "f").value == 3.0
    assert results.published("p", "f").std is None
    assert results.published("q", "f") is None  # the recipe names no published row


def test_published_names_are_checked(toy_tables):
    with pytest.raises(UserError, match=r"no table 'mian'.*Did you mean 'main'"):
        published.find_cell("toy", "mian", "plain", "1e-3")
    with pytest.raises(UserError, match=r"no row 'plian'.*Did you mean 'plain'"):
        published.find_cell("toy", "main", "plian", "1e-3")
    with pytest.raises(UserError, match="no column '1e-4'"):
        published.find_cell("toy", "main", "plain", "1e-4")
    assert published.find_cell("toy", None, "plain", "1e-3") is None
    second = published.find_cell("toy", "figure", "plain", "x")
    assert second.tolerance == 0.5
    assert second.provenance == "the paper's table (secondary source), another report"


def test_counting_and_absence(toy_tables):
    assert published.count_figures(published.find_table("toy", "main")) == 3
    assert published.read_tables("absent") == {"paper": {}, "tables": []}
    (toy_tables / "projects" / "toy" / "tables.yaml").write_text("- a list")
    with pytest.raises(UserError, match="expected a mapping"):
        published.read_tables("toy")
