"""`environment.yml` from `pyproject.toml` and `constraints.txt`: conda and pip install one pinned set.

`python -m shared.packaging.environment --write` renews the file after either source changed.
"""

from __future__ import annotations

import argparse
import json
import re
import tomllib
from collections.abc import Iterable
from pathlib import Path

from shared.errors import UserError, fail_cleanly
from shared.paths import ROOT

HEAD = """\
# Generated from pyproject.toml and constraints.txt: python -m shared.packaging.environment --write
# conda env create -f environment.yml && conda activate paperworks
name: paperworks
channels:
  - conda-forge
dependencies:
  - python=3.11
  - pip
  - pip:
      - -c constraints.txt
      - -e .
"""


def canonical(name: str) -> str:
    """The one spelling of a distribution's or an extra's name: lower case, single dashes."""
    return re.sub(r"[-_.]+", "-", name).lower()


def requirement_name(requirement: str) -> str:
    """`"Import_Linter>=2.3; python_version>'3'"` -> `"import-linter"`."""
    match = re.match(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)", requirement)
    if not match:
        raise UserError(f"expected a requirement like 'name>=1.0', found {requirement!r}")
    return canonical(match.group(1))


def direct_dependencies(pyproject: dict) -> list[str]:
    """Sorted canonical names of the dependencies of the core and of every extra, self-references left out."""
    project = pyproject["project"]
    lists = [project["dependencies"], *project.get("optional-dependencies", {}).values()]
    own = canonical(project["name"])
    return sorted({requirement_name(entry) for entries in lists for entry in entries} - {own})


def read_pins(constraints: str) -> dict[str, str]:
    """The `name==version` lines of a constraints file, names canonical; anything else is an error."""
    pins = {}
    for line in constraints.splitlines():
        entry = line.split("#")[0].strip()
        if not entry:
            continue
        name, separator, version = entry.partition("==")
        if not separator:
            raise UserError(f"constraints.txt: expected 'name==version', found {entry!r}")
        pins[canonical(name)] = version.strip()
    return pins


def environment_text(pyproject: dict, pins: dict[str, str]) -> str:
    """The text of `environment.yml`: every direct dependency at its pinned version."""
    names = direct_dependencies(pyproject)
    unpinned = [name for name in names if name not in pins]
    if unpinned:
        raise UserError(
            f"constraints.txt pins no version of {', '.join(unpinned)}: add a line 'name==version' for each"
        )
    return HEAD + "".join(f"      - {name}=={pins[name]}\n" for name in names)


def render_environment(root: Path) -> str:
    """`environment_text` for the repository at `root`."""
    pyproject = tomllib.loads((root / "pyproject.toml").read_text())
    return environment_text(pyproject, read_pins((root / "constraints.txt").read_text()))


def keep_extras(pyproject_text: str, keep: Iterable[str]) -> str:
    """`pyproject.toml` with only the extras named in `keep`, and an `all` that joins them.

    A name in `keep` that has no extra is passed over: a paper may need nothing beyond the core. Extras that a
    kept one names ("paperworks[federated]") are kept too.
    """
    project = tomllib.loads(pyproject_text)["project"]
    extras = project.get("optional-dependencies", {})
    kept = {canonical(name) for name in keep}
    own = re.compile(rf"{re.escape(project['name'])}\[([^\]]+)\]")
    for _ in extras:  # as often as one can name another
        for name in kept & set(extras):
            for match in filter(None, map(own.fullmatch, extras[name])):
                kept = kept | {canonical(other) for other in match[1].split(",")}
    wanted = [name for name in extras if name in kept and name != "all"]
    lines = ["[project.optional-dependencies]"]
    for name in wanted:
        entries = "".join(f"    {json.dumps(entry)},\n" for entry in extras[name])
        lines.append(f"{name} = [\n{entries}]")
    lines.append(f'all = [\n    "{project["name"]}[{",".join(wanted)}]",\n]')
    section = re.compile(
        r"^\[project\.optional-dependencies\]\n.*?(?=^\[(?!\s)|\Z)", re.MULTILINE | re.DOTALL
    )
    return section.sub(lambda _: "\n".join(lines) + "\n\n", pyproject_text, count=1)


def main() -> int:
    parser = argparse.ArgumentParser(description="Print environment.yml as it should be, or write it.")
    parser.add_argument("--write", action="store_true", help="write the file instead of printing it")
    options = parser.parse_args()
    text = render_environment(ROOT)
    if options.write:
        (ROOT / "environment.yml").write_text(text)
    else:
        print(text, end="")
    return 0


if __name__ == "__main__":
    raise SystemExit(fail_cleanly(main))
