"""What has to be true before hours are spent: all problems at once, and how much there is to do."""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shared.errors import UserError
from shared.reproduction.launchers import cluster_problems
from shared.reproduction.plan import Plan, RunSpec, config_schema
from shared.reproduction.store import FINISHED, STALE, RunStore, check_writable
from shared.training.config import compose

DEFAULT_RUN_GB = 0.02  # what a run leaves in the store when neither the recipe nor finished runs say
JOBS_PER_CORE = 8  # more than so many processes on a core only wait for each other and fill the memory
MARGIN_GB = 0.5  # that should stay free beyond what the runs need


@dataclass(frozen=True)
class Gpu:
    """A GPU that this process may use."""

    id: str
    memory_gb: float


@dataclass
class Preflight:
    """What is left to run, what it needs, and what stands in the way."""

    todo: list[RunSpec]
    reused: list[RunSpec]
    stale: list[RunSpec]  # among the reused: finished by other source
    jobs: int
    gpus: list[Gpu]
    devices: int
    minutes: float | None  # estimate for `todo`
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def require(self) -> None:
        """Raise one `UserError` that lists every problem."""
        if self.problems:
            lines = "".join(f"\n  {place}. {text}" for place, text in enumerate(self.problems, 1))
            raise UserError(f"{len(self.problems)} thing(s) to mend before anything can run:{lines}")


