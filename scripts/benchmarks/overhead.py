"""What the engine costs a run outside training, and what importing a project loads.

A toy paper whose runs train for 8 steps goes through scripts/reproduce.py with few and with many runs on one
worker; the slope is the time of a run. The same fits by a bare Lightning Trainer are taken off: what is left
is the engine's (planning, store, seeding, logging, Weights & Biases). Target: below 1 s a run, and no project
loads another's extras. Figures count only on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent.parent))

from shared import paths
from shared.packaging.environment import canonical, requirement_name

IMPORTS = "import torch, lightning.pytorch"
BARE = """
import logging, sys, time, warnings
warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
from lightning.pytorch import Trainer
from projects.toy import build
from projects.toy.config import Config
from shared.training.config import compose
def fit():
    experiment = build(compose(Config))
    trainer = Trainer(max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False,
                      enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(experiment.module, datamodule=experiment.datamodule)
    trainer.test(experiment.module, datamodule=experiment.datamodule, verbose=False)
fit()
start = time.perf_counter()
for _ in range(int(sys.argv[1])):
    fit()
print((time.perf_counter() - start) / int(sys.argv[1]))
"""
LOADED = """
import sys, time
start = time.perf_counter()
__import__(sys.argv[1])
print(time.perf_counter() - start, *sorted({name.split(".")[0] for name in sys.modules}))
"""


def make_toy(root: Path) -> None:
    """A repository of links with the toy paper of the tests in it."""
    toy = paths.ROOT / "tests" / "toy"
    for name in ("shared", "scripts"):
        (root / name).symlink_to(paths.ROOT / name)
    (root / "configs" / "toy").mkdir(parents=True)
    shutil.copy(paths.CONFIGS / "base.yaml", root / "configs")
    shutil.copy(toy / "main.yaml", root / "configs" / "toy")
    shutil.copytree(toy, root / "projects" / "toy")
    (root / "projects" / "__init__.py").touch()


def call(root: Path, *command: str, **environment: str) -> tuple[float, str]:
    """Seconds and standard output of `python *command` in `root`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("WANDB", "PAPERWORKS"))}
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, *command], cwd=root, env=kept | environment, capture_output=True, text=True
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(command[:3])} failed:\n{done.stdout}\n{done.stderr}")
    return time.perf_counter() - start, done.stdout


def engine(root: Path, mode: str, seeds: int) -> dict[str, float]:
    """Seconds a run takes, by the slope from 1 to `1 + seeds` seeds of the toy's 4 cells, and the rest."""

    def table(count: int) -> float:
        store = {"PAPERWORKS_RUNS": str(root / f"runs-{mode}-{count}")}
        command = ["scripts/reproduce.py", "toy", "--jobs", "1", "--seeds", str(count)]
        return call(root, *command, f"wandb.mode={mode}", **store)[0]

    few, many = table(1), table(1 + seeds)
    each = (many - few) / (4 * seeds)
    return {"run": each, "start": few - 4 * each}


def imports() -> dict[str, dict[str, object]]:
    """For each project: seconds to import it and the packages of any extra that this loads."""
    extras = tomllib.loads((paths.ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    providers = packages_distributions()
    result = {}
    for paper in paths.papers():
        own = set(map(requirement_name, extras.get(canonical(paper), [])))
        others = {
            requirement_name(entry)
            for other in paths.papers()
            if other != paper
            for entry in extras.get(canonical(other), [])
        }
        seconds, *modules = call(paths.ROOT, "-c", LOADED, f"projects.{paper}")[1].split()
        loaded = {canonical(name) for module in modules for name in providers.get(module, ())}
        result[paper] = {
            "seconds": float(seconds),
            "own_extras": sorted(loaded & own),
            "foreign_extras": sorted(loaded & (others - own)),
        }
    return result


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--seeds", type=int, default=6, help="seeds by which the long table is longer (4 runs each)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        make_toy(root)
        libraries = call(root, "-c", IMPORTS)[0]
        bare = float(call(root, "-c", BARE, str(4 * options.seeds))[1])
        modes = {mode: engine(root, mode, options.seeds) for mode in ("disabled", "offline")}
    record = {"imports_torch_lightning": libraries, "bare_fit": bare, "runs": 4 * options.seeds, "modes": {}}
    print(f"importing torch and Lightning   {libraries:6.2f} s")
    print(f"the same training, bare         {bare:6.2f} s a run")
    for mode, figures in modes.items():
        record["modes"][mode] = figures | {"engine": figures["run"] - bare}
        print(
            f"wandb {mode:9} a run {figures['run']:5.2f} s, of it the engine {figures['run'] - bare:5.2f} s; "
            f"once a table {figures['start']:5.2f} s"
        )
    record["imports"] = imports()
    for paper, found in record["imports"].items():
        own, foreign = (", ".join(found[f"{kind}_extras"]) or "none" for kind in ("own", "foreign"))
        print(
            f"import projects.{paper}: {found['seconds']:.2f} s; extras loaded: own {own}; foreign {foreign}"
        )
    if options.json:
        options.json.write_text(json.dumps(record, indent=1) + "\n")
    return int(any(found["foreign_extras"] for found in record["imports"].values()))


if __name__ == "__main__":
    sys.exit(main())
