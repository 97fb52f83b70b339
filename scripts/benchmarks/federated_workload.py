"""The workload of `federated.py` and the contenders that run in its process.

100 clients with 600 images of 28x28 each, 10 clients a round, one local epoch of SGD at learning rate 0.01.
Every contender returns the seconds of its measured rounds; its warm-up rounds come before and do not count.
"""

from __future__ import annotations

import copy
import functools
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.flop_counter import FlopCounterMode

from shared.federated.algorithms.fedavg import FedAvg
from shared.federated.data import FederatedData
from shared.federated.partition import Partition
from shared.federated.sampling import uniform

LEARNING_RATE = 0.01


@dataclass(frozen=True)
class Workload:
    model: str = "mlp"
    batch_size: int = 10
    rounds: int = 3  # measured
    warmup: int = 1
    clients: int = 100
    per_round: int = 10
    samples: int = 600  # of each client

    @property
    def measured_samples(self) -> int:
        return self.rounds * self.per_round * self.samples


@functools.lru_cache(maxsize=1)
def dataset(clients: int, samples: int) -> tuple[Tensor, Tensor]:
    """Images (clients, samples, 1, 28, 28) and labels (clients, samples), made once a process."""
    stream = torch.Generator().manual_seed(0)
    images = torch.randn(clients, samples, 1, 28, 28, generator=stream)
    return images, torch.randint(0, 10, (clients, samples), generator=stream)


class MLP(nn.Sequential):
    """784-200-10."""

    def __init__(self) -> None:
        super().__init__(nn.Flatten(), nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 10))


class CNN(nn.Sequential):
    """Two 5x5 convolutions of 32 and 64 channels with pooling, 512 hidden units (McMahan et al. 2017)."""

    def __init__(self) -> None:
        super().__init__(
            *(nn.Conv2d(1, 32, 5), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(32, 64, 5), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Flatten(), nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 10)),
        )


MODELS = {"mlp": MLP, "cnn": CNN}


class Classifier(LightningModule):
    """An ordinary module; nothing in it knows of federations."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return F.cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=LEARNING_RATE)


class Clock(Callback):
    """Seconds from the end of the last warm-up round to the end of the last round."""

    def __init__(self, warmup: int) -> None:
        self.warmup, self.times = warmup, []

    def on_train_batch_end(self, *_: Any) -> None:
        self.times.append(time.perf_counter())

    @property
    def seconds(self) -> float:
        return self.times[-1] - self.times[self.warmup - 1]


def train(module: Any, data: FederatedData, clock: Clock) -> None:
    """Through the ordinary Trainer, on the CPU."""
    trainer = Trainer(
        accelerator="cpu",
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        limit_val_batches=0,
        callbacks=[clock],
    )
    trainer.fit(module, datamodule=data)


def ours(work: Workload, engine: str, data_of: int = 100) -> float:
    """FedAvg by the public path: Trainer, FederatedData, messages as bytes, ledger.

    Clients past `data_of` share others' samples, so that a small machine can register thousands.
    """
    images, labels = dataset(min(data_of, work.clients), work.samples)
    places = [torch.arange(work.samples) + c % len(images) * work.samples for c in range(work.clients)]
    federation = FederatedData(
        TensorDataset(images.flatten(0, 1), labels.flatten()),
        Partition(places),
        rounds=work.warmup + work.rounds,
        sampler=uniform(work.clients, work.per_round, seed=0),
        batch_size=work.batch_size,
    )
    module = FedAvg(Classifier(MODELS[work.model]()), engine=engine)
    clock = Clock(work.warmup)
    train(module, federation, clock)
    assert module.ledger.total(direction="up") > 0
    return clock.seconds


def sgd_step(net: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> None:
    loss = F.cross_entropy(net(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def plain(work: Workload) -> float:
    """What one writes by hand: a copy, an optimiser and a DataLoader for each client, then a mean."""
    images, labels = dataset(work.clients, work.samples)
    server = MODELS[work.model]()

    def play_round() -> None:
        trained = []
        for client in torch.randperm(work.clients)[: work.per_round].tolist():
            net = copy.deepcopy(server)
            optimizer = torch.optim.SGD(net.parameters(), LEARNING_RATE)
            own = list(zip(images[client], labels[client], strict=True))
            for x, y in DataLoader(own, work.batch_size, shuffle=True):
                sgd_step(net, optimizer, x, y)
            trained.append(net)
        with torch.no_grad():
            for mine, *theirs in zip(
                server.parameters(), *(net.parameters() for net in trained), strict=True
            ):
                mine.copy_(torch.stack(theirs).mean(0))

    return _timed(work, play_round)


def centralised(work: Workload) -> float:
    """One model, ready-made batches: the training alone."""
    images, labels = (part.flatten(0, 1) for part in dataset(work.clients, work.samples))
    net = MODELS[work.model]()
    optimizer = torch.optim.SGD(net.parameters(), LEARNING_RATE)
    steps = work.per_round * -(-work.samples // work.batch_size)

    def play_round() -> None:
        for step in range(steps):
            at = step * work.batch_size % (len(images) - work.batch_size)
            sgd_step(net, optimizer, images[at : at + work.batch_size], labels[at : at + work.batch_size])

    return _timed(work, play_round)


def _timed(work: Workload, play_round: Callable[[], None]) -> float:
    for _ in range(work.warmup):
        play_round()
    started = time.perf_counter()
    for _ in range(work.rounds):
        play_round()
    return time.perf_counter() - started


def flops_per_sample(work: Workload) -> float:
    """Floating point operations of forward and backward, as torch counts those of its matrix products."""
    net, count = MODELS[work.model](), work.batch_size
    with FlopCounterMode(display=False) as counter:
        F.cross_entropy(net(torch.randn(count, 1, 28, 28)), torch.zeros(count, dtype=torch.int64)).backward()
    return counter.get_total_flops() / count


def gemm_peak(size: int = 2048, tries: int = 8) -> float:
    """FLOP/s of the machine's best float32 product of two square matrices."""
    a, b = torch.randn(size, size), torch.randn(size, size)
    best = float("inf")
    for _ in range(tries):
        started = time.perf_counter()
        torch.mm(a, b)
        best = min(best, time.perf_counter() - started)
    return 2 * size**3 / best
