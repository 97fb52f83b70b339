"""LoEC on a GPU: LEM as on a CPU, transforms in 16-bit mixed precision, steps of the paper's network."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from projects.cdfss_sharpness.config import Config
from projects.cdfss_sharpness.lem import enhance, random_kernel
from projects.cdfss_sharpness.losses import episode_loss
from projects.cdfss_sharpness.segmenter import segmenter
from shared.training.config import compose


def checks() -> list[tuple[str, Callable[[], dict[str, Any]]]]:
    return [
        ("lem_as_on_a_cpu", lem_as_on_a_cpu),
        ("lem_in_half_precision", lem_in_half_precision),
        ("paper_steps", paper_steps),
    ]


def lem_as_on_a_cpu(device: str = "cuda") -> dict[str, Any]:
    features = torch.randn(2, 32, 50, 50, generator=torch.Generator().manual_seed(0)).relu()
    theta = random_kernel(features, 0.1, 3)
    here = enhance(features, theta)
    there = enhance(features.to(device), theta.to(device)).cpu()
    apart = float((here - there).norm() / here.norm())
    assert apart < 1e-3, apart
    return {"relative_difference": apart}


def lem_in_half_precision(device: str = "cuda") -> dict[str, Any]:
    """At 100 x 100 and 25 x 25, no powers of two; values and gradients are finite."""
    sizes = {}
    for side in (25, 100):
        features = torch.randn(2, 32, side, side, device=device).relu().half().requires_grad_()
        with torch.autocast(device, dtype=torch.float16 if device == "cuda" else torch.bfloat16):
            result = enhance(features, random_kernel(features, 0.1, 3))
        result.float().square().mean().backward()
        assert result.dtype == torch.float16 and result.isfinite().all() and features.grad.isfinite().all()
        sizes[str(side)] = float(result.detach().float().square().mean().sqrt())
    return sizes


def paper_steps(device: str = "cuda", size: int = 400, batch: int = 4, steps: int = 5) -> dict[str, Any]:
    """Milliseconds of a training step in 16-bit mixed precision, with LEM and without, and peak memory."""
    found: dict[str, Any] = {}
    for name in ("resnet50", "vit"):
        for kind in ("none", "lem"):
            config = compose(
                Config,
                {
                    "episodes": {"size": size},
                    "encoder": {"name": name, "weights": "none"},
                    "lem": {"kind": kind},
                },
            )
            net = segmenter(config).to(device).train()
            support, query = (torch.randn(batch, 3, size, size, device=device) for _ in range(2))
            labels = (torch.rand(batch, size, size, device=device) > 0.7).byte()
            for step in range(steps + 1):
                if step == 1:
                    _wait(device)
                    started = time.perf_counter()
                with torch.autocast(device, dtype=torch.bfloat16):
                    matched = net(support[:, None], labels[:, None], query)
                    loss = episode_loss(matched, labels[:, None], labels)
                loss.backward()
                assert loss.isfinite()
            _wait(device)
            found[f"{name}_{kind}_ms"] = round(1000 * (time.perf_counter() - started) / steps, 1)
            del net, matched, loss
    if device == "cuda":
        found["peak_gb"] = round(torch.cuda.max_memory_allocated() / 2**30, 2)
    return found


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()
