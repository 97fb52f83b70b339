"""Train one model of a paper: one cell and seed of a table, or any variation of it.

The run's folder receives config.yaml, metrics.json, history.csv, checkpoints/ and wandb/. Ctrl-C saves a
checkpoint; `--run FOLDER` goes on from it.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from shared.errors import UserError, fail_cleanly


def main(arguments: list[str] | None = None) -> int:
    """Compose the configuration, train, print the metrics."""
    parser = argparse.ArgumentParser(
        prog="train.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("paper", metavar="PAPER", help="a folder of projects/")
    parser.add_argument("overrides", metavar="key=value", nargs="*", help="override the configuration")
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument(
        "--config", type=Path, metavar="FILE", help="a table of configs/PAPER/, or a run's config.yaml"
    )
    which.add_argument("--run", type=Path, metavar="FOLDER", help="go on with the run in this folder")
    parser.add_argument("--profile", help="the table's scale (default: laptop where the table has it)")
    parser.add_argument("--row", help="the table's row (default: its first)")
    parser.add_argument("--column", help="the table's column (default: its first)")
    parser.add_argument(
        "--out", type=Path, metavar="FOLDER", help="the run's folder (default: a new one in the store)"
    )
    options = parser.parse_intermixed_args(sys.argv[1:] if arguments is None else arguments)

    from shared import paths
    from shared.reproduction.recipe import check_paper

    check_paper(options.paper)
    if options.run is not None:
        folder, config = options.run, saved_config(options.paper, options.run, options.overrides)
        name = folder.name
    else:
        config, name = composed(options)
        stamp = f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
        folder = options.out or paths.runs_dir() / options.paper / "train" / stamp
        if (folder / "config.yaml").exists():
            raise UserError(
                f"{folder} holds a run already. Go on with it by --run {folder}, or name another folder."
            )
    return _train(options.paper, config, folder, name)


def saved_config(paper: str, folder: Path, overrides: list[str]) -> Any:
    """The composed configuration of the run in `folder`, `overrides` laid over it."""
    return _plain(paper, folder / "config.yaml", overrides)


def _plain(paper: str, path: Path, overrides: list[str]) -> Any:
    from omegaconf import OmegaConf

    from shared.reproduction.plan import config_schema
    from shared.training.config import compose

    if not path.is_file():
        raise UserError(f"expected a run's configuration at {path}, found nothing.")
    try:
        layer = OmegaConf.to_container(OmegaConf.load(path))
    except Exception as error:  # yaml and omegaconf errors have no common base
        raise UserError(f"{path} is not readable as YAML: {error}") from None
    return compose(config_schema(paper), layer, overrides=overrides)


def composed(options: argparse.Namespace) -> tuple[Any, str]:
    """The configuration that the command line asks for, and the run's name."""
    from shared import paths
    from shared.errors import suggest
    from shared.reproduction.plan import cell_config, config_schema
    from shared.reproduction.recipe import load_recipe, tables
    from shared.training.config import compose

    path = options.config
    tables_folder = paths.CONFIGS / options.paper
    if path.parent.resolve() != tables_folder.resolve():
        if not path.is_file():
            hint = suggest(path.stem, tables(options.paper))
            raise UserError(f"--config: no file {path}.{hint} Tables: {', '.join(tables(options.paper))}.")
        if options.row or options.column or options.profile:
            raise UserError(
                f"--row, --column and --profile choose from a table of {tables_folder}; {path} is not one."
            )
        return _plain(options.paper, path, options.overrides), path.stem
    recipe = load_recipe(options.paper, path.stem)
    profile = options.profile or ("laptop" if "laptop" in recipe.profiles else next(iter(recipe.profiles)))
    table = recipe.at(profile)
    row = table.row(options.row or next(iter(table.rows)))
    column = table.column(options.column or next(iter(table.columns)))
    defaults = {"runtime": {"progress": sys.stderr.isatty(), "keep_checkpoint": True}}
    layer = cell_config(table, recipe.profiles[profile], row, column)
    config = compose(config_schema(options.paper), defaults, layer, overrides=options.overrides)
    changes = f", with {' '.join(options.overrides)}" if options.overrides else ""
    print(f"{recipe.table}, profile {profile}, row {row.id}, column {column.id}, seed {config.seed}{changes}")
    return config, f"{row.id}/{column.id}/seed {config.seed}"


def _train(paper: str, config: Any, folder: Path, name: str) -> int:
    import importlib

    from omegaconf import OmegaConf

    from shared.reproduction.execute import rank, relaunch_by_train
    from shared.reproduction.launchers import stoppable
    from shared.reproduction.store import write_json, write_text
    from shared.training.config import redact, resolved

    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / "config.yaml").exists():
            write_text(folder / "config.yaml", OmegaConf.to_yaml(OmegaConf.create(redact(resolved(config)))))
    except OSError as error:
        raise UserError(f"the folder {folder} cannot be written ({error.strerror}).") from None
    from shared.training.experiment import Interrupted, run_experiment

    build = importlib.import_module(f"projects.{paper}").build
    again = f"python scripts/train.py {paper} --run {shlex.quote(str(folder))}"
    relaunch_by_train(paper, folder)
    with stoppable(None, lambda text: print(text, file=sys.stderr)) as stop:

        def stopping() -> bool:
            stop.tell()
            if stop.kill:
                raise KeyboardInterrupt
            return stop.asked

        try:
            metrics = run_experiment(build, config, folder, group=f"{paper}/train", name=name, stop=stopping)
        except (Interrupted, KeyboardInterrupt):
            print(f"stopped; go on with: {again}", file=sys.stderr)
            return 130
    if rank() > 0:
        return 0  # the first rank of a multi-device run writes and prints
    write_json(folder / "metrics.json", metrics)
    print_metrics(metrics)
    print(f"run: {folder}")
    return 0


def print_metrics(metrics: dict[str, float]) -> None:
    """A two-column table on stdout."""
    from rich.console import Console
    from rich.table import Table

    table = Table("metric", "value")
    for name, value in sorted(metrics.items()):
        table.add_row(name, f"{value:.6g}")
    Console().print(table)


if __name__ == "__main__":
    sys.exit(fail_cleanly(main))
