"""Interrupted + resumed equals uninterrupted, bit for bit; what a run writes; unreadable checkpoints."""

import csv
import json
import struct

import pytest
import torch
import wandb
from lightning.pytorch import LightningDataModule, LightningModule
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset
from wandb.proto import wandb_internal_pb2

from shared.errors import UserError
from shared.training.config import BaseConfig, compose
from shared.training.experiment import Experiment, Interrupted, evaluate_checkpoint, run_experiment
from shared.training.loader import ResumableLoader
from shared.training.logging import last_values, read_history, wandb_mode


class Noisy(LightningModule):
    """Dropout, momentum and a schedule: everything that a careless resume gets wrong."""

    def __init__(self, width: int = 16, cosine: bool = False) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(nn.Linear(5, width), nn.ReLU(), nn.Dropout(0.5), nn.Linear(width, 1))
        self.artifacts = None

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.mse_loss(self.net(x), y)
        self.log("train/loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        torch.rand(3)  # draws between two training batches must not matter
        self.log("val/loss", F.mse_loss(self.net(batch[0]), batch[1]))

    def test_step(self, batch, batch_idx):
        self.log("test/loss", F.mse_loss(self.net(batch[0]), batch[1]))

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=1e-2)
        if self.hparams.cosine:  # reads the number of steps, which makes Lightning build the loader early
            steps = int(self.trainer.estimated_stepping_batches)
            schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
            return [optimizer], [{"scheduler": schedule, "interval": "step"}]
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)]


class Data(LightningDataModule):
    def __init__(self, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        x = torch.randn(50, 5, generator=generator)
        self.seed, self.data = seed, TensorDataset(x, x.sum(1, keepdim=True))

    def train_dataloader(self):
        return ResumableLoader(self.data, 8, seed=self.seed, shuffle=True)

    def val_dataloader(self):
        return ResumableLoader(self.data, 50)

    test_dataloader = val_dataloader


def build(config):
    return Experiment(Noisy(), Data(config.seed))


def settings(*overrides):
    return compose(
        BaseConfig,
        {"trainer": {"max_epochs": 3, "accelerator": "cpu"}, "wandb": {"mode": "disabled"}},
        overrides=["runtime.keep_checkpoint=true", *overrides],
    )


def build_cosine(config):
    return Experiment(Noisy(cosine=True), Data(config.seed))


def run(config, folder, stop_after=None, build=build):
    calls = iter(range(10_000))
    stop = (lambda: False) if stop_after is None else (lambda: next(calls) >= stop_after)
    return run_experiment(build, config, folder, group="toy/main", name="a/b/0", stop=stop)


def weights(folder):
    return torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]


@pytest.mark.parametrize("build", [build, build_cosine])
@pytest.mark.parametrize("stop_after", [0, 6, 9, 15])  # first batch, end of an epoch, inside one, late
def test_interrupted_and_resumed_equals_uninterrupted(tmp_path, stop_after, build):
    straight = run(settings(), tmp_path / "straight", build=build)
    with pytest.raises(Interrupted):
        run(settings(), tmp_path / "resumed", stop_after, build)
    torch.rand(17)  # the state of the process at resume time must not matter
    resumed = run(settings(), tmp_path / "resumed", build=build)
    assert resumed == straight
    for name, value in weights(tmp_path / "straight").items():
        assert torch.equal(value, weights(tmp_path / "resumed")[name]), name
    rows = [
        [row for row in read_history(tmp_path / which / "history.csv") if not row[1].startswith("test")]
        for which in ("straight", "resumed")
    ]
    assert rows[0] == rows[1]


def test_killed_between_checkpoints_repeats_only_what_was_lost(tmp_path):
    config = settings("runtime.checkpoint_every_n_steps=4")

    class Killed(BaseException):
        pass

    calls = iter(range(10_000))

    def kill():
        if next(calls) == 10:
            raise Killed

    with pytest.raises(Killed):
        run_experiment(build, config, tmp_path / "killed", group="g", name="n", stop=kill)
    assert torch.load(tmp_path / "killed/checkpoints/last.ckpt", weights_only=True)["global_step"] == 8
    assert run(config, tmp_path / "killed") == run(settings(), tmp_path / "straight")


def test_truncated_checkpoint_is_set_aside_and_the_run_starts_over(tmp_path, caplog):
    with pytest.raises(Interrupted):
        run(settings(), tmp_path / "a", stop_after=9)
    checkpoint = tmp_path / "a" / "checkpoints" / "last.ckpt"
    checkpoint.write_bytes(checkpoint.read_bytes()[:700])
    assert run(settings(), tmp_path / "a") == run(settings(), tmp_path / "b")
    assert "starting over" in caplog.text
    assert checkpoint.with_suffix(".unreadable").exists()


def test_metrics_hold_every_logged_name_and_history_every_step(tmp_path):
    metrics = run(settings(), tmp_path)
    assert metrics.keys() >= {"train/loss", "val/loss", "test/loss"}
    assert sum(name == "train/loss" for _, name, _ in read_history(tmp_path / "history.csv")) == 21
    assert last_values(tmp_path / "history.csv")["test/loss"] == pytest.approx(metrics["test/loss"])
    with (tmp_path / "history.csv").open() as file:
        assert next(csv.reader(file)) == ["step", "name", "value"]
    assert (tmp_path / "artifacts").is_dir()


