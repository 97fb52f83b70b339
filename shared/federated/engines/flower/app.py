"""A federation in deployment: `server` and `client` of a Flower app folder made by `scripts/flower_app.py`.

Both build the same project from the same configuration, which travels in the app's run configuration. What is
a site's own comes from `--node-config`: `partition-id` (which client it is), and if need be `data-root`,
`state-dir`, `device` and `secret`.
"""

from __future__ import annotations

import functools
import importlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from shared import paths
from shared.errors import UserError
from shared.federated.engines.flower.client import client_app, number_of

if TYPE_CHECKING:
    from shared.federated.engines.flower.site import Parts, Site
    from shared.training.experiment import Experiment

SETTINGS = {
    "paper": "",
    "config": "",
    "run": "",
    "out": "",
    "timeout": 600.0,
    "wait": 120.0,
    "on-bad-reply": "exclude",
}


def composed(paper: str, text: str) -> Any:
    """The configuration of `paper` from its JSON."""
    from shared.training.config import compose

    schema = importlib.import_module(f"projects.{paper}.config").Config
    return compose(schema, json.loads(text))


def built(paper: str, config: Any) -> Experiment:
    """The project's experiment.

    Raises:
        UserError: it is not a federation.
    """
    from shared.federated.data import FederatedData
    from shared.federated.module import FederatedModule

    experiment = importlib.import_module(f"projects.{paper}").build(config)
    module, data = experiment.module, experiment.datamodule
    if not isinstance(module, FederatedModule) or not isinstance(data, FederatedData):
        raise UserError(
            f"{paper} built a {type(module).__name__} with a {type(data).__name__}; Flower runs a "
            "FederatedModule with a FederatedData."
        )
    return experiment


def serve(grid: Grid, context: Context) -> None:
    """The whole run, as `run_experiment` does it: it resumes, and writes history.csv and metrics.json."""
    from shared.federated.engines.flower.server import Flower
    from shared.federated.module import POLICIES
    from shared.training.experiment import run_experiment

    settings = {name: context.run_config.get(name, default) for name, default in SETTINGS.items()}
    paper, run, policy = settings["paper"], settings["run"], settings["on-bad-reply"]
    if policy not in POLICIES:
        raise UserError(f"on-bad-reply takes {' or '.join(POLICIES)}, found '{policy}'.")
    config = composed(paper, settings["config"])
    folder = Path(settings["out"]) if settings["out"] else paths.runs_dir() / paper / "flower" / run
    folder.mkdir(parents=True, exist_ok=True)

    def build(config: Any) -> Experiment:
        experiment = built(paper, config)
        experiment.module.on_bad_reply = policy
        experiment.module.engine = Flower(
            grid, timeout=float(settings["timeout"]), wait=float(settings["wait"]), run=run
        )
        return experiment

    metrics = run_experiment(build, config, folder, group=paper, name=run)
    partial = folder / "metrics.json.partial"
    partial.write_text(json.dumps(metrics, indent=1) + "\n")
    partial.replace(folder / "metrics.json")


def site(context: Context) -> Site:
    """What the node of `context` has."""
    from shared.federated.engines.flower.site import Site

    settings, own = context.run_config, context.node_config
    folder = own.get("state-dir") or paths.cache_dir() / "flower"
    return Site(
        number_of(context),
        Path(str(folder)).expanduser(),
        _parts(str(settings["paper"]), str(settings["config"]), str(own.get("data-root", ""))),
        secret=str(own.get("secret", "")),
        device=str(own.get("device", "cpu")),
    )


@functools.lru_cache(maxsize=1)
def _parts(paper: str, text: str, data_root: str) -> Parts:
    from shared.federated.engines.flower.site import Parts
    from shared.training.seeding import seed_run

    config = composed(paper, text)
    if data_root:
        config.data.root = data_root
    seed_run(config.seed)
    experiment = built(paper, config)
    experiment.datamodule.prepare_data()
    experiment.datamodule.setup("fit")
    return Parts.of(experiment.module, experiment.datamodule)


server = ServerApp()
server.main()(serve)
client = client_app(site)
