"""AdamW over what trains, LoRA+ rates, and the learning-rate schedules."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from projects.nonzero_lora.config import check_optimizer


def configure(model: nn.Module, config: Any, total_steps: int) -> dict[str, Any]:
    """Optimiser and per-step schedule in Lightning's form.

    Args:
        model: only its parameters that require gradients are trained.
        config: an `OptimizerConfig`.
        total_steps: optimiser steps of the whole run, where linear and cosine schedules reach zero.
    """
    check_optimizer(config)
    settings = {"betas": tuple(config.betas), "eps": config.eps}
    if config.b_ratio != 1:
        from peft.optimizers import create_loraplus_optimizer

        optimizer = create_loraplus_optimizer(
            model,
            torch.optim.AdamW,
            lr=config.lr,
            loraplus_lr_ratio=config.b_ratio,
            loraplus_weight_decay=config.weight_decay,
            **settings,
        )
    else:
        trained = [p for p in model.parameters() if p.requires_grad]
        optimizer = torch.optim.AdamW(trained, lr=config.lr, weight_decay=config.weight_decay, **settings)
    if config.schedule == "constant" and not warmup(config, total_steps):
        return {"optimizer": optimizer}
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate(config, step, total_steps))
    return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def warmup(config: Any, total_steps: int) -> int:
    """Steps of linear warm-up."""
    return config.warmup_steps or math.ceil(config.warmup_ratio * total_steps)


def rate(config: Any, step: int, total_steps: int) -> float:
    """Multiplier of the learning rate at optimiser step `step` (from 0), as in transformers' schedules."""
    rising = warmup(config, total_steps)
    if step < rising:
        return step / rising
    done = min(1.0, (step - rising) / max(1, total_steps - rising))
    return {"constant": 1.0, "linear": 1 - done, "cosine": 0.5 * (1 + math.cos(math.pi * done))}[
        config.schedule
    ]
