"""The data of a federation: rounds for the Trainer, a data set for each client."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from lightning.pytorch import LightningDataModule
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

from shared.errors import UserError
from shared.federated.partition import Partition
from shared.federated.sampling import everyone
from shared.federated.streams import TaskStream
from shared.training.seeding import generator


class Round(NamedTuple):
    """One item of the Trainer's loader. `clients` is in the sampler's order."""

    number: int
    clients: list[int]


@dataclass
class ClientData:
    """What a client method gets as `data`."""

    client: int
    round: int
    position: int  # place in the round's list
    train: Dataset
    test: Dataset | None = None
    task: int = 0
    seed: int = 0
    loading: dict[str, Any] = field(default_factory=dict)
    of_task: Callable[[int], ClientData] | None = None  # this client's data of another task

    def loader(self, split: str = "train", **changes: Any) -> Batches:
        """Batches of "train" (shuffled) or "test"; `changes` override batch_size, drop_last, collate_fn."""
        settings = self.loading | changes
        if split == "test":
            return Batches(self.test, settings.get("batch_size", 32), collate_fn=settings.get("collate_fn"))
        return Batches(self.train, shuffle=self.generator("batches"), **settings)

    def generator(self, purpose: str) -> torch.Generator:
        """A stream of this client, round and purpose, whatever else draws."""
        return generator(self.seed, "client", self.client, self.round, purpose)


class Batches:
    """Batches of a data set; slices tensors where the data are tensors, which is several times faster.

    Args:
        shuffle: the generator of the orders, one order an iteration; None keeps the data's order.

    Gives what `DataLoader(dataset, batch_size, ...)` with the default collation gives.
    """

    def __init__(
        self,
        dataset: Dataset,
        batch_size: int = 32,
        *,
        shuffle: torch.Generator | None = None,
        drop_last: bool = False,
        collate_fn: Callable[[list], Any] | None = None,
    ) -> None:
        self.dataset, self.batch_size, self.shuffle = dataset, batch_size, shuffle
        self.drop_last, self.collate_fn = drop_last, collate_fn
        self.source = None if collate_fn else tensors_of(dataset)

    def __len__(self) -> int:
        size = len(self.dataset)
        return size // self.batch_size if self.drop_last else -(-size // self.batch_size)

    def order(self) -> Tensor:
        """The places of the samples in the next iteration."""
        size = len(self.dataset)
        return torch.arange(size) if self.shuffle is None else torch.randperm(size, generator=self.shuffle)

    def rows(self) -> tuple[Tensor, ...]:
        """For each batch of the next iteration, the rows of the tensors in `source`."""
        places, order = self.source[1], self.order()
        return self._split(order if places is None else places[order])

    def _split(self, order: Tensor) -> tuple[Tensor, ...]:
        return order.split(self.batch_size)[: len(self)]

    def __iter__(self) -> Iterator[Any]:
        if self.source is not None:
            for rows in self.rows():
                yield [tensor.index_select(0, rows) for tensor in self.source[0]]
            return
        batches = [chunk.tolist() for chunk in self._split(self.order())]
        yield from DataLoader(self.dataset, batch_sampler=batches, collate_fn=self.collate_fn)


def tensors_of(dataset: Dataset) -> tuple[tuple[Tensor, ...], Tensor | None] | None:
    """The tensors behind a `TensorDataset` and the rows of a `Subset` (None: all); None for other data."""
    if type(dataset) is TensorDataset:
        return dataset.tensors, None
    if type(dataset) is Subset and type(dataset.dataset) is TensorDataset:
        return dataset.dataset.tensors, torch.as_tensor(dataset.indices, dtype=torch.int64)
    return None


class WithFields(Dataset):
    """(*sample, *fields): columns computed before, joined by place (cached features, pseudo-labels)."""

    def __init__(self, dataset: Dataset, **fields: Tensor) -> None:
        for name, column in fields.items():
            if len(column) != len(dataset):
                raise UserError(f"field '{name}' has {len(column)} rows for {len(dataset)} samples.")
        self.dataset, self.fields = dataset, fields

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        return (*self.dataset[index], *(column[index] for column in self.fields.values()))


class Rounds:
    """An iterable of `Round`s with a position that Lightning saves. Epoch e holds rounds e*n to e*n + n - 1.

    Not a `DataLoader`, so that Lightning does not deal different rounds to the ranks of one cohort.
    """

    def __init__(self, count: int, sampler: Callable[[int], Sequence[int]]) -> None:
        self.count, self.draw = count, sampler
        self.sampler = self  # where Lightning looks for `set_epoch`
        self.epoch = self._done = self._skip = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Round]:
        self._done, self._skip = self._skip, 0
        for index in range(self._done, self.count):
            self._done = index + 1
            number = self.epoch * self.count + index
            yield Round(number, [int(client) for client in self.draw(number)])

    def state_dict(self) -> dict[str, int]:
        return {"done": self._done}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self._skip = state["done"] % max(self.count, 1)


class Nothing:
    """A loader of one empty batch, which makes Lightning validate."""

    def __len__(self) -> int:
        return 1

    def __iter__(self) -> Iterator[None]:
        yield None


class FederatedData(LightningDataModule):
    """Who has what, who takes part when, and how many rounds an epoch has.

    Args:
        train: all training samples; `partition` deals them to clients.
        partition: client -> places in `train`, or a list with one such for each task of `stream`. Its hash is
            in every checkpoint; a resumed run must have the same.
        rounds: rounds an epoch (with `trainer.max_epochs=1`: all of them).
        sampler: round -> clients, a pure function (`shared.federated.sampling`); default: everyone.
        batch_size, drop_last, collate_fn: of a client's training batches.
        test: the server's test set.   public: data that the server may train on.
        client_test: (data set, partition or list of them) of the clients' own test samples.
        held_out: clients that never train and are evaluated only (`sampler` must leave them out).
        dropouts: (client, round) -> whether it vanishes after its work, before its reply
            (`sampling.dropouts`).
        keep_dropout_state: whether such a client keeps what it wrote into its state.
        stream: tasks over time (`shared.federated.streams`).
        seed: of the order of batches.

    Override `dataset` for data that do not come from one indexed set.
    """

    def __init__(
        self,
        train: Dataset,
        partition: Partition | Sequence[Partition],
        *,
        rounds: int,
        sampler: Callable[[int], Sequence[int]] | None = None,
        batch_size: int = 32,
        drop_last: bool = False,
        collate_fn: Callable[[list], Any] | None = None,
        eval_batch_size: int = 256,
        test: Dataset | None = None,
        public: Dataset | None = None,
        client_test: tuple[Dataset, Partition | Sequence[Partition]] | None = None,
        held_out: Sequence[int] = (),
        dropouts: Callable[[int, int], bool] | None = None,
        keep_dropout_state: bool = False,
        stream: TaskStream | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.rounds = rounds
        self.partitions = _each_task(partition)
        own_test = None if client_test is None else (client_test[0], _each_task(client_test[1]))
        self.sources = {"train": (train, self.partitions), "test": own_test}
        self.loading = {"batch_size": batch_size, "drop_last": drop_last, "collate_fn": collate_fn}
        self.eval_batch_size, self.server_test, self.public = eval_batch_size, test, public
        self.held_out = sorted(held_out)
        self.sampler = sampler or everyone(self.training_clients)
        self.dropouts = dropouts or (lambda client, number: False)
        self.keep_dropout_state, self.stream, self.seed = keep_dropout_state, stream, seed
        sizes = {len(own) for _, partitions in filter(None, self.sources.values()) for own in partitions}
        if len(sizes) > 1:
            raise UserError(
                f"all partitions need the same number of clients; found {', '.join(map(str, sorted(sizes)))}."
            )

    @property
    def clients(self) -> list[int]:
        return list(range(len(self.partitions[0])))

    @property
    def training_clients(self) -> list[int]:
        return [client for client in self.clients if client not in set(self.held_out)]

    def dataset(self, client: int, split: str, task: int) -> Dataset | None:
        """The samples of `client` ("train" or "test") in `task`."""
        if self.sources[split] is None:
            return None
        source, partitions = self.sources[split]
        return Subset(source, partitions[task if len(partitions) > 1 else 0][client].tolist())

    def client(self, client: int, round: int, position: int = 0, task: int | None = None) -> ClientData:
        """What the client works on in this round: the stream's task, unless one is named."""
        if task is None:
            task = self.stream.task(client, round, position) if self.stream else 0
        return ClientData(
            client,
            round,
            position,
            train=self.dataset(client, "train", task),
            test=self.dataset(client, "test", task),
            task=task,
            seed=self.seed,
            loading=self.loading,
            of_task=lambda other: self.client(client, round, position, other),
        )

    def train_dataloader(self) -> Rounds:
        return Rounds(self.rounds, self.sampler)

    def val_dataloader(self) -> Any:
        """The server's test set; one empty batch without it, so that clients are evaluated."""
        if self.server_test is None:
            return Nothing()
        return Batches(self.server_test, self.eval_batch_size, collate_fn=self.loading["collate_fn"])

    test_dataloader = val_dataloader

    def on_exception(self, exception: BaseException) -> None:
        """Called by the Trainer: a run that fails leaves no engine running."""
        engine = getattr(self.trainer.lightning_module, "engine", None)
        if hasattr(engine, "close"):
            engine.close()

    def identity(self) -> Mapping[str, Any]:
        """What must not differ when a run is resumed."""
        return {
            "clients": len(self.clients),
            "partition": "-".join(own.hash for own in self.partitions),
            "rounds": self.rounds,
        }


def _each_task(partition: Partition | Sequence[Partition]) -> list[Partition]:
    return [partition] if isinstance(partition, Partition) else list(partition)
