"""Run a paper's table, as far as it is not run yet, and put our figures beside the published ones.

Exit status: 0 all runs ended well; 1 a run failed (or, with --strict, a claim does); 2 the command or what it
needs is wrong; 130 stopped by Ctrl-C (the same command resumes).
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from shared.errors import UserError, fail_cleanly

# Nothing heavy is imported at the top: --help answers at once, and worker processes import this file again.


def parse(arguments: list[str]) -> argparse.Namespace:
    """The command line; `options.table` and `options.overrides` are taken from the free words."""
    parser = argparse.ArgumentParser(
        prog="reproduce.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("paper", metavar="PAPER", help="a folder of projects/")
    parser.add_argument(
        "words", metavar="[TABLE] [key=value ...]", nargs="*", help="a file of configs/PAPER/ without .yaml"
    )
    parser.add_argument("--profile", default="laptop", help="laptop (default) or paper: the scale to run at")
    parser.add_argument("--seeds", type=int, metavar="N", help="how many seeds (default: the recipe's)")
    parser.add_argument(
        "--jobs", type=int, metavar="N", help="runs at once (default: one a CPU core or a GPU)"
    )
    parser.add_argument(
        "--launcher", choices=["local", "slurm"], default="local", help="who carries out the runs"
    )
    parser.add_argument("--rerun", action="store_true", help="run everything again, finished or not")
    parser.add_argument(
        "--rerun-stale", action="store_true", help="run again what ran with other source code"
    )
    parser.add_argument("--strict", action="store_true", help="exit 1 also when a claim of the paper fails")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the record of the table there")
    parser.add_argument(
        "--set",
        nargs="+",
        action="extend",
        default=[],
        metavar="key=value",
        help="override the configuration",
    )
    parser.add_argument("--dry-run", action="store_true", help="print the plan and its problems, run nothing")
    options = parser.parse_intermixed_args(arguments)
    words = [word for word in options.words if "=" not in word]
    if len(words) > 1:
        parser.error(f"expected one table, found {' '.join(words)}")
    options.table = words[0] if words else None
    options.overrides = [word for word in options.words if "=" in word] + options.set
    return options


def main(arguments: list[str] | None = None) -> int:
    """Everything from the command line to the report."""
    options = parse(sys.argv[1:] if arguments is None else arguments)
    started = time.time()
    from rich.console import Console

    from shared import paths
    from shared.reproduction.plan import make_plan
    from shared.reproduction.preflight import preflight
    from shared.reproduction.recipe import load_recipe
    from shared.reproduction.store import RunStore

    out, err = Console(), Console(stderr=True)
    plan = make_plan(
        load_recipe(options.paper, options.table), options.profile, options.seeds, options.overrides
    )
    if options.json is not None and options.json.is_dir():
        raise UserError(f"--json: expected the name of a file, {options.json} is a folder.")
    if options.json is not None:
        _writable(options.json)
    store = RunStore(paths.runs_dir())
    check = preflight(
        plan,
        store,
        jobs=options.jobs,
        launcher=options.launcher,
        rerun=options.rerun,
        rerun_stale=options.rerun_stale,
        get=None if options.dry_run else lambda name: _fetch(name, err),
    )
    _print_plan(err if not options.dry_run else out, plan, check, options)
    check.require()
    if options.dry_run:
        return 0
    outcomes, interrupted = _carry_out(plan, store, check, options, err) if check.todo else ([], False)
    claims_fail = _show(plan, store, options, started, out, err, ran=bool(check.todo))
    return _conclude(outcomes, interrupted, claims_fail, plan, options, err)


def _writable(file: Path) -> None:
    """Say now that the record cannot be written, not after hours of computing."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("a"):
            pass
        if not file.stat().st_size:
            file.unlink()
    except OSError as error:
        raise UserError(
            f"--json: {file} cannot be written ({error.strerror}); name a file in a folder of yours."
        ) from None


def _fetch(name: str, err: object) -> None:
    from shared.data.catalogue import fetch

    err.print(f"fetching {name} ...", highlight=False)
    fetch(name)


