"""`engine="flower"`: Flower's simulation on this machine, a virtual node for each client, actors of Ray.

The Trainer stays in the main thread; Flower runs beside it, and its ServerApp does nothing but lend its grid.
"""

from __future__ import annotations

import functools
import logging
import os
import queue
import sys
import tempfile
import threading
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ray
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation

from shared.federated.engines.flower.client import client_app, number_of
from shared.federated.engines.flower.server import Flower
from shared.federated.engines.flower.site import Parts, Site
from shared.federated.module import FederatedModule
from shared.federated.node import Node, Outcome, Task

READY = 180.0  # seconds that Ray and all virtual nodes may take to start


class Simulation(Flower):
    """Started by the first call, stopped when the module is torn down.

    Args:
        cores: clients at once, on one core each; default: all of the machine.
        timeout: see `Flower`.

    Client states are files: in the module's `spill` folder, in the run's own (`artifacts/clients`, from where
    a resumed run goes on), or, without either, in a temporary one.
    """

    def __init__(self, cores: int | None = None, timeout: float = 600.0) -> None:
        super().__init__(None, timeout=timeout, wait=READY)
        self.cores = cores or os.cpu_count() or 1
        self._stop, self._thread = threading.Event(), None
        self._scratch: tempfile.TemporaryDirectory | None = None

    def attach(self, module: FederatedModule) -> None:
        spill = module.states.spill
        super().attach(module)
        if spill is not None:
            self.folder = Path(spill)
        elif module.artifacts is not None:
            self.folder = module.artifacts / "clients"
        elif self._scratch is None:
            self._scratch = tempfile.TemporaryDirectory(prefix="clients-")
            self.folder = Path(self._scratch.name)

    def run(self, tasks: Sequence[Task], node: Node) -> list[Outcome]:
        if self._thread is None:
            self._start()
        return super().run(tasks, node)

    def close(self) -> None:
        """Stop Flower and Ray. A later call starts them again; states are kept."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        self._thread, self.grid = None, None

    def _start(self) -> None:
        for name in ("flwr", "ray"):
            logging.getLogger(name).setLevel(logging.ERROR)
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        path = os.pathsep.join(entry for entry in sys.path if entry)
        ray.init(
            num_cpus=self.cores,
            num_gpus=0,
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
            runtime_env={"env_vars": {"PYTHONPATH": path}},
        )
        self.node_of, self._seen, self._asked, self._waited = {}, set(), {}, False
        self._stop = threading.Event()
        news: queue.Queue[Grid | BaseException] = queue.Queue()
        clients = len(self.parts.data.clients)
        arguments = (ray.put(self.parts), str(self.folder.absolute()), clients, self._stop, news)
        self._thread = threading.Thread(target=_simulate, args=arguments, daemon=True, name="flower")
        self._thread.start()
        self.grid = news.get(timeout=READY)
        if isinstance(self.grid, BaseException):
            failure, self.grid = self.grid, None
            self.close()
            raise RuntimeError(f"Flower's simulation did not start: {failure}") from failure

    def _check(self) -> None:
        if self._thread is None or not self._thread.is_alive():
            raise RuntimeError("Flower's simulation ended before its time; see its log above.")


def _simulate(parts: Any, folder: str, clients: int, stop: threading.Event, news: queue.Queue) -> None:
    server = ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        news.put(grid)
        stop.wait()

    def site(context: Context) -> Site:
        return Site(number_of(context), Path(folder), _fetch(parts))

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            run_simulation(
                server,
                client_app(site),
                num_supernodes=clients,
                backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0}},
            )
    except BaseException as error:  # of this thread; told to the one that waits
        news.put(error)


@functools.lru_cache(maxsize=1)
def _fetch(parts: ray.ObjectRef) -> Parts:
    """Once for each of Ray's workers."""
    return ray.get(parts)