def test_finished_run_keeps_no_checkpoint_unless_asked(tmp_path):
    run(settings("runtime.keep_checkpoint=false"), tmp_path)
    assert not (tmp_path / "checkpoints").exists()


def test_evaluate_gives_the_test_metrics_of_the_run(tmp_path):
    metrics = run(settings(), tmp_path)
    again = evaluate_checkpoint(build, settings(), tmp_path / "checkpoints" / "last.ckpt", tmp_path)
    assert again["test/loss"] == metrics["test/loss"]


def test_evaluate_names_what_is_wrong_with_a_file(tmp_path):
    with pytest.raises(UserError, match="found nothing"):
        evaluate_checkpoint(build, settings(), tmp_path / "absent.ckpt", tmp_path)
    run(settings(), tmp_path)
    good = tmp_path / "checkpoints" / "last.ckpt"
    (tmp_path / "short.ckpt").write_bytes(good.read_bytes()[:500])
    with pytest.raises(UserError, match="truncated"):
        evaluate_checkpoint(build, settings(), tmp_path / "short.ckpt", tmp_path)
    with pytest.raises(UserError, match="does not fit"):
        evaluate_checkpoint(lambda c: Experiment(Noisy(7), Data(0)), settings(), good, tmp_path)


def test_checkpoints_never_unpickle_objects(tmp_path):
    class Evil:
        def __reduce__(self):
            return (open, (str(tmp_path / "owned"), "w"))

    torch.save({"state_dict": {}, "global_step": Evil()}, tmp_path / "evil.ckpt")
    with pytest.raises(UserError):
        evaluate_checkpoint(build, settings(), tmp_path / "evil.ckpt", tmp_path)
    assert not (tmp_path / "owned").exists()


def read_offline_wandb(path):
    """Records of a `.wandb` file: a LevelDB log (32 KiB blocks; crc, length, type before each piece)."""
    data, position, piece, records = path.read_bytes(), 7, b"", []
    while position + 7 <= len(data):
        left = 32768 - position % 32768
        length, kind = struct.unpack("<HB", data[position + 4 : position + 7])
        if left < 7 or kind == 0:
            position += left
            continue
        piece += data[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):  # whole, or the last piece
            record = wandb_internal_pb2.Record()
            record.ParseFromString(piece)
            records.append(record)
            piece = b""
    return records


def test_offline_wandb_run_holds_config_and_curves(tmp_path):
    config = settings("wandb.mode=offline", "wandb.project=house", "trainer.max_epochs=1")
    run_experiment(
        build, config, tmp_path, group="toy/main", name="a/b/0", provenance={"commit": "abc", "token": "s3"}
    )
    (path,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    records = read_offline_wandb(path)
    header = next(record.run for record in records if record.WhichOneof("record_type") == "run")
    assert (header.project, header.run_group, header.display_name) == ("house", "toy/main", "a/b/0")
    stored = {item.key: json.loads(item.value_json) for item in header.config.update}
    assert stored["trainer"]["max_epochs"] == 1
    assert stored["provenance"] == {"commit": "abc", "token": "***"}
    logged = [item.key or ".".join(item.nested_key) for r in records for item in r.history.item]
    assert logged.count("train/loss") == 7
    assert "test/loss" in logged


def test_gradient_accumulation_resumes_exactly(tmp_path):
    config = settings("trainer.accumulate_grad_batches=3")
    straight = run(config, tmp_path / "straight")
    with pytest.raises(Interrupted):
        run(config, tmp_path / "resumed", stop_after=2)
    assert run(config, tmp_path / "resumed") == straight


def test_training_free_experiment_is_only_tested(tmp_path):
    metrics = run_experiment(
        lambda c: Experiment(Noisy(), Data(0), fit=False), settings(), tmp_path, group="g", name="n"
    )
    assert set(metrics) == {"test/loss"}


def test_unreachable_server_falls_back_to_offline(tmp_path, monkeypatch):
    """Also in a process where wandb has been set up for an online run before."""
    real = wandb.init

    def unreachable(*args, **kwargs):
        if kwargs["mode"] == "online":
            raise wandb.errors.CommError("no route")
        return real(*args, **kwargs)

    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    monkeypatch.setenv("WANDB_MODE", "online")
    wandb.teardown()
    wandb.setup()
    monkeypatch.setattr(wandb, "init", unreachable)
    try:
        with pytest.warns(UserWarning, match="logging offline"):
            run(settings("wandb.mode=online", "trainer.max_epochs=1"), tmp_path)
    finally:
        wandb.teardown()
    assert list(tmp_path.glob("wandb/offline-run-*"))


@pytest.mark.parametrize(
    ("requested", "environment", "key", "expected"),
    [
        ("auto", "", "", "offline"),
        ("auto", "", "k" * 40, "online"),
        ("auto", "disabled", "k" * 40, "disabled"),
        ("disabled", "online", "k" * 40, "disabled"),
        ("offline", "", "k" * 40, "offline"),
    ],
)
def test_wandb_mode(monkeypatch, tmp_path, requested, environment, key, expected):
    monkeypatch.setenv("WANDB_MODE", environment)
    monkeypatch.setenv("WANDB_API_KEY", key)
    monkeypatch.setenv("HOME", str(tmp_path))  # no netrc
    monkeypatch.delenv("NETRC", raising=False)
    assert wandb_mode(requested) == expected


def test_unknown_wandb_mode_names_the_choices():
    with pytest.raises(UserError, match="auto, online, offline, disabled"):
        wandb_mode("ofline")
