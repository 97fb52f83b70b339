"""The digits setting: data, pretraining, a run, resume."""

from pathlib import Path

import pytest
import torch

from projects.nonzero_lora import build
from projects.nonzero_lora.config import Config, DigitsConfig
from projects.nonzero_lora.data.digits import DigitsData
from projects.nonzero_lora.digits import HIDDEN, pretrained
from shared.errors import UserError
from shared.training.config import compose
from shared.training.experiment import Interrupted, run_experiment


def config(*overrides: str) -> Config:
    layer = {
        "task": "digits",
        "trainer": {"max_epochs": 1, "accelerator": "cpu", "devices": 1},
        "wandb": {"mode": "disabled"},
        "adapter": {"c_b": 1.0, "rank": 4, "alpha": 8, "targets": list(HIDDEN)},
        "optimizer": {"lr": 0.01},
        "digits": {"width": 33, "steps": 45},
    }
    return compose(Config, layer, overrides=list(overrides))


def test_data() -> None:
    data = DigitsData(DigitsConfig(steps=100), seed=0)
    assert data.train_images.shape == (1297, 64) and data.test_images.shape == (500, 64)
    assert sorted(data.test_labels.unique().tolist()) == list(range(10))
    used = data.train_images.std(0) > 0  # the others are empty in every training image
    torch.testing.assert_close(data.train_images.mean(0), torch.zeros(64), rtol=0, atol=1e-5)
    torch.testing.assert_close(data.train_images.std(0)[used], torch.ones(int(used.sum())), rtol=0, atol=1e-4)
    assert data.test_images.isfinite().all()
    batches = list(data.train_dataloader())
    assert len(batches) == 100 and all(len(labels) == 32 for _, labels in batches)
    first_epoch = torch.cat([images for images, _ in batches[:40]])
    assert len(torch.unique(first_epoch, dim=0)) > 1270  # without replacement: all images but the odd 17
    other = next(iter(DigitsData(DigitsConfig(steps=100), seed=1).train_dataloader()))
    assert not torch.equal(other[0], batches[0][0])
    with pytest.raises(UserError, match="test_images=1780"):
        DigitsData(DigitsConfig(test_images=1780), 0)


def test_pretraining_knows_the_first_five_classes_only() -> None:
    data = DigitsData(DigitsConfig(), 0)
    model = pretrained(DigitsConfig(width=64), data, seed=0)
    right = model(data.test_images).argmax(1) == data.test_labels
    known = data.test_labels < 5
    assert right[known].float().mean() > 0.9 and right[~known].float().mean() < 0.05
    torch.manual_seed(123)
    again = pretrained(DigitsConfig(width=64), data, seed=0)
    assert all(map(torch.equal, model.parameters(), again.parameters()))


def test_a_run_learns_the_new_classes_through_lora_alone(tmp_path: Path) -> None:
    experiment = build(config())
    trained = [name for name, p in experiment.module.named_parameters() if p.requires_grad]
    assert len(trained) == 4 and all("lora_" in name for name in trained)
    metrics = run_experiment(
        build, config("digits.steps=300", "digits.width=64"), tmp_path, group="g", name="n"
    )
    assert metrics["test/accuracy"] > 75  # the pretrained model has 48 at most


def test_resumed_equals_uninterrupted(tmp_path: Path) -> None:
    whole = run_experiment(build, config(), tmp_path / "whole", group="g", name="n")
    asked = iter([False] * 20 + [True])
    with pytest.raises(Interrupted):
        run_experiment(build, config(), tmp_path / "parts", group="g", name="n", stop=lambda: next(asked))
    assert run_experiment(build, config(), tmp_path / "parts", group="g", name="n") == whole
