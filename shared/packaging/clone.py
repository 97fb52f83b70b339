"""One paper as a repository of its own: what it needs is found by following imports; the rest stays."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path

from shared import paths
from shared.errors import UserError, suggest
from shared.packaging import pieces
from shared.packaging.environment import canonical, keep_extras, render_environment

SCRIPTS = ("reproduce.py", "train.py", "evaluate.py", "status.py", "download_data.py")
SHELL = ("setup.sh", "reproduce.sh", "test.sh")
AS_THEY_ARE = ("constraints.txt", "LICENSE", ".gitignore", ".importlinter", ".ci/run", "configs/base.yaml")
ALWAYS = ("shared.reproduction", "shared.packaging.environment")  # the engine whole: its tests come along
EXTRAS = {"federated": "shared/federated/", "flower": "shared/federated/engines/flower"}  # extra: whose code
LEFT_BEHIND = shutil.ignore_patterns("__pycache__", "*.pyc", ".DS_Store")


def clone(paper: str, destination: Path) -> list[str]:
    """Write a standalone repository of `paper` to `destination`; return its files, sorted, relative to it.

    Nothing appears at `destination` until everything is written.

    Raises:
        UserError: an unknown paper, a destination that is not empty, lies inside this repository or cannot
            be written.
    """
    _check(paper, destination)
    try:
        destination.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=destination.parent, prefix=f".{destination.name}-") as folder:
            made = Path(folder) / "clone"
            made.mkdir()
            _fill(made, paper)
            files = sorted(str(path.relative_to(made)) for path in made.rglob("*") if path.is_file())
            made.chmod(0o755)
            if destination.is_dir():
                destination.rmdir()  # it is empty; a rename onto it is refused on some systems
            made.rename(destination)
    except OSError as error:
        raise UserError(f"cannot write the clone to {destination}: {error}.") from None
    return files


def _check(paper: str, destination: Path) -> None:
    known = paths.papers()
    if paper not in known:
        raise UserError(
            f"no paper '{paper}' here.{suggest(paper, known)} Papers: {', '.join(known) or 'none'}."
        )
    target, root = destination.resolve(), paths.ROOT.resolve()
    if target == root or root in target.parents:
        raise UserError(f"expected a destination outside this repository, found {target}.")
    if destination.exists() and (not destination.is_dir() or any(destination.iterdir())):
        raise UserError(f"expected a new or empty folder, {destination} is not empty: nothing was written.")


def _fill(made: Path, paper: str) -> None:
    root = paths.ROOT
    package = root / "projects" / paper
    scripts = [file for name in SCRIPTS if (file := root / "scripts" / name).is_file()]
    tests = root / "tests" / "projects" / paper
    code = [*scripts, *package.rglob("*.py"), *tests.rglob("*.py")]
    sources = pieces.closure(code, [f"projects.{paper}", *ALWAYS])
    for file in sources:
        _copy(root, made, file)
    for folder in (f"projects/{paper}", f"configs/{paper}"):
        if (root / folder).is_dir():
            shutil.copytree(root / folder, made / folder, ignore=LEFT_BEHIND, dirs_exist_ok=True)
    for file in pieces.data_files(sources):
        _copy(root, made, file)
    for name in [*AS_THEY_ARE, *(f"scripts/{name}" for name in (*SCRIPTS, *SHELL))]:
        if (root / name).exists():
            _copy(root, made, root / name)
    for folder in (root / "docs" / "results").glob(f"*/{paper}"):
        shutil.copytree(folder, made / folder.relative_to(root), ignore=LEFT_BEHIND)
    for file in pieces.fitting(sorted((root / "scripts" / "benchmarks").rglob("*.py")), sources):
        _copy(root, made, file)
    pyproject = (root / "pyproject.toml").read_text()
    carried = [str(file.relative_to(root)) for file in sources]
    extras = [name for name, code in EXTRAS.items() if any(path.startswith(code) for path in carried)]
    (made / "pyproject.toml").write_text(keep_extras(pyproject, [canonical(paper), *extras, "slurm", "test"]))
    if "flower" in extras:
        _copy(root, made, root / "scripts" / "flower_app.py")
    (made / "environment.yml").write_text(render_environment(made))
    readme, linked = pieces.readme(paper, made)
    for file in linked:
        _copy(root, made, file)
    (made / "README.md").write_text(readme)
    (made / "CLONED_FROM.md").write_text(_origin(paper))
    for file in pieces.tests_for(paper, sources, made):
        _copy(root, made, file)


def _copy(root: Path, made: Path, file: Path) -> None:
    target = made / file.relative_to(root)
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(file, target)


def _origin(paper: str) -> str:
    commit = _git("rev-parse", "HEAD")
    if not commit:
        state = "a copy of paperworks that is not a git repository (the commit is unknown)."
    else:
        changed = _git("status", "--porcelain", "--untracked-files=no")
        state = f"paperworks at commit `{commit}`" + (
            ", with uncommitted changes (dirty)." if changed else "."
        )
    return (
        "# Where this repository comes from\n\n"
        f"The project `{paper}`, cloned by `scripts/clone_project.py` from\n{state}\n\n"
        "It holds the project, the modules of `shared` that it imports, its configurations, tests and\n"
        "measured results. It is independent from here on: change anything.\n"
    )


def _git(*arguments: str) -> str:
    """Output of git in this repository, empty when there is no git or no repository."""
    command = ["git", "-C", str(paths.ROOT), *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def next_steps(paper: str, destination: Path, files: Iterable[str]) -> str:
    """What a person does with the new repository."""
    count = len(list(files))
    return (
        f"{destination} holds {paper} and what it needs ({count} files). Next:\n"
        f"  cd {destination}\n"
        f"  bash scripts/reproduce.sh {paper}\n"
        "  bash scripts/test.sh\n"
        "  git init && git add -A && git commit -m 'Start from a clone'"
    )
