import pytest

from shared import paths
from shared.errors import UserError
from shared.reproduction import readme, status
from shared.reproduction import record as records
from shared.reproduction.plan import make_plan
from shared.reproduction.recipe import load_recipe
from shared.reproduction.results import Results
from shared.reproduction.store import RunStore

BLOCK = "# Toy\n\nbefore\n\n<!-- results: laptop/main -->\n<!-- /results -->\n\nafter\n"


@pytest.fixture
def house(toy, monkeypatch):
    monkeypatch.setattr(paths, "DOCS_RESULTS", toy / "docs" / "results")
    status._source.cache_clear()
    (toy / "projects" / "toy" / "README.md").write_text(BLOCK)
    (toy / "README.md").write_text("# House\n\n<!-- papers -->\n<!-- /papers -->\n\nend\n")
    yield toy
    status._source.cache_clear()


def commit(error):
    plan = make_plan(load_recipe("toy"), "laptop")
    store = RunStore(paths.ROOT / f"runs-{error}")
    for spec in plan.runs:
        store.begin(spec)
        slower = error if spec.column == "slow" else 0.0
        store.end(spec, "finished", {"test/error": 1.0 + slower + 0.1 * spec.seed})
    record = records.build_record(Results(plan, store), "the command", 0.0, 60.0)
    records.write_record(record, records.committed_path("toy", "main", "laptop"))


def test_the_readmes_of_this_repository_agree_with_its_records():
    assert readme.check_readmes() == []


def test_blocks_follow_the_record(house):
    top, own = house / "README.md", house / "projects" / "toy" / "README.md"
    assert len(readme.check_readmes()) == 2  # empty blocks say nothing yet
    assert readme.write_readmes() == [top, own]
    assert "Not measured yet: `python scripts/reproduce.py toy main --profile laptop`" in own.read_text()
    assert "not measured yet | `bash scripts/reproduce.sh toy` |" in top.read_text()
    commit(error=5.0)
    assert len(readme.check_readmes()) == 2
    readme.write_readmes()
    text = own.read_text()
    assert text.startswith("# Toy\n\nbefore\n\n<!-- results: laptop/main -->\n")
    assert text.endswith("<!-- /results -->\n\nafter\n")
    assert "| y = w x | 6.10 ± 0.10 | 1.10 ± 0.10 |" in text
    assert "| the faster rate ends with the smaller error | 5 [5, 5]" in text
    assert "Again: `the command`" in text
    assert "| 1 holds, 1 fails |" in top.read_text()
    assert "| one weight, two rates |" in top.read_text()
    assert readme.check_readmes() == []
    assert readme.write_readmes() == []


def test_an_edited_figure_is_found(house):
    commit(error=5.0)
    readme.write_readmes()
    own = house / "projects" / "toy" / "README.md"
    own.write_text(own.read_text().replace("6.10 ± 0.10", "5.10 ± 0.10"))
    (problem,) = readme.check_readmes()
    assert problem.startswith("projects/toy/README.md disagrees with docs/results")
    assert "--write-readmes" in problem
    readme.write_readmes()
    commit(error=7.0)  # the record moves, the README does not
    assert any("projects/toy/README.md" in problem for problem in readme.check_readmes())


def test_the_title_and_claim_of_the_paper_are_used(house):
    (house / "projects" / "toy" / "tables.yaml").write_text(
        "paper: {title: 'Lines | and points', venue: V 2025, claim: 'one | claim'}\ntables: []\n"
    )
    readme.write_readmes()
    line = next(line for line in (house / "README.md").read_text().splitlines() if "Lines" in line)
    assert line.startswith("| [Lines \\| and points](projects/toy/README.md) | V 2025 | one \\| claim |")


@pytest.mark.parametrize(
    "content",
    [
        "<!-- results: laptop/main -->\nfigures\n",
        "figures\n<!-- /results -->\n",
        "<!-- results: laptop -->\nfigures\n<!-- /results -->\n",
        "<!-- papers -->\nx\n<!-- /results -->\n",
        "<!-- results: laptop/main -->\n<!-- results: laptop/main -->\n<!-- /results -->\n",
    ],
)
def test_broken_marks_are_named(house, content):
    (house / "projects" / "toy" / "README.md").write_text(content)
    with pytest.raises(UserError, match=r"projects/toy/README.md: expected blocks"):
        readme.check_readmes()


def test_unknown_tables_and_profiles_are_named(house):
    own = house / "projects" / "toy" / "README.md"
    own.write_text(BLOCK.replace("laptop/main", "laptop/mian"))
    with pytest.raises(UserError, match="Did you mean 'main'"):
        readme.check_readmes()
    own.write_text(BLOCK.replace("laptop/main", "labtop/main"))
    with pytest.raises(UserError, match="Did you mean 'laptop'"):
        readme.check_readmes()