def preflight(
    plan: Plan,
    store: RunStore,
    *,
    jobs: int | None = None,
    launcher: str = "local",
    rerun: bool = False,
    rerun_stale: bool = False,
    get: Callable[[str], object] | None = None,
) -> Preflight:
    """Look at the store, data, weights, disk and device that `plan` needs; start nothing.

    Args:
        plan: the cells and runs.
        store: where finished runs are looked up.
        jobs: runs at once; None: one a CPU core, or one a GPU.
        launcher: ``local`` or ``slurm``; on a cluster the device is not this machine's to check.
        rerun, rerun_stale: whether finished and stale runs count as left to do.
        get: fetches an embedded data set by name; None: a missing one is reported and not fetched.
    """
    found = {spec.id: store.find(spec) for spec in plan.runs}
    done = () if rerun else (FINISHED,) if rerun_stale else (FINISHED, STALE)
    todo = [spec for spec in plan.runs if found[spec.id].state not in done]
    reused = [spec for spec in plan.runs if found[spec.id].state in done]
    stale = [spec for spec in reused if found[spec.id].state == STALE]
    devices, on_gpu = _devices(plan.runs[0])
    gpus = visible_gpus() if on_gpu and launcher == "local" else []
    if jobs is not None and jobs < 1:
        raise UserError(f"--jobs: expected at least 1, found {jobs}.")
    if jobs is not None and launcher == "local" and jobs > JOBS_PER_CORE * cpu_cores():
        raise UserError(
            f"--jobs: expected at most {JOBS_PER_CORE * cpu_cores()} on {cpu_cores()} cores, found {jobs}."
        )
    jobs = jobs or (max(1, len(gpus) // devices) if gpus else cpu_cores())
    jobs = max(1, min(jobs, len(todo)))
    seconds = [found[spec.id].status.get("seconds") for spec in plan.runs if found[spec.id].usable]
    check = Preflight(todo, reused, stale, jobs, gpus, devices, _minutes(plan, todo, seconds, jobs))
    if todo:
        try:
            check_writable(store.root)
        except UserError as error:
            check.problems.append(str(error))
        else:
            _check_disk(check, plan, store, [found[spec.id].folder for spec in reused])
        _check_data(check, get)
        if launcher == "local":
            _check_device(check, plan)
        else:
            check.problems += cluster_problems()
    _check_overrides(check, plan)
    return check


def cpu_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def visible_gpus() -> list[Gpu]:
    """NVIDIA GPUs of this machine that CUDA_VISIBLE_DEVICES leaves visible; asked without importing torch."""
    if shutil.which("nvidia-smi") is None:
        return []
    query = ["nvidia-smi", "--query-gpu=index,uuid,memory.total", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    gpus = []
    for line in answer.strip().splitlines():
        index, uuid, mebibytes = (part.strip() for part in line.split(","))
        memory = float(mebibytes) / 1024 if mebibytes.replace(".", "").isdigit() else 0.0
        gpus.append((Gpu(index, memory), uuid))
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return [gpu for gpu, _ in gpus]
    wanted = [name.strip() for name in visible.split(",") if name.strip()]
    return [
        Gpu(name, gpu.memory_gb)
        for name in wanted
        for gpu, uuid in gpus
        if name == gpu.id or uuid.startswith(name)
    ]


def _devices(spec: RunSpec) -> tuple[int, bool]:
    """Devices that one run takes, and whether they may be GPUs."""
    trainer = spec.config["trainer"]
    wanted = str(trainer["devices"])
    return int(wanted) if wanted.isdigit() and wanted != "0" else 1, trainer["accelerator"] in (
        "auto",
        "gpu",
        "cuda",
    )


def _minutes(plan: Plan, todo: list[RunSpec], seconds: list[float | None], jobs: int) -> float | None:
    """From the runs that are finished, else from what the recipe promises for the whole table."""
    known = [value for value in seconds if isinstance(value, int | float) and value > 0]
    if known:
        return len(todo) * sum(known) / len(known) / jobs / 60
    if plan.profile.minutes is None:
        return None
    listed = len(plan.runs) * len(plan.profile.seeds) / len(plan.seeds)
    return plan.profile.minutes * len(todo) / listed


def _check_disk(check: Preflight, plan: Plan, store: RunStore, finished: list[Path]) -> None:
    each = plan.profile.disk_gb
    if each is None and finished:
        each = sum(_size(folder) for folder in finished[:20]) / len(finished[:20]) / 1e9
    need = len(check.todo) * (DEFAULT_RUN_GB if each is None else each) + MARGIN_GB
    free = shutil.disk_usage(store.root).free / 1e9
    if free < need:
        check.problems.append(
            f"disk: {len(check.todo)} runs need about {need:.1f} GB below {store.root}, {free:.1f} GB are "
            "free. Make room, or set PAPERWORKS_RUNS to a larger disk."
        )


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


def _check_data(check: Preflight, get: Callable[[str], object] | None) -> None:
    """Ask the project what its configurations need, fetch what is embedded, report the rest."""
    try:
        needed = _requirements(check.todo)
    except UserError as error:
        check.problems.append(str(error))
        return
    if not needed:
        return
    from shared.data.catalogue import missing

    fetched, refused = False, set()
    for name, item in needed.items():
        if get is not None and item.kind == "embedded" and missing([item]):
            try:
                get(item.name)
                fetched = True
            except UserError as error:
                refused.add(name)
                check.problems.append(str(error))
    if fetched:
        needed = _requirements(check.todo)  # asked again: what was fetched has a place now
    check.problems += missing([item for name, item in needed.items() if name not in refused])


def _requirements(specs: list[RunSpec]) -> dict[str, Any]:
    """Name -> what the runs need, each distinct configuration asked once."""
    asked, needed = set(), {}
    for spec in specs:
        ask = getattr(importlib.import_module(f"projects.{spec.paper}"), "requirements", None)
        config = repr({key: value for key, value in spec.config.items() if key != "seed"})
        if ask is not None and config not in asked:
            asked.add(config)
            needed |= {item.name: item for item in ask(compose(config_schema(spec.paper), spec.config))}
    return needed


def _check_device(check: Preflight, plan: Plan) -> None:
    accelerator = check.todo[0].config["trainer"]["accelerator"]
    if accelerator in ("gpu", "cuda") and not check.gpus:
        check.problems.append(
            f"device: trainer.accelerator={accelerator} needs a GPU, and none is visible here. "
            "Run elsewhere, use --launcher slurm, or set trainer.accelerator=auto."
        )
    if check.gpus and check.devices > len(check.gpus):
        check.problems.append(
            f"device: each run takes {check.devices} GPUs (trainer.devices), {len(check.gpus)} are visible."
        )
    need = plan.profile.memory_gb
    if need is None:
        return
    if check.gpus:
        have, what, sharing = (
            min(gpu.memory_gb for gpu in check.gpus),
            "GPU memory",
            -(-check.jobs // len(check.gpus)),
        )
    else:
        have, what, sharing = _free_memory_gb(), "memory", check.jobs
    if have and need * sharing > have:
        check.problems.append(
            f"{what}: {sharing} run(s) at once need about {need * sharing:.1f} GB, {have:.1f} GB are there. "
            f"Use {'a smaller batch size' if sharing == 1 else 'a smaller --jobs'} or a larger machine."
        )


def _free_memory_gb() -> float:
    """Memory that can be had without swapping; 0 where the system does not say."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable")) * 1024 / 1e9
    except (OSError, StopIteration, ValueError):
        return 0.0


def _check_overrides(check: Preflight, plan: Plan) -> None:
    """A row's own setting that the command line overrides leaves equal rows: allowed, but worth a word."""
    given = {override.partition("=")[0] for override in plan.overrides}
    for axis in ("rows", "columns"):
        entries = getattr(plan.recipe, axis).values()
        varied = set().union(*(_dotted(entry.config) for entry in entries))
        if both := sorted(given & varied):
            check.notes.append(
                f"{', '.join(both)} is what tells the {axis} apart, and the command line sets it."
            )


def _dotted(config: dict, prefix: str = "") -> set[str]:
    names = set()
    for key, value in config.items():
        names |= _dotted(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}"}
    return names
