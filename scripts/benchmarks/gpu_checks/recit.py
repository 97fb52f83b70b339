"""ReCIT on a GPU: the disruption as on a CPU, the paper's step in mixed precision, episodes in batches."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from projects.recit.balanced import balanced_disruption
from projects.recit.config import Config
from projects.recit.encoder import make_encoder
from projects.recit.prototypes import accuracies, bank, draw_episodes
from projects.recit.warmup import enlarge, shuffle_tokens
from shared.training.config import base_layer, compose


def checks() -> list[tuple[str, Callable[[], dict[str, Any]]]]:
    return [
        ("disruption_as_on_a_cpu", disruption_as_on_a_cpu),
        ("paper_steps", paper_steps),
        ("episodes", episodes),
    ]


def disruption_as_on_a_cpu(device: str = "cuda") -> dict[str, Any]:
    """The same random numbers (drawn on the CPU) give the same tokens, with either form of the weights."""
    stream = torch.Generator().manual_seed(0)
    images = torch.randn(4, 3, 224, 224, generator=stream)
    tokens = torch.randn(4, 196, 384, generator=stream)
    found = {}
    for weights in ("official", "positive"):
        here, there = (
            balanced_disruption(
                tokens.to(where),
                images.to(where),
                weights=weights,
                stream=torch.Generator().manual_seed(1),
            ).cpu()
            for where in ("cpu", device)
        )
        error = (here - there).norm(dim=-1) / here.norm(dim=-1)
        assert error.median() < 1e-3, float(error.median())
        found[weights] = {"median": float(error.median()), "largest": float(error.max())}
    return found


def paper_steps(device: str = "cuda", size: int = 224, batch: int = 16) -> dict[str, Any]:
    """ViT-S/16, both stages, official weights, full and mixed precision: finite; seconds and memory."""
    config = compose(
        Config,
        base_layer(),
        {"network": {"name": "vit_small_patch16_224", "pretrained": False, "image_size": size}},
    )
    encoder = make_encoder(config).to(device)
    head = nn.Linear(encoder.width, 64).to(device)
    images = torch.randn(batch, 3, size, size, device=device)
    labels = torch.arange(batch, device=device)
    stages: dict[str, Callable[[], Tensor]] = {
        "warm_up_32": lambda: encoder(enlarge(images, 32, encoder.patch), edit=shuffle_tokens),
        "disruption": lambda: encoder(images, edit=partial(balanced_disruption, weights="official")),
    }
    found = {}
    for precision in (None, torch.bfloat16, torch.float16):
        for name, stage in stages.items():
            with torch.autocast(device, dtype=precision, enabled=precision is not None):
                started = time.perf_counter()
                loss = cross_entropy(head(stage()), labels)
            loss.backward()
            gradients = [p.grad for p in encoder.parameters() if p.grad is not None]
            assert loss.isfinite() and all(own.isfinite().all() for own in gradients), name
            found[f"{name}/{precision or 'float32'}"] = round(time.perf_counter() - started, 3)
            encoder.zero_grad()
    if device == "cuda":
        found["peak_gb"] = round(torch.cuda.max_memory_allocated() / 2**30, 2)
    return found


def episodes(device: str = "cuda", number: int = 4000) -> dict[str, Any]:
    """4,000 episodes on features that live on the device: the accuracies of the CPU."""
    labels = torch.arange(38).repeat_interleave(200)
    stream = torch.Generator().manual_seed(0)
    features = torch.randn(38, 384, generator=stream)[labels] * 0.25
    features += torch.randn(len(labels), 384, generator=stream)
    found = []
    for where in ("cpu", device):
        own = bank(features.to(where), labels.to(where), [str(place) for place in range(38)])
        drawn = draw_episodes(own, number, stream=torch.Generator().manual_seed(2))
        accuracies(own, drawn)
        started = time.perf_counter()
        found.append(accuracies(own, drawn).cpu())
        seconds = time.perf_counter() - started
    differ = float((found[0] - found[1]).abs().sum()) * 75
    assert differ < 1e-4 * number * 75, differ
    return {"seconds": round(seconds, 3), "answers_that_differ": round(differ)}
