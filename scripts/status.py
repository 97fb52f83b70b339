"""What this repository reproduces: papers x tables, published figures, verdicts, and what is stale.

Reads recipes (configs/), published figures (projects/*/tables.yaml) and records (docs/results/).
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from shared.errors import fail_cleanly


def main(arguments: list[str] | None = None) -> int:
    """Print the matrix; write what was asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the matrix as JSON")
    parser.add_argument(
        "--html",
        type=Path,
        metavar="FILE",
        help="write one page with every cell and the command that re-runs it",
    )
    parser.add_argument(
        "--write-readmes", action="store_true", help="fill the generated blocks of the README files"
    )
    options = parser.parse_args(arguments)
    from rich.console import Console

    from shared.reproduction.readme import write_readmes
    from shared.reproduction.report.overview import overview_html, print_overview
    from shared.reproduction.status import collect, to_json
    from shared.reproduction.store import write_text

    lines = collect()
    print_overview(Console(), lines)
    for path, make in (
        (options.json, lambda: json.dumps(to_json(lines), indent=1, ensure_ascii=False) + "\n"),
        (options.html, lambda: overview_html(lines)),
    ):
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_text(path, make())
            print(f"written: {path}")
    if options.write_readmes:
        for path in write_readmes():
            print(f"written: {path}")
    return 0


if __name__ == "__main__":
    sys.exit(fail_cleanly(main))
