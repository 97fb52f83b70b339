"""The federated loop against what else one could run: samples a second of each, and our ratio to each.

Ours is FedAvg by the public path: FederatedModule, Trainer, FederatedData, messages as bytes, ledger. Others:
`plain` (a copy, an optimiser and a DataLoader for each client), `centralised` (the training alone), `flower`
(its simulation; needs the extra `flower`), and our engines by name. All do the same rounds of the same
workload; each repeat runs every contender once, one after the other, warm-up rounds excluded; the figures are
medians over the repeats. They count only on a machine that does nothing else.

    python scripts/benchmarks/federated.py --model mlp,cnn --batch-size 10,50 --against plain,flower
    python scripts/benchmarks/federated.py --scale
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import logging
import resource
import subprocess
import sys
import warnings
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent.parent))

import torch
from federated_workload import MODELS, Classifier, Clock, Workload, flops_per_sample, gemm_peak, train
from federated_workload import centralised as train_centralised
from federated_workload import ours as run_ours
from federated_workload import plain as run_plain
from torch.utils.data import TensorDataset

from shared.errors import UserError, fail_cleanly, suggest
from shared.federated.algorithms.scaffold import Scaffold
from shared.federated.data import FederatedData
from shared.federated.partition import Partition

ENGINES = ("sequential", "vectorized")
CONTENDERS = ("plain", "centralised", "flower", *ENGINES)
AIMS = {  # least ratio of ours to a contender's samples a second
    ("mlp", 10): {"plain": 2.2, "flower": 2.5},
    ("mlp", 50): {"plain": 2.0, "flower": 6.0},
    ("cnn", 10): {"plain": 2.0},
    ("cnn", 50): {"plain": 1.3},
}
MEGABYTE = 2**20


def seconds_of(contender: str, work: Workload, engine: str) -> float:
    """Seconds that the measured rounds of one fresh run take."""
    if contender == "ours":
        return run_ours(work, engine)
    if contender == "plain":
        return run_plain(work)
    if contender == "centralised":
        return train_centralised(work)
    if contender in ENGINES:
        return run_ours(work, contender)
    return flower(work)


def flower(work: Workload) -> float:
    """In a process of its own: Ray starts workers, and their memory goes back with them."""
    command = [sys.executable, str(HERE / "federated_flower.py"), json.dumps(asdict(work))]
    done = subprocess.run(command, capture_output=True, text=True)
    for line in done.stdout.splitlines():
        if line.startswith("{"):
            return json.loads(line)["seconds"]
    raise UserError(f"Flower's simulation failed:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")


def compare(
    work: Workload, against: Sequence[str], engine: str, repeats: int
) -> tuple[float, list[dict[str, Any]]]:
    """Our samples a second, and an entry for each contender."""
    names = ("ours", *against)
    rates: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(repeats):
        for name in names:
            rates[name].append(work.measured_samples / seconds_of(name, work, engine))
    middle = {name: median(values) for name, values in rates.items()}
    entries = [
        {
            "model": work.model,
            "batch_size": work.batch_size,
            "contender": name,
            "samples_per_second": middle[name],
            "ratio": middle["ours"] / middle[name],
        }
        for name in against
    ]
    print(f"{work.model} batch {work.batch_size}, {work.rounds} rounds, median of {repeats} (least to most):")
    for name in names:
        low, high = min(rates[name]), max(rates[name])
        label = f"ours ({engine})" if name == "ours" else name
        ratio = "" if name == "ours" else f"   ours / it {middle['ours'] / middle[name]:5.2f}"
        print(f"  {label:18} {middle[name]:9.0f} samples/s  ({low:.0f} to {high:.0f}){ratio}")
    return middle["ours"], entries


def markdown(entries: Sequence[dict[str, Any]]) -> str:
    """The figures as a table, an aim beside the ratio that it is for."""
    contenders = list(dict.fromkeys(entry["contender"] for entry in entries))
    heads = ["model, batch", "ours, samples/s", *(f"ours / {name}" for name in contenders)]
    lines = [f"| {' | '.join(heads)} |", f"|---|{'---:|' * (len(heads) - 1)}"]
    for work in dict.fromkeys((entry["model"], entry["batch_size"]) for entry in entries):
        found = {e["contender"]: e for e in entries if (e["model"], e["batch_size"]) == work}
        any_one = next(iter(found.values()))
        cells = [f"{work[0]}, {work[1]}", f"{any_one['ratio'] * any_one['samples_per_second']:,.0f}"]
        for name in contenders:
            aim = AIMS.get(work, {}).get(name)
            cells.append(f"{found[name]['ratio']:.2f}" + (f" (aim {aim})" if aim else ""))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def scale(
    work: Workload, engine: str, registered: Sequence[int], participants: Sequence[int], stateful: int
) -> dict[str, Any]:
    """Seconds a round by registered clients and by participants; memory of many stateful clients."""
    found: dict[str, Any] = {"registered": {}, "participants": {}}
    for clients in registered:
        found["registered"][clients] = run_ours(replace(work, clients=clients), engine) / work.rounds
        print(
            f"  {clients:6d} clients, {work.per_round} a round: {found['registered'][clients]:.3f} s a round"
        )
    for count in participants:
        each = replace(work, per_round=count, clients=max(count, work.clients))
        found["participants"][count] = run_ours(each, engine) / work.rounds
        print(
            f"  {each.clients:6d} clients, {count} a round: {found['participants'][count]:.3f} s a round, "
            f"{1000 * found['participants'][count] / count:.1f} ms a participant"
        )
    memory = found["memory"] = measured_alone(work.model, stateful)
    print(
        f"  {stateful} SCAFFOLD clients of the {work.model}: {memory['grown']:.0f} MB above the start; "
        f"model and states are {memory['model_and_states']:.0f} MB, so {memory['beside']:.0f} MB beside them"
    )
    return found


def measured_alone(model: str, clients: int) -> dict[str, float]:
    """`stateful_memory` in a fresh process, whose greatest size is this federation's alone."""
    code = (
        f"import sys, json; sys.path[:0] = {[str(HERE.parent.parent), str(HERE)]!r}; import federated; "
        f"print(json.dumps(federated.stateful_memory({model!r}, {clients})))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    if done.returncode:
        raise UserError(f"memory could not be measured:\n{done.stderr[-4000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def stateful_memory(model: str, clients: int) -> dict[str, float]:
    """Growth of this process's greatest resident size while every client gets a state, in MB."""
    quiet()
    images, labels = torch.randn(clients, 1, 28, 28), torch.zeros(clients, dtype=torch.int64)
    groups = [list(range(start, min(start + 10, clients))) for start in range(0, clients, 10)]

    def federation(rounds: int) -> FederatedData:
        return FederatedData(
            TensorDataset(images, labels),
            Partition([[client] for client in range(clients)]),
            rounds=rounds,
            sampler=lambda number: groups[number],
        )

    train(Scaffold(Classifier(MODELS[model]())), federation(1), Clock(0))  # what is loaded once
    before = _greatest()
    module = Scaffold(Classifier(MODELS[model]()))
    train(module, federation(len(groups)), Clock(0))
    grown = _greatest() - before
    assert len(module.states) == clients
    one = sum(value.numel() * value.element_size() for value in module.theta().values()) / MEGABYTE
    return {
        "grown": grown,
        "model_and_states": one * (clients + 1),
        "beside": grown - one * (clients + 1),
    }


def _greatest() -> float:
    """Greatest resident size of this process in MB."""
    status = Path("/proc/self/status")
    if status.exists():  # getrusage would give the parent's size at the fork, when that was greater
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024 / MEGABYTE
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / MEGABYTE


def quiet() -> None:
    warnings.filterwarnings("ignore")
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)


def listed(kind: type, known: Sequence[Any] | None = None) -> Any:
    """A parser of comma-separated values."""

    def parse(text: str) -> list[Any]:
        try:
            values = [kind(part) for part in text.split(",") if part]
        except ValueError:
            raise argparse.ArgumentTypeError(f"expected numbers, found '{text}'") from None
        for value in values:
            if known is not None and value not in known:
                names = ", ".join(map(str, known))
                hint = suggest(str(value), known)
                raise argparse.ArgumentTypeError(f"expected some of {names}; found '{value}'.{hint}")
        return values

    return parse


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=listed(str, tuple(MODELS)), default=["mlp"], metavar="mlp,cnn")
    parser.add_argument("--batch-size", type=listed(int), default=[10], metavar="10,50")
    parser.add_argument(
        "--against",
        type=listed(str, CONTENDERS),
        default=["plain", "centralised"],
        metavar="NAMES",
        help=f"contenders: {', '.join(CONTENDERS)} (default: plain,centralised)",
    )
    parser.add_argument("--engine", choices=("auto", *ENGINES), default="auto", help="ours (default: auto)")
    parser.add_argument("--rounds", type=int, default=3, help="measured rounds of a run (default: 3)")
    parser.add_argument("--warmup", type=int, default=1, help="rounds before them (default: 1)")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each contender (default: 3)")
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--per-round", type=int, default=10)
    parser.add_argument("--samples", type=int, default=600, help="of each client")
    parser.add_argument("--scale", action="store_true", help="growth with clients, and memory, instead")
    parser.add_argument("--registered", type=listed(int), default=[100, 1000, 10000], help=argparse.SUPPRESS)
    parser.add_argument("--participants", type=listed(int), default=[5, 10, 20, 40], help=argparse.SUPPRESS)
    parser.add_argument("--stateful", type=int, default=1000, help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    options = parser.parse_args()
    counts = ("rounds", "warmup", "repeats", "clients", "per_round", "samples")
    for name in counts:
        if getattr(options, name) < 1:
            raise UserError(f"--{name.replace('_', '-')} takes 1 or more, found {getattr(options, name)}.")
    if "flower" in options.against and not importlib.util.find_spec("flwr"):
        raise UserError(
            "Flower is not installed. Install it with: pip install -c constraints.txt -e '.[flower]'"
        )
    quiet()
    works = [
        Workload(
            model,
            batch_size,
            **{name: getattr(options, name) for name in counts if name != "repeats"},
        )
        for model in options.model
        for batch_size in options.batch_size
    ]
    if options.scale:
        print(f"{works[0].model} batch {works[0].batch_size}, engine {options.engine}:")
        found: Any = scale(
            works[0], options.engine, options.registered, options.participants, options.stateful
        )
    else:
        found, peak = [], gemm_peak()
        print(f"{torch.get_num_threads()} threads; GEMM peak {peak / 1e9:.0f} GFLOP/s")
        for work in works:
            rate, entries = compare(work, options.against, options.engine, options.repeats)
            cost = flops_per_sample(work)
            print(
                f"  ours reaches {rate * cost / peak:.0%} of the GEMM peak ({cost / 1e6:.2f} MFLOP a sample)"
            )
            found += entries
        print("\n" + markdown(found))
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(fail_cleanly(main))
