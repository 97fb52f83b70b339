"""Rates, schedules and LoRA+."""

import pytest
import torch
from torch import nn
from transformers import (
    get_constant_schedule_with_warmup,
    get_cosine_schedule_with_warmup,
    get_linear_schedule_with_warmup,
)

from projects.nonzero_lora import requirements
from projects.nonzero_lora.adapters import attach
from projects.nonzero_lora.config import AdapterConfig, Config, OptimizerConfig
from projects.nonzero_lora.optimisation import configure, rate, warmup
from shared.errors import UserError


def model() -> nn.Module:
    return attach(nn.Sequential(nn.Linear(6, 6)), AdapterConfig(targets=["0"], rank=2), 0)


@pytest.mark.parametrize(
    ("name", "theirs"),
    [
        ("constant", lambda o: get_constant_schedule_with_warmup(o, 3)),
        ("linear", lambda o: get_linear_schedule_with_warmup(o, 3, 20)),
        ("cosine", lambda o: get_cosine_schedule_with_warmup(o, 3, 20)),
    ],
)
def test_schedules_are_those_of_transformers(name: str, theirs) -> None:
    scheduler = theirs(torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0))
    config = OptimizerConfig(schedule=name, warmup_steps=3)
    for step in range(20):
        assert rate(config, step, 20) == pytest.approx(scheduler.get_last_lr()[0], abs=1e-9)
        scheduler.optimizer.step()
        scheduler.step()
    assert warmup(OptimizerConfig(warmup_ratio=0.03), 101) == 4


def test_constant_rate_needs_no_scheduler() -> None:
    made = configure(model(), OptimizerConfig(lr=0.3, weight_decay=0.0), 10)
    assert set(made) == {"optimizer"}
    (group,) = made["optimizer"].param_groups
    assert (
        isinstance(made["optimizer"], torch.optim.AdamW) and group["lr"] == 0.3 and group["weight_decay"] == 0
    )
    assert len(group["params"]) == 2


def test_lora_plus_gives_b_a_larger_rate() -> None:
    lora = model()
    optimizer = configure(lora, OptimizerConfig(lr=0.01, b_ratio=16.0), 10)["optimizer"]
    rates = {id(p): group["lr"] for group in optimizer.param_groups for p in group["params"]}
    assert rates == {
        id(lora[0].lora_A["default"].weight): 0.01,
        id(lora[0].lora_B["default"].weight): pytest.approx(0.16),
    }


def test_bad_settings() -> None:
    with pytest.raises(UserError, match="lr and b_ratio must be positive.*found lr=0"):
        configure(model(), OptimizerConfig(lr=0), 10)
    with pytest.raises(UserError, match="Did you mean 'cosine'"):
        configure(model(), OptimizerConfig(schedule="cosin"), 10)
    for bad in (Config(adapter=AdapterConfig(rank=0)), Config(optimizer=OptimizerConfig(lr=-1))):
        with pytest.raises(UserError, match="must be"):
            requirements(bad)
