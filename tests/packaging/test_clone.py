"""A paper carried away works where it is put, and holds nothing it does not need."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from shared.errors import UserError
from shared.packaging import pieces
from shared.packaging.clone import clone
from tests.conftest import toy_environment

REPO = Path(__file__).parent.parent.parent
OWN_TEST = """from projects.toy import build
from projects.toy.config import Config
from shared.training.config import compose

def test_build():
    assert not build(compose(Config)).module.config.model.bias
"""
README = """# The toy

A line. See [the data](../../docs/real_data.md#toy), [the code](module.py),
[a page](https://example.org/x) and [another paper](../other/README.md).

<!-- results: laptop/main -->
1.234
<!-- /results -->
"""


@pytest.fixture
def house(toy: Path) -> Path:
    """The toy repository with a second paper, a subject that only it uses, and tests of everything."""
    for name in ("pyproject.toml", "constraints.txt", "LICENSE", ".gitignore", ".importlinter", ".ci"):
        (toy / name).symlink_to(REPO / name)
    (toy / "projects" / "other").mkdir()
    (toy / "projects" / "other" / "__init__.py").write_text("import shared.text.minilm\n")
    (toy / "projects" / "toy" / "README.md").write_text(README)
    (toy / "docs").mkdir()
    (toy / "docs" / "real_data.md").write_text("# Real data\n")
    for paper in ("toy", "other"):
        record = toy / "docs" / "results" / "laptop" / paper / "main.json"
        record.parent.mkdir(parents=True)
        record.write_text("{}")
    tests = toy / "tests"
    shutil.copytree(REPO / "tests" / "toy", tests / "toy")
    for name in ("conftest.py", "test_import_rules.py", "shared/training/test_config.py"):
        (tests / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(REPO / "tests" / name, tests / name)
    for name, text in {
        "projects/toy/test_toy.py": OWN_TEST,
        "projects/toy/embedded.txt": "",
        "projects/other/test_other.py": "",
        "shared/text/test_minilm.py": "import shared.text.minilm\n",
        "shared/test_helped.py": "from tests.shared import helper\n",
        "shared/helper.py": "def late():\n    from shared.packaging import clone\n",
        "scripts/test_clone_project.py": "SCRIPT = 'clone_project.py'\n",
        "test_docs.py": "PAGE = 'docs/real_data.md'\nLOST = 'projects/other/__init__.py'\n",
    }.items():
        (tests / name).parent.mkdir(parents=True, exist_ok=True)
        (tests / name).write_text(text)
    return toy


def run(root: Path, *command: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, *command], cwd=root, env=toy_environment(root), capture_output=True, text=True
    )


def test_the_clone_works_alone(house: Path, tmp_path: Path) -> None:
    made = tmp_path / "elsewhere" / "my idea"
    files = clone("toy", made)
    assert files == sorted(str(path.relative_to(made)) for path in made.rglob("*") if path.is_file())
    assert not [path for path in made.rglob("*") if path.is_symlink()]
    done = run(made, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests")
    assert done.returncode == 0, done.stdout + done.stderr
    done = run(made, "scripts/reproduce.py", "toy", "--seeds", "1", "--json", "record.json")
    assert done.returncode == 0, done.stdout + done.stderr
    record = json.loads((made / "record.json").read_text())
    assert {entry["status"] for entry in record["runs"]} == {"finished"}


def test_only_what_the_paper_needs_comes_along(house: Path, tmp_path: Path) -> None:
    files = set(clone("toy", tmp_path / "clone"))
    wanted = {
        "projects/toy/module.py",
        "configs/base.yaml",
        "configs/toy/main.yaml",
        "shared/training/experiment.py",
        "shared/reproduction/report/style.css",
        "shared/packaging/environment.py",
        "scripts/reproduce.sh",
        "scripts/setup.sh",
        "scripts/test.sh",
        "scripts/evaluate.py",
        "scripts/benchmarks/overhead.py",
        "scripts/benchmarks/gpu_checks/house.py",
        ".ci/run",
        ".gitignore",
        "LICENSE",
        "constraints.txt",
        "docs/results/laptop/toy/main.json",
        "docs/real_data.md",
        "tests/conftest.py",
        "tests/projects/toy/test_toy.py",
        "tests/projects/toy/embedded.txt",
        "tests/shared/training/test_config.py",
    }
    assert wanted <= files
    strangers = (
        "other",
        "shared/text",
        "clone",
        "scaffold",
        "templates",
        "helper",
        "test_helped",
        "test_docs",
    )
    assert [name for name in files if any(stranger in name for stranger in strangers)] == []


def test_dependencies_are_trimmed(house: Path, tmp_path: Path) -> None:
    made = tmp_path / "clone"
    clone("toy", made)
    extras = tomllib.loads((made / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(extras) == {"slurm", "test", "all"}
    pip = yaml.safe_load((made / "environment.yml").read_text())["dependencies"][-1]["pip"]
    assert any(entry.startswith("torch==") for entry in pip)
    assert not any(entry.startswith("peft") for entry in pip)


def test_a_federated_paper_keeps_the_extras_of_federations(house: Path, tmp_path: Path) -> None:
    (house / "projects" / "other" / "__init__.py").write_text("import shared.federated.module\n")
    made = tmp_path / "clone"
    clone("other", made)
    extras = tomllib.loads((made / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(extras) == {"federated", "flower", "slurm", "test", "all"}
    assert (made / "scripts" / "flower_app.py").is_file()


def test_the_readme_has_the_commands_and_no_dead_link(house: Path, tmp_path: Path) -> None:
    made = tmp_path / "clone"
    clone("toy", made)
    text = (made / "README.md").read_text()
    assert text.startswith("# The toy\n")
    assert "bash scripts/reproduce.sh toy" in text and "bash scripts/test.sh" in text
    assert "[the data](docs/real_data.md#toy)" in text
    assert "[the code](projects/toy/module.py)" in text
    assert "[a page](https://example.org/x)" in text
    assert "another paper" in text and "other/README.md" not in text
    assert "1.234" not in text and "<!--" not in text
    for match in pieces.LINK.finditer(text):
        assert (made / match[3]).exists(), match[0]
    assert "1.234" in (made / "projects" / "toy" / "README.md").read_text()
    assert "not a git repository" in (made / "CLONED_FROM.md").read_text()


def test_the_commit_is_noted(house: Path, tmp_path: Path) -> None:
    git = ["git", "-C", str(house), "-c", "user.name=a", "-c", "user.email=a@example.org"]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "add", "configs"], check=True)
    subprocess.run([*git, "commit", "-q", "-m", "one"], check=True)
    commit = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True).stdout.strip()
    clone("toy", tmp_path / "clean")
    note = (tmp_path / "clean" / "CLONED_FROM.md").read_text()
    assert commit in note and "dirty" not in note
    with (house / "configs" / "base.yaml").open("a") as file:
        file.write("# changed\n")
    clone("toy", tmp_path / "dirty")
    assert "(dirty)" in (tmp_path / "dirty" / "CLONED_FROM.md").read_text()


def test_mistakes_leave_nothing_behind(house: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = tmp_path / "full"
    full.mkdir()
    (full / "kept.txt").write_text("mine")
    with pytest.raises(UserError, match="is not empty"):
        clone("toy", full)
    assert [path.name for path in full.iterdir()] == ["kept.txt"]
    with pytest.raises(UserError, match="Did you mean 'toy'"):
        clone("tyo", tmp_path / "clone")
    with pytest.raises(UserError, match="outside this repository"):
        clone("toy", house / "inner")
    with pytest.raises(UserError, match="is not empty"):
        clone("toy", full / "kept.txt")

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("shared.packaging.clone.render_environment", fail)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(UserError, match="No space left on device"):
        clone("toy", tmp_path / "clone")
    assert sorted(tmp_path.iterdir()) == before


def test_an_empty_folder_is_taken(house: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert clone("toy", tmp_path / "empty")
    assert (tmp_path / "empty" / "README.md").is_file()


@pytest.mark.slow
@pytest.mark.skipif(not (REPO / "projects" / "nonzero_lora").is_dir(), reason="another paper's clone")
def test_nonzero_lora_passes_its_tests_elsewhere(tmp_path: Path) -> None:
    made = tmp_path / "clone"
    clone("nonzero_lora", made)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow"],
        cwd=made,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    assert list((made / "tests" / "projects" / "nonzero_lora").glob("test_*.py"))
