"""The start of a new paper: a small project that trains, its table and its tests, from `templates/`."""

from __future__ import annotations

import keyword
import re
import sys
import tomllib
from pathlib import Path
from string import Template

from shared import paths
from shared.errors import UserError
from shared.packaging.environment import canonical, direct_dependencies
from shared.reproduction.readme import results_block

TEMPLATES = Path(__file__).parent / "templates"
FILES = {  # template -> place; the README comes last because it quotes the recipe
    "init.py": "projects/{name}/__init__.py",
    "config.py": "projects/{name}/config.py",
    "module.py": "projects/{name}/module.py",
    "data.py": "projects/{name}/data.py",
    "tables.yaml": "projects/{name}/tables.yaml",
    "main.yaml": "configs/{name}/main.yaml",
    "test.py": "tests/projects/{name}/test_{name}.py",
    "README.md": "projects/{name}/README.md",
}


def scaffold(name: str) -> list[Path]:
    """Write the files of a new paper called `name`; return them.

    Raises:
        UserError: a name that is no plain identifier, is taken or would hide something; nothing is written.
    """
    check_name(name)
    written = []
    for template, place in FILES.items():
        path = paths.ROOT / place.format(name=name)
        path.parent.mkdir(parents=True, exist_ok=True)
        results = results_block(name, "laptop", "main") if template == "README.md" else ""
        text = Template((TEMPLATES / f"{template}.template").read_text())
        path.write_text(
            text.substitute(name=name, title=name.replace("_", " ").capitalize(), results=results)
        )
        written.append(path)
    return written


def check_name(name: str) -> None:
    """Raise a `UserError` when `name` cannot become a paper here."""
    if not re.fullmatch(r"[a-z][a-z0-9_]*[a-z0-9]", name) or "__" in name or keyword.iskeyword(name):
        raise UserError(
            "expected a name of lower case letters, digits and single underscores, such as my_paper; "
            f"found '{name}'."
        )
    pyproject = tomllib.loads((paths.ROOT / "pyproject.toml").read_text())
    extras = pyproject["project"].get("optional-dependencies", {})
    folders = [
        folder
        for folder in ("projects", "configs", "tests/projects")
        if (paths.ROOT / folder / name).exists()
    ]
    if folders:
        raise UserError(f"'{name}' is taken: {folders[0]}/{name} exists already. Choose another name.")
    hidden = {"shared", "projects", "scripts", "tests", "core", *extras, *direct_dependencies(pyproject)}
    if canonical(name) in hidden or name in sys.stdlib_module_names:
        raise UserError(f"'{name}' is already the name of an extra or of a package. Choose another name.")


def checklist(name: str) -> str:
    """What turns the scaffold into a paper."""
    return (TEMPLATES / "checklist.md").read_text().replace("<paper>", name)
