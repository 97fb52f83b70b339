"""Who carries out the runs of a plan: worker processes on this machine, or jobs of a SLURM cluster.

Both take the runs that are left to do, hand each to `execute.execute` and report every outcome as it comes. A
run that another `reproduce` works on is put off and looked at again until that one is through.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import connection, resource_tracker
from pathlib import Path
from typing import Any

from shared import paths
from shared.reproduction.execute import BUSY, Outcome, execute
from shared.reproduction.plan import RunSpec
from shared.reproduction.store import FAILED, FINISHED, INTERRUPTED, RunStore

Report = Callable[[str, RunSpec, Outcome | None], None]  # ("started" | "done", run, outcome)
POLL_SECONDS = 0.2
BUSY_SECONDS = 1.0  # between two looks at a run that another process works on
ORPHAN_SECONDS = 30.0  # for a last checkpoint when the parent was killed


class Stop:
    """Ctrl-C: the first asks every run to stop at its next step, the second asks to kill."""

    def __init__(self, folder: Path, say: Callable[[str], None]) -> None:
        self.file = folder / "stop"
        self.presses = self.told = 0
        self.say = say

    def __call__(self, *signal_details: object) -> None:
        self.presses += 1
        self.file.touch()

    def tell(self) -> None:
        """Say once, outside of the signal's handler, what a press has set going."""
        if self.presses and not self.told:
            self.say("Stopping: each run saves a checkpoint at its next step. Ctrl-C again to kill at once.")
        self.told = self.presses

    @property
    def asked(self) -> bool:
        return self.presses > 0

    @property
    def kill(self) -> bool:
        return self.presses > 1


@contextmanager
def stoppable(folder: Path | None, say: Callable[[str], None]) -> Iterator[Stop]:
    """A `Stop` that Ctrl-C and SIGTERM press; its file lies below `folder` where jobs can see it."""
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    place = Path(tempfile.mkdtemp(prefix=".stop-", dir=folder))
    stop = Stop(place, say)
    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        shutil.rmtree(place, ignore_errors=True)


