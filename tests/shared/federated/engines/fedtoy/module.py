"""The toy's model and data; a client stalls for ever where its environment says so."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from shared.federated.algorithms.fedavg import FedAvg
from shared.federated.algorithms.scaffold import Scaffold
from shared.federated.data import FederatedData
from shared.federated.partition import Partition

ALGORITHMS = {"fedavg": FedAvg, "scaffold": Scaffold}
SIZES = (24, 16, 20)


class Net(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3))

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return F.cross_entropy(self.net(batch[0]), batch[1])

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val/acc", (self.net(batch[0]).argmax(1) == batch[1]).float().mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Stalling(FederatedData):
    """In round 1 a process that finds the file $STALL/armed leaves $STALL/stalled beside it, and hangs."""

    def client(self, client: int, round: int, *rest: Any, **more: Any) -> Any:
        folder = Path(os.environ.get("STALL", "."))
        if round == 1 and (folder / "armed").exists():
            (folder / "stalled").touch()
            time.sleep(3600)
        return super().client(client, round, *rest, **more)


def federation(algorithm: str, seed: int, lost: int) -> tuple[Any, FederatedData]:
    """`lost`: the round from which client 2 does not answer any more; -1 for never."""
    stream = torch.Generator().manual_seed(1)
    x = torch.randn(sum(SIZES), 5, generator=stream)
    samples = TensorDataset(x, x[:, :3].argmax(1))
    parts = Partition([part.numpy() for part in torch.arange(sum(SIZES)).split(SIZES)])
    data = Stalling(
        samples,
        parts,
        rounds=3,
        batch_size=8,
        test=samples,
        seed=seed,
        dropouts=lambda client, round: client == 2 and 0 <= lost <= round,
    )
    return ALGORITHMS[algorithm](Net(), seed=seed, engine="sequential"), data
