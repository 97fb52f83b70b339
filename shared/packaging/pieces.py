"""Which files belong to one paper: its sources, the data beside them, the tests that fit, its README."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from pathlib import Path

from shared import paths
from shared.reproduction.source import import_closure, imports, reach

IN_REPOSITORY = re.compile(
    r"(?:projects|shared|configs|docs|scripts|tests)(?:/[\w.-]+)+|[\w-]+\.(?:py|sh|md)"
)
RESULTS = re.compile(r"<!-- results: .*?<!-- /results -->", re.DOTALL)
LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!\w+:|#)([^)#\s]+)(#[^)\s]*)?\)")


def closure(files: Iterable[Path], roots: Iterable[str] = ()) -> list[Path]:
    """All files of `shared` and `projects` that `files` and the modules `roots` reach by import, sorted."""
    return sorted({*reach(_imported(files)).values(), *import_closure(list(roots))})


def _imported(files: Iterable[Path]) -> set[str]:
    return {name for file in files for name in imports(_module_name(file), file)}


def _module_name(file: Path) -> str:
    parts = file.relative_to(paths.ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def data_files(sources: Iterable[Path]) -> list[Path]:
    """What is not Python in the folders of the `shared` modules among `sources` (YAML, style sheets, ...)."""
    shared = paths.ROOT / "shared"
    folders = {file.parent for file in sources if shared in file.parents}
    return sorted(
        path
        for folder in folders
        for path in folder.iterdir()
        if path.is_file() and path.suffix not in (".py", ".pyc") and not path.name.startswith(".")
    )


def fitting(files: Iterable[Path], sources: Iterable[Path]) -> list[Path]:
    """Those of `files` that import nothing of `shared` and `projects` beyond `sources`."""
    have = set(sources)
    return [file for file in files if have.issuperset(closure([file]))]


def tests_for(paper: str, sources: list[Path], made: Path) -> list[Path]:
    """Files below `tests/` that can do their work where only `sources` and the files in `made` exist.

    All of the paper's own; of the others those whose imports lie within `sources`, who import only test
    modules that come along, and who name no file of this repository that does not.
    """
    root = paths.ROOT
    folder = root / "tests"
    own = folder / "projects" / paper
    everything = {
        path: path.relative_to(folder)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".pyc"
    }
    candidates = {
        path
        for path, name in everything.items()
        if own in path.parents or name.parts[0] != "projects" or len(name.parts) == 2
    }
    scripts = {path for path in candidates if path.suffix == ".py"}
    keep = {path for path in scripts if own in path.parents} | set(
        fitting((path for path in scripts if own not in path.parents), sources)
    )
    while True:
        coming = {*keep, *(candidates - scripts)}
        lost = {path for path in keep if own not in path.parents and _misses(path, coming, made)}
        if not lost:
            return sorted(coming)
        keep -= lost


def _misses(test: Path, coming: set[Path], made: Path) -> bool:
    """Whether `test` imports a test module or names a file that exists here and does not come along."""
    root = paths.ROOT
    tree = ast.parse(test.read_bytes(), filename=str(test))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "tests":
            base = root.joinpath(*node.module.split("."))
            named = [base.with_suffix(".py"), *(base / f"{alias.name}.py" for alias in node.names)]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            if not IN_REPOSITORY.fullmatch(node.value):
                continue
            named = [root / node.value, root / "scripts" / node.value, root / "docs" / node.value]
        else:
            continue
        for path in named:
            if path.is_file() and path not in coming and not (made / path.relative_to(root)).exists():
                return True
    return False


def readme(paper: str, made: Path) -> tuple[str, list[Path]]:
    """The clone's README, from the project's, and the files of `docs/` that it links to.

    Measured figures stay in the project's README alone, where they are generated and checked. Relative links
    are turned to the new place; a link to what does not come along keeps its words only.
    """
    root = paths.ROOT
    home = root / "projects" / paper
    text = (home / "README.md").read_text() if (home / "README.md").is_file() else f"# {paper}\n"
    linked: list[Path] = []

    def move(match: re.Match[str]) -> str:
        bang, words, target, anchor = match.groups(default="")
        path = Path(_normal(home / target))
        inside = path.is_relative_to(root)
        if inside and path.is_file() and path.suffix == ".md" and path.is_relative_to(root / "docs"):
            linked.append(path)
        elif not inside or not (made / path.relative_to(root)).exists():
            return words
        return f"{bang}[{words}]({path.relative_to(root)}{anchor})"

    title, _, rest = text.partition("\n")
    commands = (
        "\nA standalone copy of one project of paperworks ([where it comes from](CLONED_FROM.md)).\n"
        "Two commands, each doing its own set-up on a machine with Python 3.11 or newer:\n\n```bash\n"
        f"bash scripts/reproduce.sh {paper}   # environment, data, the default table, verdicts, a report\n"
        "bash scripts/test.sh   # the tests; further arguments go to pytest\n```\n"
    )
    rest = RESULTS.sub(f"The figures: [projects/{paper}/README.md](README.md).", rest)
    return title + "\n" + commands + LINK.sub(move, rest), linked


def _normal(path: Path) -> str:
    parts: list[str] = []
    for part in path.parts:
        if part == "..":
            parts.pop()
        else:
            parts.append(part)
    return str(Path(*parts))
