"""A mistyped key or a wrong type is an error that names the nearest key and the allowed type."""

from dataclasses import dataclass, field

import pytest

from shared.errors import UserError
from shared.training.config import BaseConfig, base_layer, compose, fingerprint, redact, resolved


@dataclass
class OptimizerConfig:
    lr: float = 1e-3
    betas: list[float] = field(default_factory=lambda: [0.9, 0.999])


@dataclass
class Config(BaseConfig):
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    name: str | None = None


def test_later_layers_win():
    config = compose(
        Config, base_layer(), {"optimizer": {"lr": 1}}, {"optimizer": {"lr": 2}}, overrides=["name=x"]
    )
    assert (config.optimizer.lr, config.name, config.trainer.devices) == (2.0, "x", 1)


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("optimizer.lrr=1", r"unknown config key 'optimizer.lrr'. Did you mean 'optimizer.lr'\?.*betas, lr"),
        ("lr=1", r"Did you mean 'optimizer.lr'\?"),
        ("optimiser.lr=1", r"unknown config key.*Did you mean 'optimizer"),
        ("optimizer.lr=fast", r"'optimizer.lr' takes float, found 'fast' \(str\)"),
        ("trainer.gradient_clip_val=no", r"takes float or null"),
        ("trainer=3", r"'trainer' is a section with keys max_epochs"),
        ("optimizer.lr", r"expected key=value, found 'optimizer.lr'"),
        ("optimizer..lr=1", r"expected key=value, found 'optimizer..lr=1'"),
        ("optimizer.lr=nan", r"expected finite numbers, found optimizer.lr=nan"),
        ("optimizer.betas=[0.9,.inf]", r"expected finite numbers, found optimizer.betas.1=inf"),
        ("name={a: ", r"cannot read the value"),
    ],
)
def test_mistakes_are_explained(override, expected):
    with pytest.raises(UserError, match=expected):
        compose(Config, base_layer(), overrides=[override])


def test_a_mistyped_key_in_a_file_is_found_too():
    with pytest.raises(UserError, match=r"Did you mean 'trainer.max_steps'\?"):
        compose(Config, base_layer(), {"trainer": {"max_step": 3}})


def test_fingerprint_ignores_what_cannot_change_a_result():
    plain = fingerprint(compose(Config))
    for same in ("seed=4", "wandb.mode=disabled", "runtime.threads=2", "data.root=/d", "slurm.mem_gb=1"):
        assert fingerprint(compose(Config, overrides=[same])) == plain, same
    for other in ("optimizer.lr=2", "trainer.precision=bf16-mixed", "name=b", "optimizer.betas=[0.9,0.99]"):
        assert fingerprint(compose(Config, overrides=[other])) != plain, other


def test_secrets_are_redacted_at_any_depth():
    secrets = {"api_key": "a", "a": {"hf_token": "b", "list": [{"password": "c"}]}, "tokenizer": "kept"}
    assert redact(secrets) == {
        "api_key": "***",
        "a": {"hf_token": "***", "list": [{"password": "***"}]},
        "tokenizer": "kept",
    }


def test_resolved_is_plain_and_interpolated():
    config = compose(Config, {"name": "${optimizer.lr}"})
    assert resolved(config)["name"] == "0.001"
    assert type(resolved(config)["optimizer"]) is dict
