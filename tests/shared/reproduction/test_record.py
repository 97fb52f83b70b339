import json
import math
import subprocess
import sys
import time

import pytest

from shared import paths
from shared.errors import UserError
from shared.reproduction import record as records
from shared.reproduction.recipe import Claim, Selector
from shared.reproduction.synthetic import synthetic_results

CLAIM = Claim("c", "b > a", "here", "difference", "> 0", Selector("b", "x"), Selector("a", "x"))
VALUES = {("a", "x"): {0: 1.0, 1: 2.0}, ("b", "x"): {0: 2.0, 1: 3.1}}


def test_the_record_has_exactly_the_promised_form(tmp_path):
    started = time.time() - 5
    results = synthetic_results(tmp_path, VALUES, claims=[CLAIM], missing={("b", "x", 2): "failed"}, unit="%")
    record = records.build_record(results, "python scripts/reproduce.py toy main", started, started + 5)
    assert tuple(record) == ("paper", "table", "profile", "environment", "cells", "claims", "runs")
    assert (record["paper"], record["table"], record["profile"]) == ("toy", "main", "laptop")
    cell_keys = ["row", "column", "mean", "std", "n", "unit", "published", "provenance", "verdict"]
    assert [list(cell) for cell in record["cells"]] == [cell_keys] * 2
    assert [list(claim) for claim in record["claims"]] == [
        ["id", "says", "estimate", "interval", "n", "verdict", "note"]
    ]
    run_keys = ["id", "row", "column", "seed", "status", "seconds", "reused"]
    assert [list(run) for run in record["runs"]] == [run_keys] * 6
    assert record["cells"][0] == {
        **dict.fromkeys(("published", "provenance", "verdict")),
        "row": "a",
        "column": "x",
        "mean": 1.5,
        "std": round(math.sqrt(0.5), 10),
        "n": 2,
        "unit": "%",
    }
    assert record["claims"][0]["verdict"] == "holds"
    assert {run["status"] for run in record["runs"]} == {"finished", "failed", "missing"}
    environment = record["environment"]
    assert environment["command"] == "python scripts/reproduce.py toy main"
    assert environment["seconds"] == 5.0
    assert environment["versions"]["torch"]
    assert {"python", "platform", "cpu", "cores", "device", "commit", "source", "started"} <= set(environment)


def test_runs_of_an_earlier_call_are_reused(tmp_path):
    results = synthetic_results(tmp_path, VALUES, missing={("a", "x", 2): "failed"})
    later = records.build_record(results, "again", time.time() + 1, time.time() + 2)
    reused = {(run["row"], run["seed"]): run["reused"] for run in later["runs"]}
    assert reused == {(row, seed): (row, seed) != ("a", 2) and seed != 2 for row in "ab" for seed in range(3)}


def test_what_is_not_finite_is_valid_json(tmp_path):
    values = {**VALUES, ("a", "x"): {0: math.nan, 1: 2.0}}
    record = records.build_record(synthetic_results(tmp_path, values, claims=[CLAIM]), "x", 0.0, 1.0)
    path = tmp_path / "deep" / "record.json"
    records.write_record(record, path)
    read = json.loads(path.read_text(), parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert (read["cells"][0]["mean"], read["cells"][0]["n"]) == (None, 2)
    assert read["claims"][0]["estimate"] is None
    assert records.read_record(path) == record


def test_stale_runs_are_marked_and_named_by_their_own_folder(tmp_path):
    results = synthetic_results(tmp_path, VALUES)
    spec = results.plan.runs[0]
    folder = results.store.folder(spec)
    folder.rename(folder.with_name(f"{spec.key}-ffffffff"))
    again = type(results)(results.plan, results.store)
    run = records.build_record(again, "x", 0.0, 1.0)["runs"][0]
    assert (run["status"], run["id"]) == ("stale", f"{spec.key}-ffffffff")
    assert again.per_seed(spec.row, spec.column)[spec.seed] == VALUES[spec.row, spec.column][spec.seed]


def test_cells_are_judged_against_published_figures_at_the_paper_profile(tmp_path, toy):
    from shared.reproduction.recipe import Entry

    (toy / "projects" / "toy" / "tables.yaml").write_text(
        "paper: {}\ntables:\n- {id: t, columns: [x, y], source: p. 5, rows: "
        "[{method: m, cells: [1.6, null], std: [0.1, null]}]}\n"
    )
    values = {("a", "x"): {0: 1.0, 1: 2.0}, ("a", "y"): {0: 1.0, 1: 2.0}}
    entries = {
        "rows": {"a": Entry("a", published="m")},
        "columns": {name: Entry(name, published=name) for name in "xy"},
    }
    for profile, verdicts in (("paper", ["match", "not available"]), ("laptop", [None, None])):
        results = synthetic_results(tmp_path / profile, values, profile=profile, published="t", **entries)
        cells = records.build_record(results, "x", 0.0, 1.0)["cells"]
        assert [cell["verdict"] for cell in cells] == verdicts
        assert [cell["published"] for cell in cells] == [1.6, None]
        assert cells[0]["provenance"] == "the paper's table, p. 5"


@pytest.mark.parametrize("content", ["", "[]", '{"paper": "toy"}', '{"paper": '])
def test_a_file_that_is_no_record_is_refused(tmp_path, content):
    path = tmp_path / "record.json"
    path.write_text(content)
    with pytest.raises(UserError, match="not a record of a table"):
        records.read_record(path)


def test_reading_results_needs_neither_torch_nor_pictures():
    code = (
        "import sys; sys.path.insert(0, '.')\n"
        "from shared.reproduction import readme, record, report, results, status, synthetic, verdicts\n"
        "print([m for m in ('torch', 'lightning', 'matplotlib', 'wandb', 'scipy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=paths.ROOT, capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr
