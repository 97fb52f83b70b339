"""Which source files a paper's run imports, and a hash of them that ignores comments, docstrings and layout.

Imports are read from the syntax tree, so nothing is executed; imports inside functions count, and so do
module names in strings (``"projects.x.claims:best"``), which is how recipes and lazy imports name code.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from shared import paths

PACKAGES = ("shared", "projects")
REFERENCE = re.compile(r"((?:shared|projects)(?:\.\w+)+)(?::\w+)?")
NOT_RUN = {"claims", "figures", "tests"}  # modules of a project that look at results and never make them
RUNNER = "shared.training.experiment"  # carries out every run


def module_path(name: str) -> Path | None:
    """File of the module or package `name`, or None when this repository has no such module."""
    base = paths.ROOT.joinpath(*name.split("."))
    if (base / "__init__.py").is_file():
        return base / "__init__.py"
    file = base.with_suffix(".py")
    return file if file.is_file() else None


def import_closure(roots: list[str]) -> list[Path]:
    """All files of `shared` and `projects` that the roots reach, the roots' own files included, sorted.

    Args:
        roots: modules (``shared.training.config``), packages, which stand for all their modules
            (``projects.toy``), or references as recipes write them (``projects.toy.claims:best``).

    Raises:
        ModuleNotFoundError: a root that does not exist.
    """
    names: list[str] = []
    for root in roots:
        name = root.partition(":")[0]
        path = module_path(name)
        if path is None:
            raise ModuleNotFoundError(f"no module {name!r} below {paths.ROOT}")
        names += [name, *(_submodules(name) if path.name == "__init__.py" else [])]
    return sorted(reach(names).values())


def source_hash(paper: str) -> str:
    """64 hex digits over all code that a run of `paper` imports; engine and evaluation code do not count."""
    package = f"projects.{paper}"
    skipped = {f"{package}.{name}" for name in NOT_RUN}
    names = [
        name
        for name in _submodules(package)
        if not any(f"{name}.".startswith(f"{skip}.") for skip in skipped)
    ]
    digest = hashlib.sha256()
    for name, path in sorted(reach([package, RUNNER, *names]).items()):
        if not f"{name}.".startswith("shared.reproduction."):
            digest.update(f"{name}\n{_canonical(ast.parse(path.read_bytes()))}\n".encode())
    return digest.hexdigest()


def _submodules(package: str) -> list[str]:
    folder = paths.ROOT.joinpath(*package.split("."))
    names = []
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder).with_suffix("").parts
        parts = parts[:-1] if parts[-1] == "__init__" else parts
        if parts:
            names.append(".".join([package, *parts]))
    return names


def reach(names: Iterable[str]) -> dict[str, Path]:
    """Name -> file of every module reached from `names`, parent packages included."""
    reached: dict[str, Path] = {}
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        path = module_path(name)
        if path is None or name in reached:
            continue
        reached[name] = path
        if parent := name.rpartition(".")[0]:
            waiting.append(parent)
        waiting += imports(name, path)
    return reached


def imports(name: str, path: Path) -> Iterator[str]:
    """Names that `path` may import; those that are not modules of this repository fall out later."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_bytes(), filename=str(path))):
        if isinstance(node, ast.Import):
            found = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, base]) if base else ".".join(above)
            found = [base, *(f"{base}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            match = REFERENCE.fullmatch(node.value)
            found = [match[1]] if match else []
        else:
            continue
        yield from (item for item in found if item.split(".")[0] in PACKAGES)


def _canonical(node: object) -> str:
    """Text of a syntax tree without docstrings, positions and empty fields; alike on all Python versions."""
    if isinstance(node, list):
        return f"[{','.join(map(_canonical, node))}]"
    if isinstance(node, ast.Constant):
        return f"{type(node.value).__name__}:{node.value!r}"
    if not isinstance(node, ast.AST):
        return repr(node)
    parts = []
    for name, value in ast.iter_fields(node):
        if name == "body" and isinstance(
            node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
        ):
            value = value[1:] if value and _is_docstring(value[0]) else value
        if value not in (None, []) and name not in ("ctx", "kind", "type_comment"):
            parts.append(f"{name}={_canonical(value)}")
    return f"{type(node).__name__}({','.join(parts)})"


def _is_docstring(node: ast.stmt) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )
