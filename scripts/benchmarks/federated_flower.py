"""Flower's own FedAvg on the workload of `federated.py`: its simulation on Ray, one actor a core.

Written with NumPyClient and a Strategy, which ran faster here than the message API's FedAvg. A process of its
own; prints one JSON object with the seconds between the aggregations that end the last warm-up round and the
last round, and Flower's version.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent.parent))
os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE), str(HERE.parent.parent)])  # Ray's workers look there
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

from shared.federated.engines import flower

flower.require()

import flwr
import torch
from federated_workload import LEARNING_RATE, MODELS, Workload, dataset, sgd_step
from flwr.client import ClientApp, NumPyClient
from flwr.common import Context, ndarrays_to_parameters
from flwr.server import ServerApp, ServerAppComponents, ServerConfig
from flwr.server.strategy import FedAvg
from flwr.simulation import run_simulation


class Client(NumPyClient):
    def __init__(self, work: Workload, client: int) -> None:
        self.work = work
        self.images, self.labels = (part[client] for part in dataset(work.clients, work.samples))

    def fit(self, parameters: list[Any], config: dict[str, Any]) -> tuple[list[Any], int, dict]:
        net = MODELS[self.work.model]()
        for own, value in zip(net.parameters(), parameters, strict=True):
            own.data = torch.tensor(value)
        optimizer = torch.optim.SGD(net.parameters(), LEARNING_RATE)
        step = self.work.batch_size
        for at in range(0, self.work.samples, step):
            sgd_step(net, optimizer, self.images[at : at + step], self.labels[at : at + step])
        return [own.detach().numpy() for own in net.parameters()], self.work.samples, {}


def simulate(work: Workload) -> float:
    """Seconds of the measured rounds."""
    times: list[float] = []

    class Timed(FedAvg):
        def aggregate_fit(self, *arguments: Any) -> Any:
            result = super().aggregate_fit(*arguments)
            times.append(time.perf_counter())
            return result

    def server(context: Context) -> ServerAppComponents:
        start = [own.detach().numpy() for own in MODELS[work.model]().parameters()]
        strategy = Timed(
            fraction_fit=work.per_round / work.clients,
            fraction_evaluate=0.0,
            min_fit_clients=work.per_round,
            min_available_clients=work.clients,
            initial_parameters=ndarrays_to_parameters(start),
        )
        return ServerAppComponents(
            strategy=strategy, config=ServerConfig(num_rounds=work.warmup + work.rounds)
        )

    run_simulation(
        ServerApp(server_fn=server),
        ClientApp(lambda context: Client(work, int(context.node_config["partition-id"])).to_client()),
        num_supernodes=work.clients,
        backend_config={
            "client_resources": {"num_cpus": 1, "num_gpus": 0},
            "init_args": {"num_cpus": os.cpu_count(), "include_dashboard": False},
        },
    )
    return times[-1] - times[work.warmup - 1]


if __name__ == "__main__":
    seconds = simulate(Workload(**json.loads(sys.argv[1])))
    print(json.dumps({"seconds": seconds, "version": flwr.__version__}))
