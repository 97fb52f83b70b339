"""Test a saved checkpoint with the configuration of its run, which lies beside it, and print the metrics."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from shared.errors import UserError, fail_cleanly


def main(arguments: list[str] | None = None) -> int:
    """Load, test, print."""
    parser = argparse.ArgumentParser(prog="evaluate.py", description=__doc__)
    parser.add_argument("paper", metavar="PAPER", help="a folder of projects/")
    parser.add_argument("overrides", metavar="key=value", nargs="*", help="override the run's configuration")
    parser.add_argument("--checkpoint", type=Path, required=True, metavar="FILE", help="as train.py keeps it")
    options = parser.parse_intermixed_args(sys.argv[1:] if arguments is None else arguments)

    import importlib

    from scripts.train import print_metrics, saved_config
    from shared.reproduction.recipe import check_paper

    check_paper(options.paper)
    checkpoint = options.checkpoint
    if not checkpoint.exists():
        raise UserError(f"--checkpoint: there is no file {checkpoint}.")
    folders = [
        folder for folder in list(checkpoint.absolute().parents)[:2] if (folder / "config.yaml").is_file()
    ]
    if not folders:
        raise UserError(
            f"no config.yaml beside {checkpoint} or one folder above it. "
            "Evaluate a checkpoint where its run keeps it."
        )
    config = saved_config(options.paper, folders[0], options.overrides)
    from shared.training.experiment import evaluate_checkpoint

    build = importlib.import_module(f"projects.{options.paper}").build
    with tempfile.TemporaryDirectory() as scratch:
        print_metrics(evaluate_checkpoint(build, config, checkpoint, Path(scratch)))
    return 0


if __name__ == "__main__":
    sys.exit(fail_cleanly(main))
