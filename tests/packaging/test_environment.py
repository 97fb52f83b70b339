"""pyproject.toml, constraints.txt and environment.yml describe one set."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

from shared.errors import UserError
from shared.packaging.environment import (
    canonical,
    direct_dependencies,
    environment_text,
    keep_extras,
    read_pins,
    render_environment,
    requirement_name,
)

ROOT = Path(__file__).parent.parent.parent
TEXT = (ROOT / "pyproject.toml").read_text()
PROJECT = tomllib.loads(TEXT)
PINS = read_pins((ROOT / "constraints.txt").read_text())


def test_environment_installs_exactly_the_pinned_direct_dependencies() -> None:
    content = yaml.safe_load((ROOT / "environment.yml").read_text())
    assert set(content) == {"name", "channels", "dependencies"}
    *conda, pip = content["dependencies"]
    assert conda == ["python=3.11", "pip"]
    assert pip["pip"][:2] == ["-c constraints.txt", "-e ."]
    entries = dict(entry.split("==") for entry in pip["pip"][2:])
    project = PROJECT["project"]
    lists = [project["dependencies"], *project["optional-dependencies"].values()]
    wanted = {Requirement(entry).name for entries in lists for entry in entries} - {project["name"]}
    assert entries == {name: PINS[canonical(name)] for name in wanted}
    assert (ROOT / "environment.yml").read_text() == render_environment(ROOT)


def test_pins_satisfy_what_pyproject_asks_for() -> None:
    project = PROJECT["project"]
    for entries in (project["dependencies"], *project["optional-dependencies"].values()):
        for requirement in map(Requirement, entries):
            if requirement.name != project["name"]:
                assert requirement.specifier.contains(PINS[canonical(requirement.name)]), requirement


def test_constraints_leave_out_what_only_one_platform_has() -> None:
    assert not [name for name in PINS if name.startswith(("nvidia-", "cuda-", "triton"))]
    assert all("[" not in name and not version.startswith("=") for name, version in PINS.items())


def test_all_names_every_other_extra() -> None:
    extras = PROJECT["project"]["optional-dependencies"]
    (entry,) = extras["all"]
    assert Requirement(entry).extras == set(extras) - {"all"}
    assert all(name == canonical(name) for name in extras)


def test_every_extra_of_a_paper_is_called_like_a_paper() -> None:
    papers = {canonical(path.parent.name) for path in (ROOT / "projects").glob("*/__init__.py")}
    others = {"all", "federated", "flower", "slurm", "test"}
    assert set(PROJECT["project"]["optional-dependencies"]) - others <= papers


@pytest.mark.parametrize(
    ("entry", "name"),
    [("Import_Linter>=2.3", "import-linter"), (" a.b[x]==1; python_version>'3'", "a-b"), ("x", "x")],
)
def test_requirement_name(entry: str, name: str) -> None:
    assert requirement_name(entry) == name


def test_bad_files_are_named() -> None:
    with pytest.raises(UserError, match=r"expected 'name==version', found 'torch>=2'"):
        read_pins("numpy==2.0 # fine\n\ntorch>=2\n")
    with pytest.raises(UserError, match="pins no version of torch"):
        environment_text({"project": {"name": "x", "dependencies": ["torch>=2"]}}, {"numpy": "2"})


def test_keep_extras_leaves_the_rest_of_the_file_alone() -> None:
    text = keep_extras(TEXT, ["test", "no-such-paper"])
    kept = tomllib.loads(text)
    wanted = tomllib.loads(TEXT)
    name = wanted["project"]["name"]
    wanted["project"]["optional-dependencies"] = {
        "test": wanted["project"]["optional-dependencies"]["test"],
        "all": [f"{name}[test]"],
    }
    assert kept == wanted
    assert set(direct_dependencies(kept)) < set(direct_dependencies(PROJECT))
    assert keep_extras(text, ["test"]) == text


def test_an_extra_brings_those_it_names() -> None:
    text = """[project]
name = "x"
[project.optional-dependencies]
base = ["a>=1"]
middle = ["x[base]"]
other = ["c>=1"]
paper = ["x[middle]", "b>=1"]
"""
    extras = tomllib.loads(keep_extras(text, ["paper"]))["project"]["optional-dependencies"]
    assert extras.pop("all") == ["x[base,middle,paper]"]
    assert extras == {"base": ["a>=1"], "middle": ["x[base]"], "paper": ["x[middle]", "b>=1"]}
