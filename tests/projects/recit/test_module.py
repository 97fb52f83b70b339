"""The module: plain at test time, arms and stages, optimiser groups, learning, resuming, what is reported."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from lightning.pytorch import Trainer
from torch import Tensor

from projects.recit import build, requirements
from projects.recit.config import ARMS, Config, check
from projects.recit.data import module as data_module
from projects.recit.data.pools import Pool
from projects.recit.encoder import make_encoder
from projects.recit.evaluation import Evaluation
from projects.recit.module import ReCIT
from shared.errors import UserError
from shared.training.config import base_layer, compose
from shared.training.experiment import run_experiment

NETWORK = {
    "name": "vit_small_patch16_224",
    "pretrained": False,
    "image_size": 16,
    "patch": 4,
    "width": 16,
    "depth": 2,
    "heads": 2,
}


def config(**changes: Any) -> Any:
    small = {
        "network": NETWORK,
        "recit": {"smallest": 4, "largest": 6},
        "optimizer": {"encoder_multiplier": 1.0, "lr": 3e-3},
        "domains": {"source": "digits", "targets": ["grey-textures"], "batch_size": 32},
        "episodes": {"episodes": 60, "shots": [1, 5], "queries": 5},
        "trainer": {"max_epochs": 3, "accelerator": "cpu"},
        "wandb": {"mode": "disabled"},
    }
    return compose(Config, base_layer(), small, changes)


def pool(name: str, count: int, classes: int, seed: int) -> Pool:
    """Noise over a pattern of 4 x 4 pixels, repeated, that is the class."""
    stream = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % classes
    patterns = torch.randn(classes, 3, 4, 4, generator=torch.Generator().manual_seed(0)).tile(1, 1, 4, 4)
    images = patterns[labels] + 4 * torch.randn(count, 3, 16, 16, generator=stream)
    return Pool(name, images, labels, tuple(f"class{number}" for number in range(classes)))


@pytest.fixture(autouse=True)
def pools(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(name: str, part: str, config: Any) -> Pool:
        return pool(name, 192 if part == "base" else 120, 8, seed=len(name + part))

    monkeypatch.setattr(data_module, "load_pool", load)


def module(**changes: Any) -> ReCIT:
    torch.manual_seed(0)
    own = config(**changes)
    return ReCIT(own, make_encoder(own), 8, Evaluation(own.episodes, [pool("digits", 60, 8, 1)], 0))


def at_epoch(module: ReCIT, epoch: int) -> ReCIT:
    """As a trainer in that epoch has it."""
    module._trainer = Trainer(max_epochs=5, logger=False, enable_checkpointing=False, accelerator="cpu")
    module.trainer.fit_loop.epoch_progress.current.completed = epoch
    module.trainer.fit_loop.epoch_progress.current.processed = epoch
    assert module.current_epoch == epoch
    return module


@pytest.mark.parametrize("arm", ARMS)
def test_at_test_time_every_arm_is_the_plain_network_bit_for_bit(arm: str) -> None:
    images = torch.randn(4, 3, 16, 16)
    own = module(recit={"arm": arm}).eval()
    shape = {"img_size": 16, "patch_size": 4, "embed_dim": 16, "depth": 2, "num_heads": 2, "num_classes": 0}
    plain = timm.create_model("vit_small_patch16_224", pretrained=False, **shape).eval()
    plain.load_state_dict(own.encoder.vit.state_dict())
    expected = plain(images)
    own.evaluation.collect = lambda domain, features, labels, places: found.append(features)
    found: list[Tensor] = []
    own.test_step([images, torch.zeros(4), torch.arange(4)], 0)
    assert torch.equal(found[0], expected)


@pytest.mark.parametrize(
    ("arm", "epoch", "disrupted"),
    [
        *[("none", epoch, False) for epoch in (0, 1)],
        *[
            (arm, epoch, True)
            for arm in ("rpe", "sp", "spa", "spp", "recit", "frequency")
            for epoch in (0, 1)
        ],
        ("warmup", 0, True),
        ("warmup", 1, False),
    ],
)
def test_when_an_arm_disrupts(arm: str, epoch: int, disrupted: bool) -> None:
    own, images = at_epoch(module(recit={"arm": arm}), epoch), torch.randn(4, 3, 16, 16)
    torch.manual_seed(1)
    assert torch.equal(own.disrupted(images), own.encoder(images)) is not disrupted


def test_the_stages_see_what_they_should(monkeypatch: pytest.MonkeyPatch) -> None:
    own = at_epoch(module(recit={"arm": "recit"}), 0)
    seen: list[tuple[Tensor, str]] = []

    def encoder(images: Tensor, edit: Any = None, positions: bool = True) -> Tensor:
        seen.append((images, getattr(edit, "__name__", None) or edit.func.__name__))
        return torch.zeros(len(images), 16)

    monkeypatch.setattr(type(own.encoder), "forward", lambda self, *a, **k: encoder(*a, **k))
    torch.manual_seed(0)
    for _ in range(30):
        own.disrupted(torch.randn(2, 3, 16, 16))
    assert {images.shape[-1] for images, _ in seen} == {16, 20, 24}
    assert {name for _, name in seen} == {"shuffle_tokens"}
    seen.clear()
    at_epoch(own, 1).disrupted(torch.randn(2, 3, 16, 16))
    assert [(images.shape[-1], name) for images, name in seen] == [(16, "balanced_disruption")]


def test_pieces_of_the_simple_disruptions() -> None:
    images = torch.randn(4, 3, 16, 16)
    own = at_epoch(module(recit={"arm": "sp", "pieces": 1}), 0)
    assert torch.equal(own.disrupted(images), own.encoder(images))
    with pytest.raises(UserError, match="3 x 3 pieces divide, found 16 x 16"):
        at_epoch(module(recit={"arm": "sp", "pieces": 3}), 0).disrupted(images)


def test_the_encoder_learns_ten_thousand_times_slower() -> None:
    own = module(optimizer={"lr": 1e-3, "encoder_multiplier": 1e-4})
    optimizer = own.configure_optimizers()
    encoder, head = optimizer.param_groups
    assert encoder["lr"] / head["lr"] == 1e-4 and head["lr"] == 1e-3
    grouped = [id(parameter) for group in optimizer.param_groups for parameter in group["params"]]
    assert sorted(grouped) == sorted(id(parameter) for parameter in own.parameters())
    assert all(group["weight_decay"] == 0.01 for group in optimizer.param_groups)
    assert torch.equal(own.classifier.bias, torch.zeros(8))


def test_a_random_cls_token_is_fixed() -> None:
    own = module(network=NETWORK | {"cls_token": "random"})
    token = own.encoder.vit.cls_token
    assert not token.requires_grad and 0.01 < float(token.std()) < 0.03
    grouped = [id(parameter) for group in own.parameter_groups() for parameter in group["params"]]
    assert id(token) not in grouped and len(grouped) == len(list(own.parameters())) - 1
    again = module(network=NETWORK | {"cls_token": "random"})
    assert torch.equal(again.encoder.vit.cls_token, token)


def test_training_learns_and_reports(tmp_path: Path) -> None:
    own = config(recit={"arm": "none"}, trainer={"max_epochs": 6})
    found = run_experiment(build, own, tmp_path, group="g", name="n")
    before = run_experiment(
        build, config(recit={"arm": "frozen"}), tmp_path / "untrained", group="g", name="n"
    )
    assert found["last/source_5shot"] > 85 > 70 > before["last/source_5shot"]
    names = [
        f"{kind}/{domain}_{shots}shot"
        for kind in ("last", "oracle_epoch", "transductive")
        for domain in ("source", "grey-textures", "target")
        for shots in (1, 5)
    ]
    assert set(names) <= set(found) and {"cka/target", "interval/source_5shot"} <= set(found)
    assert found["last/target_5shot"] == found["last/grey-textures_5shot"]
    assert found["oracle_epoch/source_5shot"] >= found["last/source_5shot"] - 1e-4
    assert found["last/source_5shot"] == pytest.approx(found["epoch/source_5shot"], abs=1e-4)
    assert 0 < found["cka/target"] <= 1 and 0 < found["interval/source_1shot"] < 10


def test_the_best_epoch_is_remembered_for_every_domain() -> None:
    domains = [pool(name, 60, 6, 0) for name in ("digits", "a", "b")]
    evaluation = Evaluation(
        config(episodes={"episodes": 20, "shots": [2], "queries": 3}).episodes, domains, 0
    )
    features = {
        "good": torch.eye(6)[domains[0].labels] + 0.01 * torch.randn(60, 6),
        "bad": torch.randn(60, 6),
    }
    for epoch in (("good", "good", "bad"), ("good", "bad", "good"), ("bad", "bad", "bad")):
        for domain, kind in enumerate(epoch):
            evaluation.collect(domain, features[kind], domains[0].labels, torch.arange(60))
        if epoch[0] == "good":
            evaluation.after_epoch(lambda value: value)
    found = evaluation.at_the_end(lambda value: value)
    for domain in ("source", "a", "b", "target"):
        assert found[f"oracle_epoch/{domain}_2shot"] == pytest.approx(100)
        assert found[f"last/{domain}_2shot"] < 60


def test_an_image_that_two_processes_have_counts_once() -> None:
    own = pool("digits", 12, 2, 0)
    evaluation = Evaluation(config().episodes, [own], 0)
    features = torch.randn(12, 4)
    order = torch.tensor([3, 1, 0, 2, 4, 5, 7, 6, 9, 8, 11, 10, 3, 1])
    evaluation.collect(0, features[order[:5]], own.labels[order[:5]], order[:5])
    evaluation.collect(0, features[order[5:]], own.labels[order[5:]], order[5:])
    ((found, labels),) = evaluation._take(lambda value: value)
    assert torch.equal(found, features) and torch.equal(labels, own.labels)


def test_frozen_is_tested_and_not_trained(tmp_path: Path) -> None:
    own = config(recit={"arm": "frozen"})
    assert build(own).fit is False
    found = run_experiment(build, own, tmp_path, group="g", name="n")
    assert found["oracle_epoch/source_5shot"] == found["last/source_5shot"] and "train/loss" not in found


@pytest.mark.parametrize("arm", ["recit", "sp"])
def test_interrupted_and_resumed_is_uninterrupted(arm: str, tmp_path: Path) -> None:
    from shared.training.experiment import Interrupted

    own = config(recit={"arm": arm}, runtime={"checkpoint_every_n_steps": 1})
    whole = run_experiment(build, own, tmp_path / "whole", group="g", name="n")
    batches = iter(range(100))
    with pytest.raises(Interrupted):
        run_experiment(build, own, tmp_path / "parts", group="g", name="n", stop=lambda: next(batches) >= 8)
    parts = run_experiment(build, own, tmp_path / "parts", group="g", name="n")
    same = {name for name in whole if not math.isnan(whole[name])}
    assert {name: parts[name] for name in same} == {name: whole[name] for name in same}


@pytest.mark.parametrize("precision", ["bf16-mixed", "32-true"])
def test_official_weights_train_in_mixed_precision(precision: str, tmp_path: Path) -> None:
    own = config(recit={"arm": "frequency"}, trainer={"max_epochs": 1, "precision": precision})
    found = run_experiment(build, own, tmp_path, group="g", name="n")
    assert math.isfinite(found["train/loss"]) and math.isfinite(found["last/source_5shot"])


@pytest.mark.parametrize("precision", ["16-true", "bf16-true"])
def test_official_weights_are_refused_where_tokens_would_overflow(precision: str) -> None:
    with pytest.raises(UserError, match=f"trainer.precision={precision} cannot hold.*recit.weights=positive"):
        check(config(recit={"arm": "recit"}, trainer={"precision": precision}))
    check(config(recit={"arm": "recit", "weights": "positive"}, trainer={"precision": precision}))
    check(config(recit={"arm": "sp"}, trainer={"precision": precision}))


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"recit": {"arm": "recti"}}, "recit.arm takes none, frozen.*found 'recti'. Did you mean 'recit'"),
        ({"recit": {"weights": "both"}}, "recit.weights takes official, positive; found 'both'"),
        ({"recit": {"smallest": 9, "largest": 8}}, "smallest=9, largest=8"),
        ({"optimizer": {"encoder_multiplier": 0.0}}, "encoder_multiplier must be positive"),
        ({"domains": {"layout": "list"}}, "domains.layout takes folders, lists; found 'list'"),
        ({"network": {"cls_token": "none"}}, "network.cls_token takes own, random"),
        ({"domains": {"source": "digit"}}, "no domain 'digit'. Did you mean 'digits'"),
    ],
)
def test_wrong_settings_are_told_before_a_run(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(UserError, match=text):
        requirements(config(**changes))


def test_networks_that_cannot_be_made() -> None:
    with pytest.raises(UserError, match="network.name=vit_smal cannot be made"):
        make_encoder(config(network=NETWORK | {"name": "vit_smal"}))
    with pytest.raises(UserError, match="has 2 blocks, found 3"):
        make_encoder(config(network=NETWORK | {"blocks": 3}))
    with pytest.raises(
        UserError, match="network.name=resnet18 cannot be made.*Expected a vision transformer of timm"
    ):
        make_encoder(config(network={"name": "resnet18", "pretrained": False, "image_size": 0}))
    assert len(make_encoder(config(network=NETWORK | {"blocks": 1})).vit.blocks) == 1


def test_images_of_another_size_than_patches_divide() -> None:
    with pytest.raises(UserError, match=r"multiples of the patch \(4 pixels\), found 18 x 16"):
        at_epoch(module(recit={"arm": "recit"}), 1).disrupted(torch.randn(2, 3, 18, 16))


def test_the_embedded_network(tmp_path: Path) -> None:
    own = config(network={"name": "vit-s", "image_size": 28, "blocks": 1})
    assert [need.name for need in requirements(own)][-1] == "vit-s"
    encoder = make_encoder(own)
    assert encoder.width == 384 and encoder.patch == 14 and encoder.training
    assert encoder(torch.zeros(1, 3, 28, 28)).shape == (1, 384)
