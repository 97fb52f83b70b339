"""Start a paper: a scaffold that trains and passes its tests, and the list of what to do next."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from shared.errors import fail_cleanly
from shared.packaging.scaffold import checklist, scaffold
from shared.paths import ROOT


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", metavar="NAME", help="lower case with underscores, e.g. my_paper")
    name = parser.parse_args().name
    written = scaffold(name)
    print("written:", *(f"  {path.relative_to(ROOT)}" for path in written), sep="\n")
    print(f"\nIt runs as it is: bash scripts/reproduce.sh {name}\n\nNow make it the paper:\n")
    print(checklist(name), end="")
    return 0


if __name__ == "__main__":
    raise SystemExit(fail_cleanly(main))
