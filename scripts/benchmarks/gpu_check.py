"""Run every check that needs a GPU, within a time budget, and write what came out as JSON.

A check is an entry `(name, function)` in the list that `checks()` of a file in gpu_checks/ returns; the
function returns the figures it measured and raises when something is wrong. `house.py` is about the shared
code; a project adds a file called like itself. Without a GPU nothing runs. Exit status 1 when a check fails.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import platform
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent.parent))

FOLDER = Path(__file__).parent / "gpu_checks"
Check = tuple[str, Callable[[], dict[str, Any]]]


def collect(folder: Path = FOLDER) -> list[Check]:
    """The checks of every file in `folder`, each named `file/check`; `house.py` first."""
    found: list[Check] = []
    for path in sorted(folder.glob("*.py"), key=lambda path: (path.stem != "house", path.stem)):
        spec = importlib.util.spec_from_file_location(f"gpu_checks_{path.stem}", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        found += [(f"{path.stem}/{name}", function) for name, function in module.checks()]
    return found


def run_checks(checks: list[Check], budget: float) -> list[dict[str, Any]]:
    """Run `checks` one after the other; what does not fit into `budget` seconds is cut off or skipped."""
    end = time.monotonic() + budget
    results = []
    for name, function in checks:
        result: dict[str, Any] = {"name": name, "status": "skipped"}
        started = time.monotonic()
        if (left := int(end - started)) >= 1:
            try:
                signal.signal(signal.SIGALRM, _out_of_time)
                signal.alarm(left)
                result |= {"figures": function(), "status": "passed"}
            except Exception as error:  # a check may fail in any way; the others still run
                result |= {"status": "failed", "error": f"{type(error).__name__}: {error}"}
                traceback.print_exc()
            finally:
                signal.alarm(0)
        result["seconds"] = round(time.monotonic() - started, 2)
        print(
            f"{result['status']:8} {result['seconds']:7.1f} s  {name}  {result.get('figures', '')}",
            flush=True,
        )
        results.append(result)
    return results


def _out_of_time(*_: object) -> None:
    raise TimeoutError("the time budget of all checks is used up")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there")
    parser.add_argument(
        "--budget", type=float, default=450, metavar="SECONDS", help="for all checks (default 450)"
    )
    options = parser.parse_args()
    import torch

    if not torch.cuda.is_available():
        print("no GPU")
        return 0
    started = time.time()
    results = run_checks(collect(), options.budget)
    record = {
        "device": torch.cuda.get_device_name(),
        "devices": torch.cuda.device_count(),
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
        },
        "seconds": round(time.time() - started, 1),
        "checks": results,
    }
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(record, indent=1) + "\n")
    return int(any(result["status"] == "failed" for result in results))


if __name__ == "__main__":
    sys.exit(main())
