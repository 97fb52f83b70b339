"""Carrying out one run in the present process: a local worker, a cluster job or a script."""

from __future__ import annotations

import importlib
import io
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from filelock import Timeout

from shared import paths
from shared.reproduction.plan import RunSpec, config_schema
from shared.reproduction.source import RUNNER
from shared.reproduction.store import FAILED, FINISHED, INTERRUPTED, RunStore
from shared.training.config import compose

BUSY = "busy"  # another process works on the run


@dataclass(frozen=True)
class Outcome:
    """What became of one attempt at a run."""

    id: str
    state: str  # finished | failed | interrupted | busy
    seconds: float = 0.0
    error: str | None = None
    log: str | None = None
    reused: bool = False


def execute(
    spec: RunSpec,
    root: Path,
    *,
    rerun: bool = False,
    stop_file: Path | None = None,
    stopped: Callable[[], bool] = lambda: False,
) -> Outcome:
    """Carry out `spec` and store it below `root`; never raises for what goes wrong inside the run.

    Args:
        spec: the run.
        root: the run store.
        rerun: start over even when the run is finished.
        stop_file: when this file appears the run saves a checkpoint and ends as interrupted.
        stopped: a second way to ask the same.
    """
    store = RunStore(root)
    log = store.folder(spec) / "log.txt"

    def stop() -> bool:
        return stopped() or (stop_file is not None and stop_file.exists())

    if rank() > 0:  # a helper process of a multi-device run: the first rank keeps the books
        _train(spec, store.folder(spec), stop)
        return Outcome(spec.id, FINISHED)
    try:
        with store.lock(spec).acquire(blocking=False):
            if not rerun and store.find(spec).state == FINISHED:
                return Outcome(spec.id, FINISHED, reused=True)
            if stop():
                return Outcome(spec.id, INTERRUPTED)
            with suppress(Exception):  # what is wrong with it the run itself will say, in its log
                importlib.import_module(
                    RUNNER
                )  # torch and Lightning: here, so that no run's time has them in it
            return _attempt(spec, store, log, stop, rerun)
    except Timeout:
        return Outcome(spec.id, BUSY)
    except OSError as error:  # the store itself cannot be written: disk full, folder gone
        return Outcome(spec.id, FAILED, error=_short(error), log=str(log))


def _attempt(spec: RunSpec, store: RunStore, log: Path, stop: Callable[[], bool], rerun: bool) -> Outcome:
    folder = store.begin(spec, afresh=rerun)
    state, metrics, message = FAILED, None, None
    with captured(log):
        print(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {spec.group} {spec.name} ({spec.id})", flush=True)
        try:
            metrics = _train(spec, folder, stop)
            state = FINISHED
        except BaseException as error:
            if type(error).__name__ == "Interrupted":
                state, message = INTERRUPTED, "stopped on request; what it had reached is kept"
                print(message)
            else:
                message = _short(error)
                with suppress(OSError):  # the disk may be what is full
                    traceback.print_exc()
    seconds = store.end(spec, state, metrics, message, **_machine(spec))
    return Outcome(spec.id, state, seconds, message, str(log))


def _train(spec: RunSpec, folder: Path, stop: Callable[[], bool]) -> dict[str, float]:
    from shared.training.experiment import run_experiment

    config = compose(config_schema(spec.paper), spec.config)
    relaunch_by_train(spec.paper, folder)
    return run_experiment(
        importlib.import_module(f"projects.{spec.paper}").build,
        config,
        folder,
        group=spec.group,
        name=spec.name,
        stop=stop,
        provenance={"run": spec.id, "source": spec.source},
    )


def relaunch_by_train(paper: str, folder: Path) -> None:
    """Make this process's command line one that joins the run in `folder`.

    Lightning starts the other ranks of a multi-device run by running its own command line again.
    """
    sys.argv = [str(paths.ROOT / "scripts" / "train.py"), paper, "--run", str(folder)]


@contextmanager
def captured(log: Path) -> Iterator[None]:
    """Append all that this process and its children print to `log`, prints from C code included."""
    target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    before = sys.stdout, sys.stderr
    for stream in before:
        stream.flush()
    saved = os.dup(1), os.dup(2)
    try:
        os.dup2(target, 1)
        os.dup2(target, 2)
        sys.stdout, sys.stderr = _stream(1), _stream(2)
        yield
    finally:
        for stream, descriptor in ((sys.stdout, 1), (sys.stderr, 2)):
            with suppress(OSError):  # the log's disk is full; the run's own outcome matters more
                stream.flush()
            os.dup2(saved[descriptor - 1], descriptor)
            os.close(saved[descriptor - 1])
        os.close(target)
        sys.stdout, sys.stderr = before


def _stream(descriptor: int) -> TextIO:
    """An unbuffered stream onto `descriptor`.

    The `sys.stdout` of a notebook or a test goes elsewhere, and what a full disk refuses to take must not
    turn up on the terminal later, out of a buffer.
    """
    raw = io.FileIO(descriptor, "w", closefd=False)
    return io.TextIOWrapper(raw, encoding="utf-8", errors="replace", write_through=True)


def _machine(spec: RunSpec) -> dict[str, object]:
    """What the run used, for the record; empty when it failed before torch was imported."""
    torch = sys.modules.get("torch")
    if torch is None:
        return {}
    gpu = spec.config["trainer"]["accelerator"] != "cpu" and torch.cuda.is_available()
    return {"device": torch.cuda.get_device_name() if gpu else "cpu", "threads": torch.get_num_threads()}


def rank() -> int:
    """Rank of this process among those that Lightning, torchrun or srun started for one run."""
    for name in ("RANK", "SLURM_PROCID", "LOCAL_RANK"):
        if os.environ.get(name, "").isdigit():
            return int(os.environ[name])
    return 0


def _short(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".strip().splitlines()[0][:300]
