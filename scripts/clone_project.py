"""Carry one paper away: a standalone repository with only what it needs.

In DEST both commands of the README work: `bash scripts/reproduce.sh PAPER` and `bash scripts/test.sh`.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from shared.errors import fail_cleanly
from shared.packaging.clone import clone, next_steps


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("paper", metavar="PAPER", help="a folder of projects/")
    parser.add_argument("destination", metavar="DEST", type=Path, help="a new or empty folder elsewhere")
    options = parser.parse_args()
    destination = options.destination.expanduser()
    files = clone(options.paper, destination)
    print(next_steps(options.paper, destination, files))
    return 0


if __name__ == "__main__":
    raise SystemExit(fail_cleanly(main))
