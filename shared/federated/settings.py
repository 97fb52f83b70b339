"""The experiment that the config of a federated project describes.

A project's `Config` extends `FederatedConfig` (of `shared.federated.config`, which is light to import); its
`build` makes the module, calls `federated_data` and returns `experiment(module, data, config)`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import Dataset, Subset, TensorDataset

from shared.errors import UserError, suggest
from shared.federated import partition as partitions
from shared.federated import sampling
from shared.federated.config import PARTITIONS, FederatedConfig, FederationConfig
from shared.federated.data import FederatedData
from shared.federated.module import FederatedModule
from shared.federated.partition import Partition
from shared.federated.progress import Progress
from shared.training.experiment import Experiment
from shared.training.seeding import derive_seed

__all__ = [
    "FederatedConfig",
    "FederationConfig",
    "experiment",
    "federated_data",
    "labels_of",
    "partition_of",
    "validation_places",
]


def experiment(
    module: FederatedModule,
    data: FederatedData,
    config: Any,
    *,
    watch: Sequence[str] = ("val/accuracy",),
    scale: float = 1.0,
    last: int = 10,
) -> Experiment:
    """The run: `module` on `data`, with the metrics of `Progress` for each metric in `watch`.

    `scale` and `last` are its arguments; `federation.targets` belong to the first metric.
    """
    targets = [config.federation.targets, *[()] * len(watch)]
    followed = [
        Progress(name, own, scale=scale, last=last) for name, own in zip(watch, targets, strict=False)
    ]
    return Experiment(module, data, followed)


def federated_data(
    train: Dataset,
    test: Dataset | None,
    config: FederationConfig,
    seed: int,
    *,
    partition: Partition | None = None,
    **settings: Any,
) -> FederatedData:
    """The federation that `config` describes.

    Args:
        train, test: data sets of (input, label) with labels in `labels` or as the last tensor.
        seed: of the run: sampling, batches, and the partition unless `partition_seed` is given.
        partition: a deal of the project's own, in place of the one that `config.partition` names.
        settings: further arguments of `FederatedData` (dropouts, public, collate_fn, ...).

    Raises:
        UserError: settings that do not go together.
    """
    _check(config, len(train))
    labels = labels_of(train)
    dealt = partition or partition_of(labels, config, seed)
    if config.validation_images:
        test = Subset(_plain(train), validation_places(len(labels), config.validation_images).tolist())
    if config.client_test:
        dealt, own = dealt.split(config.client_test, seed=_partition_seed(config, seed))
        settings.setdefault("client_test", (_plain(train), own))
    settings.setdefault("sampler", sampling.uniform(config.clients, config.per_round, seed=seed))
    return FederatedData(
        train, dealt, rounds=config.rounds, batch_size=config.batch_size, test=test, seed=seed, **settings
    )


def partition_of(labels: Any, config: FederationConfig, seed: int) -> Partition:
    """The clients' places among all `labels` (N,), with `train_images` and `validation_images` left out.

    `label_count` gives each client `labels_per_client` classes, `shards` as many shards of sorted labels;
    `domain` makes a client of each distinct label (pass the domains as `labels`); `file:<path>` reads what
    `Partition.save` wrote.
    """
    values = np.asarray(labels)
    if config.partition.startswith("file:"):
        return _from_file(Path(config.partition.removeprefix("file:")).expanduser(), config, len(values))
    own = _partition_seed(config, seed)
    places = _pool(len(values), config, own)
    dealt = _maker(config)(values[places], own)
    if len(dealt) != config.clients:
        raise UserError(f"the partition has {len(dealt)} clients, federation.clients is {config.clients}.")
    return Partition([places[mine] for mine in dealt.places])


def validation_places(samples: int, count: int) -> np.ndarray:
    """The training images that judge settings: the same for every seed and partition, (count,) ascending."""
    stream = np.random.default_rng(derive_seed("validation", samples))
    return np.sort(stream.permutation(samples)[:count])


def labels_of(dataset: Dataset) -> np.ndarray:
    """Labels (N,) of a data set: its `labels`, or the last tensor of a `TensorDataset`."""
    if isinstance(dataset, TensorDataset):
        return dataset.tensors[-1].numpy()
    if hasattr(dataset, "labels"):
        return np.asarray(dataset.labels)
    raise UserError(f"{type(dataset).__name__} has no labels to deal by: give it an attribute `labels`.")


def _maker(config: FederationConfig) -> Callable[[np.ndarray, int], Partition]:
    n, alpha, each = config.clients, config.alpha, config.labels_per_client
    makers: dict[str, Callable[[np.ndarray, int], Partition]] = {
        "iid": lambda y, s: partitions.iid(len(y), n, seed=s),
        "dirichlet": lambda y, s: partitions.dirichlet(y, n, alpha, seed=s, min_size=config.min_size),
        "balanced_dirichlet": lambda y, s: partitions.balanced_dirichlet(y, n, alpha, seed=s),
        "label_count": lambda y, s: partitions.classes_per_client(y, n, each, seed=s),
        "shards": lambda y, s: partitions.shards(y, n, each, seed=s),
        "domain": lambda y, s: partitions.by_key(y),
    }
    if config.partition not in makers:
        raise UserError(
            f"federation.partition takes {', '.join(PARTITIONS)}; found '{config.partition}'."
            + suggest(config.partition, makers)
        )
    return makers[config.partition]


def _pool(samples: int, config: FederationConfig, seed: int) -> np.ndarray:
    """The places that are dealt, ascending."""
    places = np.arange(samples)
    if config.validation_images:
        places = np.setdiff1d(places, validation_places(samples, config.validation_images))
    if config.train_images:
        stream = np.random.default_rng(derive_seed(seed, "train_images"))
        places = np.sort(stream.permutation(places)[: config.train_images])
    return places


def _from_file(path: Path, config: FederationConfig, samples: int) -> Partition:
    found = Partition.load(path)
    highest = max((int(own.max()) for own in found.places if len(own)), default=-1)
    if len(found) != config.clients or highest >= samples:
        raise UserError(
            f"{path} deals samples up to {highest} to {len(found)} clients; expected {config.clients} "
            f"clients and samples below {samples}."
        )
    return found


def _check(config: FederationConfig, samples: int) -> None:
    if not 1 <= config.evaluate_every <= config.rounds or config.rounds % config.evaluate_every:
        raise UserError(
            f"federation.rounds={config.rounds} is no multiple of evaluate_every={config.evaluate_every}: "
            "the last round would not be evaluated. Change one of them."
        )
    if not 0 <= config.client_test < 1:
        raise UserError(f"federation.client_test is a share in 0 .. 1, found {config.client_test}.")
    left = samples - config.validation_images
    if not 0 <= config.train_images <= left or left < 1:
        raise UserError(
            f"federation.train_images={config.train_images} and validation_images={config.validation_images} "
            f"need more than the {samples} training images there are."
        )


def _plain(dataset: Dataset) -> Dataset:
    """The data set without augmentation."""
    return dataset.normalised() if hasattr(dataset, "normalised") else dataset


def _partition_seed(config: FederationConfig, seed: int) -> int:
    return seed if config.partition_seed is None else config.partition_seed