def _print_plan(console: object, plan: object, check: object, options: argparse.Namespace) -> None:
    from shared.reproduction.progress import duration

    def line(text: str, style: str | None = None) -> None:
        console.print(text, markup=False, highlight=False, soft_wrap=True, style=style)

    line(f"{plan.recipe.title} ({plan.paper}/{plan.table}, profile {plan.profile.name})", "bold")
    rows, columns = len(plan.recipe.rows), len(plan.recipe.columns)
    line(f"  {rows} rows x {columns} columns x {len(plan.seeds)} seeds: {len(plan.runs)} runs", None)
    where = "as cluster jobs" if options.launcher == "slurm" else f"{check.jobs} at once"
    if check.gpus:
        where += f" on {len(check.gpus)} GPUs"
    about = "" if check.minutes is None else f", about {duration(60 * check.minutes)}"
    line(
        f"  {len(check.reused)} are done already, {len(check.todo)} to run"
        + (f", {where}{about}" if check.todo else "")
    )
    if check.stale:
        line(f"  {len(check.stale)} of those done ran with earlier source code (stale):", "yellow")
        for spec in check.stale[:5]:
            line(f"    {spec.name}", "yellow")
        if len(check.stale) > 5:
            line(f"    and {len(check.stale) - 5} more", "yellow")
        line("  --rerun-stale runs them again", "yellow")
    for note in check.notes:
        line(f"  note: {note}", "yellow")


def _carry_out(
    plan: object, store: object, check: object, options: argparse.Namespace, err: object
) -> tuple[list, bool]:
    from shared.reproduction.launchers import run_local, run_slurm, stoppable
    from shared.reproduction.progress import RunProgress

    with RunProgress(err, len(check.todo), check.minutes) as progress:
        shared_folder = store.root / plan.paper if options.launcher == "slurm" else None
        with stoppable(shared_folder, progress.say) as stop:
            if options.launcher == "slurm":
                outcomes = run_slurm(check.todo, store.root, stop=stop, report=progress, rerun=options.rerun)
            else:
                outcomes = run_local(
                    check.todo,
                    store.root,
                    jobs=check.jobs,
                    stop=stop,
                    report=progress,
                    gpus=[gpu.id for gpu in check.gpus],
                    devices=check.devices,
                    rerun=options.rerun,
                )
    return list(zip(check.todo, outcomes, strict=True)), stop.asked


def _show(
    plan: object,
    store: object,
    options: argparse.Namespace,
    started: float,
    out: object,
    err: object,
    ran: bool,
) -> list[str]:
    """Print and write what there is; return the ids of claims that fail."""
    from shared.reproduction import report
    from shared.reproduction.plan import config_schema
    from shared.reproduction.record import build_record, write_record
    from shared.reproduction.results import Results
    from shared.training.config import compose

    results = Results(plan, store)
    record = build_record(results, _command(plan, options), started, time.time())
    report.print_report(out, record, results)
    try:
        if options.json is not None:
            write_record(record, options.json)
        folder = store.root / plan.paper / "reports" / f"{plan.table}-{plan.profile.name}"
        written = report.write_all(record, results, folder)
        others = ", ".join(path.name for kind, path in written.items() if kind != "html")
        text = f"report: {written['html']} (beside it: {others})"
        err.print(text, markup=False, highlight=False, soft_wrap=True)
        if ran:
            config = compose(config_schema(plan.paper), plan.runs[0].config)
            report.log_to_wandb(record, results, config)
    except OSError as error:
        raise UserError(
            f"the report could not be written: {error}. The runs themselves are kept; "
            "make room and give the same command again."
        ) from None
    return [claim["id"] for claim in record["claims"] if claim["verdict"] == "fails"]


def _command(plan: object, options: argparse.Namespace) -> str:
    """What a reader types to repeat the table, without secrets."""
    import shlex

    from shared.training.config import redact

    words = ["python", "scripts/reproduce.py", plan.paper, plan.table, "--profile", plan.profile.name]
    words += ["--seeds", str(options.seeds)] if options.seeds else []
    for override in options.overrides:
        key, _, value = override.partition("=")
        words.append(f"{key}={redact({key.rpartition('.')[2]: value})[key.rpartition('.')[2]]}")
    return shlex.join(words)


def _conclude(
    outcomes: list,
    interrupted: bool,
    claims_fail: list[str],
    plan: object,
    options: argparse.Namespace,
    err: object,
) -> int:
    def line(text: str, style: str | None = None) -> None:
        err.print(text, markup=False, highlight=False, soft_wrap=True, style=style)

    failed = [(spec, outcome) for spec, outcome in outcomes if outcome.state == "failed"]
    if failed:
        line(f"{len(failed)} of {len(plan.runs)} runs failed:", "bold red")
        for spec, outcome in failed:
            line(f"  {spec.name}: {outcome.error}\n    log: {outcome.log}", "red")
    if interrupted:
        left = sum(outcome.state != "finished" for _, outcome in outcomes)
        again = "the same command without --rerun" if options.rerun else "the same command"
        line(
            f"Stopped with {left} of {len(plan.runs)} runs left; finished runs are kept, {again} resumes.",
            "bold",
        )
        return 130
    if failed:
        line("What finished is kept; the same command tries the failed runs again.")
        return 1
    if options.strict and claims_fail:
        line(f"--strict: these claims fail: {', '.join(claims_fail)}", "bold red")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(fail_cleanly(main))