def run_local(
    specs: Sequence[RunSpec],
    root: Path,
    *,
    jobs: int,
    stop: Stop,
    report: Report,
    gpus: Sequence[str] = (),
    devices: int = 1,
    rerun: bool = False,
) -> list[Outcome]:
    """Carry out `specs` in `jobs` long-lived worker processes; torch is imported once in each.

    Args:
        specs: the runs, in this order.
        root: the run store.
        jobs: how many at once.
        stop: pressed by Ctrl-C.
        report: told when a run starts and ends.
        gpus: ids of the GPUs to share out over the jobs; none: CPU.
        devices: GPUs that one run uses.
        rerun: run finished runs again.
    """
    waiting = deque(specs)
    jobs = max(1, min(jobs, len(specs)))
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    visible = _share(gpus, jobs, devices)
    threads = max(1, cores // jobs)
    workers = [_worker(threads, visible[slot]) for slot in range(jobs)]
    working: dict[Future, tuple[int, RunSpec]] = {}
    free, outcomes, not_before = list(range(jobs)), {}, {}
    store = RunStore(root)
    try:
        while waiting or working:
            for _ in range(len(waiting) if free and not stop.asked else 0):
                spec = waiting.popleft()
                if not_before.get(spec.id, 0.0) > time.monotonic():
                    waiting.append(spec)
                elif spec.id in not_before and not rerun and store.find(spec).state == FINISHED:
                    outcomes[spec.id] = Outcome(spec.id, FINISHED, reused=True)
                    report("done", spec, outcomes[spec.id])
                elif free:
                    slot = free.pop()
                    future = _submit(workers[slot], spec, root, rerun, stop.file)
                    working[future] = slot, spec
                    report("started", spec, None)
                else:
                    waiting.appendleft(spec)
                    break
            stop.tell()
            if stop.asked and not working:
                break
            if stop.kill:
                for process in multiprocessing.active_children():
                    process.kill()
            if working:
                done, _ = wait(working, timeout=POLL_SECONDS, return_when=FIRST_COMPLETED)
            else:
                done = ()
                time.sleep(POLL_SECONDS)
            for future in done:
                slot, spec = working.pop(future)
                try:
                    outcome = future.result()
                except BrokenProcessPool:
                    outcome = _killed(spec, store, stop.kill)
                    workers[slot].shutdown(wait=False)
                    workers[slot] = _worker(threads, visible[slot])
                except Exception as error:
                    outcome = Outcome(
                        spec.id, FAILED, error=str(error), log=str(store.folder(spec) / "log.txt")
                    )
                # a CUDA error poisons its process, and the ranks of a multi-device run belong to one run only
                if devices > 1 or (outcome.state == FAILED and visible[slot] is not None):
                    workers[slot].shutdown(wait=False)
                    workers[slot] = _worker(threads, visible[slot])
                free.append(slot)
                if outcome.state == BUSY:
                    not_before[spec.id] = time.monotonic() + BUSY_SECONDS
                    waiting.append(spec)
                else:
                    outcomes[spec.id] = outcome
                report("done", spec, outcome)
    finally:
        for worker in workers:
            worker.shutdown(wait=not stop.kill, cancel_futures=True)
    return [outcomes.get(spec.id) or Outcome(spec.id, INTERRUPTED) for spec in specs]


def run_slurm(
    specs: Sequence[RunSpec],
    root: Path,
    *,
    stop: Stop,
    report: Report,
    rerun: bool = False,
    poll_seconds: float = 5.0,
) -> list[Outcome]:
    """Carry out every spec as one cluster job, its resources taken from the spec's `slurm` section.

    Ctrl-C cancels jobs that wait and asks those that run to save a checkpoint; twice cancels all. The
    environment variable PAPERWORKS_SUBMITIT_CLUSTER (slurm, local, debug) chooses submitit's executor.
    """
    import submitit

    logs = root / specs[0].paper / ".jobs"
    # the job's python must find this tree, wherever it starts
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(paths.ROOT), os.environ.get("PYTHONPATH")]))
    executor = submitit.AutoExecutor(folder=logs, cluster=submitit_cluster())
    jobs: dict[int, submitit.Job] = {}
    outcomes: dict[int, Outcome] = {}
    for place, spec in enumerate(specs):
        if stop.asked:
            break
        executor.update_parameters(name=f"{spec.paper}-{spec.id}", **_slurm_parameters(spec))
        jobs[place] = executor.submit(Job(), spec, root, rerun, stop.file)
        report("started", spec, None)
    cancelled = False
    while len(outcomes) < len(jobs):
        stop.tell()
        if stop.kill or (stop.asked and not cancelled):
            cancelled = True
            for place, job in jobs.items():
                if place not in outcomes and (stop.kill or job.state in ("PENDING", "UNKNOWN")):
                    job.cancel()
                    outcomes[place] = Outcome(specs[place].id, INTERRUPTED)
                    report("done", specs[place], outcomes[place])
        for place, job in jobs.items():
            if place not in outcomes and job.done():
                outcomes[place] = _job_outcome(job, specs[place])
                report("done", specs[place], outcomes[place])
        if len(outcomes) < len(jobs):
            time.sleep(poll_seconds)
    return [outcomes.get(place) or Outcome(spec.id, INTERRUPTED) for place, spec in enumerate(specs)]


def submitit_cluster() -> str:
    """Which of submitit's executors to use: slurm, or one for tests."""
    return os.environ.get("PAPERWORKS_SUBMITIT_CLUSTER", "slurm")


def cluster_problems() -> list[str]:
    """What is missing on this machine for `run_slurm`."""
    if importlib.util.find_spec("submitit") is None:
        return ["--launcher slurm needs the package submitit: pip install -e '.[slurm]'"]
    if submitit_cluster() == "slurm" and shutil.which("srun") is None:
        return ["--launcher slurm: there is no srun here; give the command on a login node of the cluster."]
    return []


class Job:
    """What a cluster job calls; after a time limit or preemption it is queued again and resumes."""

    def __call__(self, spec: RunSpec, root: Path, rerun: bool, stop_file: Path) -> Outcome:
        while (outcome := execute(spec, root, rerun=rerun, stop_file=stop_file)).state == BUSY:
            time.sleep(BUSY_SECONDS)
        return outcome

    def checkpoint(self, spec: RunSpec, root: Path, rerun: bool, stop_file: Path) -> object:
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self, spec, root, False, stop_file)


