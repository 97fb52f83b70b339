"""The import closure and the hash of what a run imports."""

from __future__ import annotations

import ast
import shutil
from pathlib import Path

import pytest

from shared.reproduction.source import _canonical, import_closure, source_hash


@pytest.fixture
def tree(toy: Path) -> Path:
    """A `shared` of a few small modules, which import each other in every way there is."""
    shutil.rmtree(toy / "shared")
    files = {
        "shared/__init__.py": "",
        "shared/training/__init__.py": "",
        "shared/training/experiment.py": "from . import config\n",
        "shared/training/config.py": "X = 1\n",
        "shared/near/__init__.py": "from .inner import Y\n",
        "shared/near/inner.py": "from ..far import Z\n",
        "shared/far.py": "Z = 1\n",
        "shared/lazy.py": "A = 1\n",
        "shared/named.py": "B = 1\n",
        "shared/unused.py": "C = 1\n",
        "shared/reproduction/__init__.py": "",
        "shared/reproduction/engine.py": "E = 1\n",
        "projects/toy/__init__.py": "def build(config):\n    import shared.lazy\n",
        "projects/toy/config.py": "from shared import near\n",
        "projects/toy/module.py": "NAME = 'shared.named:B'\n",
        "projects/toy/claims.py": "from shared.reproduction import engine\n",
        "projects/toy/parts/__init__.py": "",
        "projects/toy/parts/deep.py": "D = 1\n",
    }
    for name, text in files.items():
        (toy / name).parent.mkdir(parents=True, exist_ok=True)
        (toy / name).write_text(text)
    return toy


def closure(tree: Path, *roots: str) -> set[str]:
    return {str(path.relative_to(tree)) for path in import_closure(list(roots))}


def test_closure_follows_every_kind_of_import(tree: Path) -> None:
    reached = closure(tree, "projects.toy")
    assert {"shared/near/__init__.py", "shared/near/inner.py", "shared/far.py"} <= reached  # relative imports
    assert "shared/lazy.py" in reached  # inside a function
    assert "shared/named.py" in reached  # in a string
    assert {"shared/reproduction/engine.py", "projects/toy/parts/deep.py", "projects/__init__.py"} <= reached
    assert "shared/unused.py" not in reached
    assert closure(tree, "shared.far") == {"shared/__init__.py", "shared/far.py"}
    assert "projects/toy/claims.py" in closure(tree, "projects.toy.claims:gain")
    with pytest.raises(ModuleNotFoundError, match=r"shared\.absent"):
        import_closure(["shared.absent"])


@pytest.mark.parametrize(
    ("name", "text", "counts"),
    [
        ("shared/far.py", '"""Said."""\n\n# and more\nZ   =  1\n', False),
        ("shared/unused.py", "C = 2\n", False),
        ("shared/reproduction/engine.py", "E = 2\n", False),
        ("projects/toy/claims.py", "F = 1\n", False),
        ("shared/far.py", "Z = 2\n", True),
        ("shared/lazy.py", "A = 2\n", True),
        ("shared/named.py", "B = 2\n", True),
        ("shared/training/config.py", "X = 2\n", True),
        ("projects/toy/parts/deep.py", "D = 2\n", True),
        ("projects/toy/parts/more.py", "D = 3\n", True),
    ],
)
def test_hash_covers_what_a_run_imports(tree: Path, name: str, text: str, counts: bool) -> None:
    before = source_hash("toy")
    (tree / name).write_text(text)
    assert (source_hash("toy") != before) is counts


def test_canonical_text_is_fixed() -> None:
    """The hash is stored with results, so this text may not depend on the version of Python."""
    code = 'def f(a, *b, c=None):\n    "doc"\n    return {**a, 1: f"{b}x"} if c is None else -a.z[0]\n'
    again = '# note\ndef f(a, *b, c=None):\n    return ({**a, 1: f"{b}x"}\n    if c is None else -a.z[0])\n'
    assert _canonical(ast.parse(code)) == _canonical(ast.parse(again))
    assert _canonical(ast.parse("x = f(1, 'a')")) == (
        "Module(body=[Assign(targets=[Name(id='x')],value=Call(func=Name(id='f'),args=[int:1,str:'a']))])"
    )


def test_hash_of_a_real_paper_stays_cheap_and_stable() -> None:
    from shared import paths

    for paper in paths.papers():
        assert source_hash(paper) == source_hash(paper)
        names = [path.relative_to(paths.ROOT).parts[:2] for path in import_closure([f"projects.{paper}"])]
        others = {parts[1] for parts in names if parts[0] == "projects"} - {paper, "__init__.py"}
        assert not others, f"{paper} imports {others}"
