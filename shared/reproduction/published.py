"""The published figures of a paper: `projects/<paper>/tables.yaml`, each table with its source."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from shared import paths
from shared.errors import UserError, suggest


@dataclass(frozen=True)
class Published:
    """One cell of a published table; `value` is None where there is no figure that could be read."""

    value: float | None
    std: float | None
    tolerance: float | None  # of the table it stands in
    provenance: str


def read_tables(paper: str) -> dict[str, Any]:
    """`tables.yaml` of `paper`, as `{"paper": {...}, "tables": [...]}`; both empty where there is no file."""
    path = paths.PROJECTS / paper / "tables.yaml"
    if not path.is_file():
        return {"paper": {}, "tables": []}
    return _read(path, path.stat().st_mtime_ns)


@lru_cache(maxsize=64)
def _read(path: Path, _changed: int) -> dict[str, Any]:
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        content = yaml.load(path.read_text(), loader)
    except yaml.YAMLError as error:
        line = f", line {error.problem_mark.line + 1}" if getattr(error, "problem_mark", None) else ""
        problem = getattr(error, "problem", None) or str(error)
        raise UserError(f"{path.relative_to(paths.ROOT)}{line} is not readable as YAML: {problem}") from None
    if not isinstance(content, dict) or not isinstance(content.get("tables"), list):
        raise UserError(
            f"{path.relative_to(paths.ROOT)}: expected a mapping with `paper` and a list `tables`."
        )
    return {"paper": content.get("paper") or {}, "tables": content["tables"]}


def find_table(paper: str, table_id: str) -> dict[str, Any]:
    """The published table called `table_id`; an unknown one is a UserError that offers the nearest."""
    tables = {str(table["id"]): table for table in read_tables(paper)["tables"]}
    if table_id not in tables:
        raise UserError(
            f"projects/{paper}/tables.yaml has no table {table_id!r}.{suggest(table_id, tables)} "
            f"It has: {', '.join(tables) or 'none'}."
        )
    return tables[table_id]


def find_cell(paper: str, table_id: str | None, row: str | None, column: str | None) -> Published | None:
    """The published figure in `row` x `column` of a table.

    Returns None when the recipe names no published table, row or column for the cell; a name that the table
    lacks is a UserError.
    """
    if table_id is None or row is None or column is None:
        return None
    table = find_table(paper, table_id)
    where = f"projects/{paper}/tables.yaml, table {table_id}"
    methods = {str(entry["method"]): entry for entry in table["rows"]}
    columns = [str(name) for name in table["columns"]]
    if row not in methods:
        raise UserError(
            f"{where}: no row {row!r}.{suggest(row, methods)} Rows: {', '.join(map(repr, methods))}."
        )
    if column not in columns:
        raise UserError(
            f"{where}: no column {column!r}.{suggest(column, columns)} "
            f"Columns: {', '.join(map(repr, columns))}."
        )
    entry, place = methods[row], columns.index(column)
    std = entry.get("std")
    return Published(
        value=_number(entry["cells"][place], where),
        std=_number(std[place], where) if isinstance(std, list) else None,
        tolerance=_number(table.get("tolerance"), where),
        provenance=provenance(table, entry),
    )


def provenance(table: dict[str, Any], entry: dict[str, Any] | None = None) -> str:
    """In words where a figure comes from, for instance `third-party re-evaluation, <source> (<setting>)`."""
    kind = "third-party re-evaluation" if table.get("third_party") else "the paper's table"
    if table.get("confidence"):
        kind += f" ({table['confidence']} source)"
    source = (entry or {}).get("source") or table.get("source")
    setting = f" ({table['setting']})" if table.get("setting") else ""
    return f"{kind}, {source}{setting}" if source else f"{kind}{setting}"


def count_figures(table: dict[str, Any]) -> int:
    """Number of cells of a published table that hold a figure."""
    return sum(value is not None for entry in table["rows"] for value in entry["cells"])


def _number(value: Any, where: str) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UserError(f"{where}: expected a number or null, found {value!r}.")
    return float(value)