def _slurm_parameters(spec: RunSpec) -> dict[str, object]:
    wish, trainer = spec.config["slurm"], spec.config["trainer"]
    devices = trainer["devices"] if isinstance(trainer["devices"], int) else wish["gpus_per_node"]
    optional = {key: wish[key] for key in ("partition", "account") if wish[key]}
    return {
        "timeout_min": wish["timeout_min"],
        "cpus_per_task": wish["cpus_per_task"],
        "mem_gb": wish["mem_gb"],
        "nodes": trainer["num_nodes"],
        "tasks_per_node": max(1, devices),  # Lightning wants one task a device
        **({"gpus_per_node": wish["gpus_per_node"]} if wish["gpus_per_node"] else {}),
        **{f"slurm_{key}": value for key, value in optional.items()},
    }


def _job_outcome(job: Any, spec: RunSpec) -> Outcome:
    try:
        return job.results()[0]
    except Exception as error:  # the job died outside the run: node failure, no memory, import error
        text = str(error).strip().splitlines() or [type(error).__name__]
        return Outcome(spec.id, FAILED, error=text[-1], log=str(job.paths.stderr))


def _share(gpus: Sequence[str], jobs: int, devices: int) -> list[str | None]:
    """CUDA_VISIBLE_DEVICES of each job: `devices` GPUs, shared only when there are more jobs than GPUs."""
    if not gpus:
        return [None] * jobs
    places = [range(slot * devices, (slot + 1) * devices) for slot in range(jobs)]
    return [",".join(gpus[place % len(gpus)] for place in span) for span in places]


def _worker(threads: int, visible: str | None) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(
        1, multiprocessing.get_context("spawn"), initializer=_enter_worker, initargs=(threads, visible)
    )


def _submit(worker: ProcessPoolExecutor, spec: RunSpec, root: Path, rerun: bool, stop_file: Path) -> Future:
    """Submit with SIGINT blocked: a worker is born deaf to Ctrl-C, which reaches the whole process group."""
    resource_tracker.ensure_running()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        return worker.submit(_work, spec, root, rerun, stop_file)
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


_orphaned = threading.Event()
_at_work = threading.Event()


def _work(spec: RunSpec, root: Path, rerun: bool, stop_file: Path) -> Outcome:
    _at_work.set()
    try:
        return execute(spec, root, rerun=rerun, stop_file=stop_file, stopped=_orphaned.is_set)
    finally:
        _at_work.clear()


def _enter_worker(threads: int, visible: str | None) -> None:
    """Set up a worker process before anything heavy is imported in it."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # the parent decides when to stop
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = str(threads)
    if visible is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = visible
    threading.Thread(target=_watch_parent, daemon=True).start()


def _watch_parent() -> None:
    """End this worker when its parent is gone: after a last checkpoint if it is in the middle of a run."""
    connection.wait([multiprocessing.parent_process().sentinel])
    _orphaned.set()
    deadline = time.monotonic() + ORPHAN_SECONDS
    while _at_work.is_set() and time.monotonic() < deadline:
        time.sleep(0.05)
    sys.stderr.flush()
    os._exit(1)


def _killed(spec: RunSpec, store: RunStore, on_request: bool) -> Outcome:
    """The outcome of a run whose process vanished, written to its status and log."""
    log = store.folder(spec) / "log.txt"
    state = INTERRUPTED if on_request else FAILED
    why = (
        "killed on request" if on_request else "the worker process was killed (out of memory, or by a signal)"
    )
    try:
        with store.lock(spec).acquire(blocking=False):
            if store.find(spec).state == FINISHED:
                return Outcome(spec.id, FINISHED, log=str(log))
            seconds = store.end(spec, state, error=why)
        with log.open("a", encoding="utf-8") as file:
            file.write(f"{why}\n")
    except (OSError, TimeoutError):
        seconds = 0.0
    return Outcome(spec.id, state, seconds, why, str(log))
