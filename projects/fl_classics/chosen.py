"""The best cell of each method in a measured `tuning`, as rows for `configs/fl_classics/classics.yaml`.

`python -m projects.fl_classics.chosen docs/results/laptop/fl_classics/tuning.json` prints them.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from shared.errors import UserError, fail_cleanly
from shared.reproduction.recipe import Recipe, load_recipe
from shared.reproduction.record import read_record


def best_rows(record: dict[str, Any], trial: Recipe) -> dict[str, dict[str, Any]]:
    """Row of `classics` -> its config: the trial's best cell among those of the same method and network.

    A cell without a finite mean (a diverged run) is never the best.

    Raises:
        UserError: cells of the trial that were not measured.
    """
    means = {(cell["row"], cell["column"]): (cell["mean"], cell["n"]) for cell in record["cells"]}
    found: dict[str, tuple[float, dict[str, Any]]] = {}
    for row in trial.rows.values():
        name = row.config["method"] + ("_gn" if row.config.get("network", {}).get("norm") == "group" else "")
        for column in trial.columns.values():
            mean, n = means.get((row.id, column.id), (None, 0))
            if not n:
                raise UserError(f"{row.id}/{column.id} of the trial has not been measured; run it first.")
            if mean is not None and mean > found.get(name, (-1.0, {}))[0]:
                found[name] = (mean, {**row.config, **column.config})
    return {name: config for name, (_, config) in found.items()}


def main() -> int:
    """Print the rows."""
    if len(sys.argv) != 2:
        raise UserError("expected one argument, the record of the table `tuning`.")
    labels = {name: row.label for name, row in load_recipe("fl_classics", "classics").rows.items()}
    for name, config in best_rows(
        read_record(Path(sys.argv[1])), load_recipe("fl_classics", "tuning").at("laptop")
    ).items():
        print(f'  {name}: {{label: "{labels[name]}", config: {_flow(config)}}}')
    return 0


def _flow(value: Any) -> str:
    """A mapping in YAML's one-line form."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_flow(inner)}" for key, inner in value.items()) + "}"
    return str(value)


if __name__ == "__main__":
    raise SystemExit(fail_cleanly(main))
