import json
import re

import pytest

from shared import paths
from shared.reproduction import record as records
from shared.reproduction import status
from shared.reproduction.plan import make_plan
from shared.reproduction.recipe import load_recipe
from shared.reproduction.report.overview import overview_html
from shared.reproduction.results import Results
from shared.reproduction.store import RunStore

TABLES = """
paper: {slug: toy, title: Toy lines, venue: Venue 2025}
tables:
  - id: main
    columns: [slow, fast]
    rows: [{method: w, ours: true, cells: [6.0, null], std: [0.5, null]}]
    source: page 5
  - id: other
    third_party: true
    about: "Another table"
    columns: [x]
    rows: [{method: w, ours: true, cells: [6.0], std: null}]
    source: a report
"""


@pytest.fixture
def house(toy, monkeypatch):
    """The toy repository with published figures that its paper profile refers to."""
    monkeypatch.setattr(paths, "DOCS_RESULTS", toy / "docs" / "results")
    status._source.cache_clear()
    (toy / "projects" / "toy" / "tables.yaml").write_text(TABLES)
    recipe = toy / "configs" / "toy" / "main.yaml"
    text = recipe.read_text().replace('label: "y = w x",', 'label: "y = w x", published: w,')
    text = text.replace("label: slow,", "label: slow, published: slow,")
    text = text.replace("label: fast,", "label: fast, published: fast,")
    recipe.write_text(text.replace("config: {steps: 12}", "published: main, config: {steps: 12}"))
    yield toy
    status._source.cache_clear()


def measure(profile, seeds=None):
    """Commit a record of made-up figures: the fast rate always has the smaller error."""
    plan = make_plan(load_recipe("toy"), profile, seeds)
    store = RunStore(paths.ROOT / "runs")
    for spec in plan.runs:
        store.begin(spec)
        error = 6.0 + 0.1 * spec.seed if spec.column == "slow" else 1.0 + 0.05 * spec.seed
        store.end(spec, "finished", {"test/error": error})
    command = status.command("toy", "main", profile)
    record = records.build_record(Results(plan, store), command, 0.0, 86400.0)
    records.write_record(record, records.committed_path("toy", "main", profile))
    return record


def test_nothing_measured(house):
    main, other = status.collect()
    assert (main.table, main.recipe, main.default, main.profiles) == ("main", True, True, ["laptop", "paper"])
    assert (main.published, main.figures, main.third_party) == (["main"], 1, False)
    assert main.laptop is None and main.paper_profile is None
    assert (other.table, other.title, other.recipe, other.figures) == ("other", "Another table", False, 1)
    assert other.third_party


def test_verdicts_of_the_last_records(house):
    measure("laptop")
    measure("paper")
    main = status.collect(["toy"])[0]
    assert main.laptop.claims == {"faster": "holds", "slower": "fails"}
    assert (main.laptop.cells, main.laptop.summary) == ({}, "1 holds, 1 fails")
    assert main.laptop.stale is None
    assert main.laptop.measured == "1970-01-02"
    assert main.laptop.command == "python scripts/reproduce.py toy main --profile laptop"
    assert main.paper_profile.cells == {"match": 1, "not available": 3}
    assert main.paper_profile.summary == "1 holds, 1 fails; cells: 1 match, 3 not available"
    assert (
        json.loads(json.dumps(status.to_json([main])))["tables"][0]["laptop"]["claims"]["slower"] == "fails"
    )


def test_a_change_of_code_makes_stale_and_a_comment_does_not(house):
    measure("laptop")
    module = house / "projects" / "toy" / "module.py"
    module.write_text("# a remark\n" + module.read_text())
    assert status.collect()[0].laptop.stale is None
    status._source.cache_clear()
    assert status.collect()[0].laptop.stale is None
    module.write_text(module.read_text() + "\nFRESH = 1\n")
    status._source.cache_clear()
    assert status.collect()[0].laptop.stale == "the code has changed"


def test_a_change_of_recipe_makes_stale(house):
    measure("laptop", seeds=2)  # another number of seeds is no change
    recipe = house / "configs" / "toy" / "main.yaml"
    text = recipe.read_text()
    assert status.collect()[0].laptop.stale is None
    recipe.write_text(text.replace("lr: 0.1}", "lr: 0.2}"))
    assert status.collect()[0].laptop.stale == "the configuration has changed"
    recipe.write_text(text.replace("id: slower", "id: slowest"))
    assert status.collect()[0].laptop.stale == "the claims have changed"
    recipe.write_text(text)
    record = records.read_record(records.committed_path("toy", "main", "laptop"))
    record["runs"][0]["status"] = "stale"
    records.write_record(record, records.committed_path("toy", "main", "laptop"))
    assert status.collect()[0].laptop.stale == "some of its runs were computed with earlier code"


def test_the_page_shows_every_cell_and_command(house):
    measure("laptop")
    module = house / "projects" / "toy" / "module.py"
    module.write_text(module.read_text() + "\nFRESH = 1\n")
    text = overview_html(status.collect())
    words = " ".join(re.sub(r"<[^>]+>", " ", text[text.index("<body>") :]).split())
    for expected in (
        *(
            "Toy lines · Venue 2025",
            "y = w x",
            "y = w x + b",
            "6.10 ± 0.10",
            "1.050 ± 0.050",
            "holds",
            "fails",
        ),
        *("not measured yet", "6 ± 0.5", "not available", "page 5", "Stale: the code has changed"),
        *(f"python scripts/reproduce.py toy main --profile {name}" for name in ("laptop", "paper")),
    ):
        assert expected in words, expected
    outside = re.findall(r"(?:src|href)=\"(?!#|data:)[^\"]*", text)
    assert outside == []


def test_no_papers(house, monkeypatch):
    monkeypatch.setattr(paths, "PROJECTS", house / "nowhere")
    assert status.collect() == []
    assert "What is reproduced here" in overview_html([])
