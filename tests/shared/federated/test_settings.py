"""From a config to a federation, and the metrics of its run: what they say, and exact over a resume."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, TensorDataset

from shared.data.images import ImageDataset, ImageSet, crop_and_flip
from shared.errors import UserError
from shared.federated.algorithms.fedavg import FedAvg
from shared.federated.classifier import ImageClassifier
from shared.federated.config import FederatedConfig, FederationConfig
from shared.federated.local import LocalTraining
from shared.federated.partition import Partition
from shared.federated.progress import Progress, label
from shared.federated.settings import experiment, federated_data, labels_of, partition_of, validation_places
from shared.training.config import base_layer, compose, fingerprint, resolved
from shared.training.experiment import Interrupted, run_experiment
from shared.training.tracking import read_history


@dataclass
class Config(FederatedConfig):
    lr: float = 0.05


def images(count: int = 240) -> ImageSet:
    """Four classes told apart by which quarter of a 4 x 4 image is bright."""
    stream = torch.Generator().manual_seed(3)
    labels = torch.arange(count) % 4
    pixels = torch.randint(0, 120, (count, 1, 4, 4), generator=stream)
    for quarter in range(4):
        rows, columns = 2 * (quarter // 2), 2 * (quarter % 2)
        pixels[labels == quarter, :, rows : rows + 2, columns : columns + 2] += 90
    return ImageSet(pixels.to(torch.uint8), labels, 4)


def dataset(count: int = 240) -> TensorDataset:
    return ImageDataset(images(count), [0.3], [0.3]).normalised()


SETTINGS = {
    "clients": 6,
    "per_round": 3,
    "rounds": 6,
    "evaluate_every": 2,
    "batch_size": 10,
    "local_epochs": 1,
}
SETTINGS |= {"engine": "sequential", "min_size": 5, "targets": [0.5, 1.01]}


def settings(*overrides: str) -> Config:
    layer = {"federation": SETTINGS, "wandb": {"mode": "disabled"}, "trainer": {"accelerator": "cpu"}}
    return compose(Config, base_layer(), layer, overrides=overrides)


def build(config: Config):
    net = nn.Sequential(nn.Flatten(), nn.Linear(16, 4))
    data = federated_data(dataset(), dataset(80), config.federation, config.seed)
    module = FedAvg(
        ImageClassifier(net, lr=config.lr),
        training=LocalTraining(max_epochs=config.federation.local_epochs),
        targets=("personal",) if config.federation.client_test else (),
        engine=config.federation.engine,
        seed=config.seed,
    )
    watch = ("val/accuracy", "personal/val/accuracy") if config.federation.client_test else ("val/accuracy",)
    return experiment(module, data, config, watch=watch, scale=100, last=2)


def test_the_trainer_follows_the_federation() -> None:
    config = settings("federation.evaluate_every=3")
    trainer = resolved(config)["trainer"]
    assert trainer["max_epochs"] == 1 and trainer["val_check_interval"] == 3
    assert fingerprint(config) != fingerprint(settings())
    assert resolved(settings("trainer.val_check_interval=2"))["trainer"]["val_check_interval"] == 2


def curve(folder: Path, name: str) -> list[tuple[int, float]]:
    return [(step, value) for step, found, value in read_history(folder / "history.csv") if found == name]


def test_metrics_are_those_of_the_curve_and_of_the_messages(tmp_path: Path) -> None:
    metrics = run_experiment(build, settings(), tmp_path, group="g", name="n")
    logged, accuracy = curve(tmp_path, "val/accuracy"), curve(tmp_path, "last/accuracy")
    assert [step for step, _ in accuracy] == [2, 4, 6]  # rounds; Lightning's own rows count them from 0
    accuracy = [(step, value / 100) for step, value in accuracy]
    assert [value for _, value in accuracy] == pytest.approx([value for _, value in logged])
    values = [value for _, value in accuracy]
    assert metrics["last/accuracy"] == pytest.approx(100 * values[-1])
    assert metrics["best/accuracy"] == pytest.approx(100 * max(values))
    assert metrics["last2/accuracy"] == pytest.approx(50 * (values[-2] + values[-1]))
    assert metrics["test/accuracy"] == pytest.approx(values[-1])  # the same model on the same images
    assert metrics["test/accuracy"] > 0.6  # four classes
    up = dict(curve(tmp_path, "round/up_bytes"))
    assert metrics["bytes_up"] == sum(up.values()) == metrics["total/up_bytes"]
    assert metrics["mb_down"] == pytest.approx(metrics["total/down_bytes"] / 1e6)
    first = next(step for step, value in accuracy if value >= 0.5)
    assert metrics["rounds_to_50"] == first and metrics["reached_50"] == 1
    steps = [step for step in up if step < first]
    assert len(steps) == first and metrics["bytes_up_to_50"] == sum(up[step] for step in steps)
    assert metrics["mb_to_50"] == pytest.approx(
        (metrics["bytes_up_to_50"] + metrics["bytes_down_to_50"]) / 1e6
    )
    assert metrics["reached_101"] == 0 and metrics["rounds_to_101"] == 6  # a lower bound
    assert metrics["bytes_up_to_101"] == metrics["bytes_up"]


def test_metrics_are_exact_over_a_resume(tmp_path: Path) -> None:
    config = settings("federation.client_test=0.25")
    straight = run_experiment(build, config, tmp_path / "straight", group="g", name="n")
    assert straight["best/personal/accuracy"] > 0
    for stop_after in (1, 3, 4):
        folder, calls = tmp_path / str(stop_after), iter(range(1000))
        stop = lambda calls=calls, limit=stop_after: next(calls) >= limit  # noqa: E731
        with pytest.raises(Interrupted):
            run_experiment(build, config, folder, group="g", name="n", stop=stop)
        assert run_experiment(build, config, folder, group="g", name="n") == straight
        for name in ("last/accuracy", "val/accuracy", "bytes_up", "rounds_to_50"):
            assert curve(folder, name) == curve(tmp_path / "straight", name)


def test_a_first_crossing_counts_and_names_say_the_target() -> None:
    progress = Progress(targets=(0.5,))
    progress.values, progress.reached = [0.6, 0.4], {"50": [1, 10, 20]}
    found = progress.summary([2, 100, 200])
    assert (found["rounds_to_50"], found["bytes_up_to_50"], found["reached_50"]) == (1, 10, 1)
    assert found["last10/accuracy"] == pytest.approx(0.5) and found["best/accuracy"] == 0.6
    assert label(0.8) == "80" and label(0.855) == "85.5"
    with pytest.raises(UserError, match="no evaluation logged 'val/top5'; logged: val/accuracy"):
        Progress("val/top5").on_validation_end(FakeTrainer(), None)


class FakeTrainer:
    sanity_checking, callback_metrics = False, {"val/accuracy": torch.tensor(0.5)}
    state = type("State", (), {"fn": "fit"})


# Partitions.

LABELS = np.arange(240) % 4


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("iid", {}),
        ("dirichlet", {"alpha": 0.5}),
        ("balanced_dirichlet", {"alpha": 0.5}),
        ("label_count", {"labels_per_client": 2}),
        ("shards", {"labels_per_client": 2}),
        ("domain", {"clients": 4}),
    ],
)
def test_every_partition_leaves_out_what_is_left_out(name: str, more: dict) -> None:
    config = FederationConfig(partition=name, **({"clients": 6, "min_size": 1} | more))
    whole = partition_of(LABELS, config, seed=1)
    assert len(whole) == config.clients and sorted(np.concatenate(whole.places).tolist()) == list(range(240))
    assert partition_of(LABELS, config, seed=1).hash == whole.hash
    config.train_images, config.validation_images = 120, 40
    part = np.concatenate(partition_of(LABELS, config, seed=1).places)
    assert len(set(part.tolist())) == len(part) == 120
    assert not set(part.tolist()) & set(validation_places(240, 40).tolist())


def test_what_kinds_of_skew_mean() -> None:
    two = partition_of(LABELS, FederationConfig(partition="label_count", clients=6, labels_per_client=2), 0)
    assert ((two.counts(LABELS) > 0).sum(1) == 2).all()
    domains = partition_of(LABELS, FederationConfig(partition="domain", clients=4), 0)
    assert ((domains.counts(LABELS) > 0).sum(1) == 1).all()
    even = partition_of(LABELS, FederationConfig(partition="balanced_dirichlet", clients=6, alpha=0.1), 0)
    assert set(even.sizes) == {40}


def test_seeds_of_the_partition() -> None:
    free, fixed = FederationConfig(clients=6), FederationConfig(clients=6, partition_seed=7)
    assert partition_of(LABELS, free, 0).hash != partition_of(LABELS, free, 1).hash
    assert partition_of(LABELS, fixed, 0).hash == partition_of(LABELS, fixed, 1).hash
    train, seven = dataset(), settings("federation.partition_seed=7").federation
    data = [federated_data(train, None, seven, seed) for seed in (0, 1)]
    assert data[0].identity() == data[1].identity()
    assert [data[0].sampler(r) for r in range(5)] != [data[1].sampler(r) for r in range(5)]


def test_a_partition_from_a_file(tmp_path: Path) -> None:
    made = partition_of(LABELS, FederationConfig(clients=6), 3)
    made.save(tmp_path / "own.npz")
    config = FederationConfig(clients=6, partition=f"file:{tmp_path / 'own.npz'}")
    assert partition_of(LABELS, config, 99).hash == made.hash
    with pytest.raises(UserError, match="to 6 clients; expected 7 clients"):
        partition_of(LABELS, FederationConfig(clients=7, partition=config.partition), 0)
    with pytest.raises(UserError, match="deals samples up to 239"):
        partition_of(LABELS[:100], config, 0)
    with pytest.raises(UserError, match="cannot be read as a partition"):
        partition_of(LABELS, FederationConfig(clients=6, partition=f"file:{tmp_path / 'none.npz'}"), 0)


def test_held_out_samples_test_and_never_train() -> None:
    train, test = dataset(), dataset(80)
    config = settings("federation.validation_images=40", "federation.client_test=0.25").federation
    data = federated_data(train, test, config, 0)
    validation = set(validation_places(240, 40).tolist())
    assert set(data.server_test.indices) == validation
    trained, tested = [], []
    for client in data.clients:
        own = data.client(client, 0)
        trained += own.train.indices
        tested += own.test.indices
        assert len(own.test) == round(0.25 * (len(own.test) + len(own.train)))
    assert sorted([*trained, *tested, *validation]) == list(range(240))
    assert federated_data(train, test, settings().federation, 0).server_test is test


def test_augmentation_is_for_training_only() -> None:
    raw = images()
    augmented = ImageDataset(raw, [0.3], [0.3], crop_and_flip)
    config = settings("federation.validation_images=40", "federation.client_test=0.25").federation
    data = federated_data(augmented, None, config, 0)
    own = data.client(0, 0)
    assert own.train.dataset is augmented
    plain = augmented.normalised().tensors[0]
    for subset in (own.test, data.server_test):
        assert torch.equal(subset[0][0], plain[subset.indices[0]])


class Bare(Dataset):
    def __len__(self) -> int:
        return 240


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["federation.partition=dirichelt"], "found 'dirichelt'. Did you mean 'dirichlet'"),
        (["federation.rounds=5"], "rounds=5 is no multiple of evaluate_every=2"),
        (["federation.evaluate_every=12"], "is no multiple of evaluate_every=12"),
        (["federation.evaluate_every=0"], "evaluate_every=0"),
        (["federation.client_test=1.0"], "a share in 0 .. 1, found 1.0"),
        (
            ["federation.train_images=201", "federation.validation_images=40"],
            "more than the 240 training images",
        ),
        (["federation.partition=domain"], "the partition has 4 clients, federation.clients is 6"),
        (["federation.per_round=7"], "expected 1 to 6 clients a round, found 7"),
        (["federation.partition=label_count"], "expected 1 to 4 classes a client, found 0"),
    ],
)
def test_settings_that_do_not_go_together_are_explained(overrides: list[str], expected: str) -> None:
    with pytest.raises(UserError, match=expected):
        federated_data(dataset(), None, settings(*overrides).federation, 0)


def test_labels() -> None:
    assert labels_of(dataset()).tolist() == LABELS.tolist()
    assert labels_of(ImageDataset(images(), [0.3], [0.3])).tolist() == LABELS.tolist()
    with pytest.raises(UserError, match="Bare has no labels"):
        labels_of(Bare())
    assert isinstance(partition_of(LABELS, FederationConfig(clients=4, min_size=1), 0), Partition)
