"""Who may import whom, what is declared as a dependency, and how light a project's package is."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from shared.packaging.environment import canonical, requirement_name

ROOT = Path(__file__).parent.parent
LINT = "from importlinter.cli import lint_imports_command; lint_imports_command()"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS, CORE = PROJECT["optional-dependencies"], PROJECT["dependencies"]
PAPERS = sorted(path.parent.name for path in (ROOT / "projects").glob("*/__init__.py"))
PROVIDERS = packages_distributions()


def lint(root: Path) -> subprocess.CompletedProcess:
    command = [sys.executable, "-c", LINT, "--no-cache"]
    return subprocess.run(command, cwd=root, capture_output=True, text=True)


def test_imports_point_the_right_way() -> None:
    done = lint(ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("file", "line", "contract"),
    [
        ("projects/one/__init__.py", "import projects.two.module", "A project never imports another project"),
        ("shared/training/config.py", "import projects.one", "shared never imports projects"),
        (
            "shared/training/config.py",
            "def late():\n    import shared.reproduction.plan",
            "Inside shared, imports point down only",
        ),
        ("shared/newcomer/__init__.py", "", "Inside shared, imports point down only"),
    ],
)
def test_a_wrong_import_is_refused(tmp_path: Path, file: str, line: str, contract: str) -> None:
    (tmp_path / ".importlinter").write_text((ROOT / ".importlinter").read_text())
    for name in (
        "projects/__init__.py",
        "projects/one/__init__.py",
        "projects/two/__init__.py",
        "projects/two/module.py",
        "shared/__init__.py",
        "shared/errors.py",
        "shared/paths.py",
        "shared/training/__init__.py",
        "shared/training/config.py",
        "shared/reproduction/__init__.py",
        "shared/reproduction/plan.py",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert lint(tmp_path).returncode == 0
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text(f"{line}\n")
    done = lint(tmp_path)
    assert done.returncode == 1
    assert f"{contract} BROKEN" in done.stdout or "exhaustive" in done.stdout.lower(), done.stdout


def third_party(folder: Path) -> dict[str, list[str]]:
    """Third-party module -> files below `folder` that import it, be it inside a function."""
    found: dict[str, list[str]] = {}
    for path in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module or ""]
            else:
                continue
            for name in {name.split(".")[0] for name in names} - {"shared", "projects", "tests"}:
                if name not in sys.stdlib_module_names:
                    found.setdefault(name, []).append(str(path.relative_to(ROOT)))
    return found


def undeclared(folder: Path, declared: list[str]) -> dict[str, list[str]]:
    allowed = set(map(requirement_name, declared))
    return {
        name: files
        for name, files in third_party(folder).items()
        if not allowed & {canonical(provider) for provider in PROVIDERS.get(name, [name])}
    }


@pytest.mark.parametrize("paper", PAPERS)
def test_a_project_declares_what_it_imports(paper: str) -> None:
    declared = [*CORE, *EXTRAS.get(canonical(paper), [])]
    assert undeclared(ROOT / "projects" / paper, declared) == {}
    if (tests := ROOT / "tests" / "projects" / paper).is_dir():
        assert undeclared(tests, [*declared, *EXTRAS["test"]]) == {}


def test_the_house_stands_on_the_core_alone() -> None:
    for name in ("reproduction", "training", "data", "packaging"):
        assert undeclared(ROOT / "shared" / name, [*CORE, *EXTRAS["slurm"]]) == {}


def test_the_federated_loop_declares_what_it_imports() -> None:
    declared = [*CORE, *EXTRAS.get("federated", []), *EXTRAS.get("flower", [])]
    assert undeclared(ROOT / "shared" / "federated", declared) == {}


@pytest.mark.parametrize("paper", PAPERS)
def test_importing_a_project_loads_no_extra(paper: str) -> None:
    code = f"import sys, projects.{paper}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    loaded = {canonical(p) for name in done.stdout.split() for p in PROVIDERS.get(name.split(".")[0], ())}
    extras = {requirement_name(entry) for entries in EXTRAS.values() for entry in entries}
    extras -= {PROJECT["name"]}  # "all" names this package itself, which an editable install provides
    assert loaded & extras == set()
    assert "torch" not in loaded  # the package's door opens at once; build() imports what it needs
