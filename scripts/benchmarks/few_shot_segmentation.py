"""What LEM, LCM and SAM cost, and self-support in a batch against a loop, as ratios inside one run.

The network is SSP's ResNet-50 with random weights at a small image, or the small network of the laptop tables
(`--encoder convnet`). Variants take turns and each ratio is the median over turns, so that a machine busy
with other things slows all of them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent.parent))

import torch
from torch.optim import SGD

from projects.cdfss_sharpness.config import Config
from projects.cdfss_sharpness.data.episodes import Episode
from projects.cdfss_sharpness.heads import SelfSupportHead
from projects.cdfss_sharpness.losses import episode_loss
from projects.cdfss_sharpness.sam import SAM
from projects.cdfss_sharpness.segmenter import Segmenter, segmenter
from shared.errors import fail_cleanly
from shared.training.config import compose


def episodes(batch: int, size: int, device: str) -> Episode:
    stream = torch.Generator().manual_seed(0)
    images = torch.randn(2, batch, 3, size, size, generator=stream).to(device)
    labels = (torch.rand(2, batch, size, size, generator=stream) > 0.7).byte().to(device)
    return Episode(images[0, :, None], labels[0, :, None], images[1], labels[1], torch.zeros(batch).long())


def network(encoder: str, size: int, kind: str, frozen: int, device: str) -> Segmenter:
    torch.manual_seed(0)
    grid = size // (8 if encoder == "resnet50" else 4)
    layer = {
        "episodes": {"size": size},
        "encoder": {"name": encoder, "weights": "none", "frozen": frozen},
        "lem": {"kind": kind},
        "lcm": {"grid": grid // 2},
    }
    return segmenter(compose(Config, layer)).to(device)


def step_of(net: Segmenter, batch: Episode, rho: float = 0.0) -> Callable[[], None]:
    """One training step."""
    learning = [p for p in net.parameters() if p.requires_grad]
    low = [p for s in list(net.encoder.stages.values())[:2] for p in s.parameters() if p.requires_grad]
    optimizer = SAM(learning, low, rho, lr=1e-3) if rho else SGD(learning, lr=1e-3)
    net.train()

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        matched = net(batch.support, batch.support_labels, batch.query)
        loss = episode_loss(matched, batch.support_labels, batch.query_labels)
        loss.backward()
        return loss

    return lambda: optimizer.step(closure)


@torch.no_grad()
def predict(net: Segmenter, batch: Episode, calibrated: bool) -> torch.Tensor:
    matched = net.eval()(batch.support, batch.support_labels, batch.query)
    return net.calibrated(matched) if calibrated else matched.scores[-1]


def compare(variants: dict[str, Callable[[], Any]], repeats: int, device: str) -> dict[str, list[float]]:
    """Seconds of each variant, turn by turn."""
    times: dict[str, list[float]] = {name: [] for name in variants}
    for turn in range(repeats + 1):
        for name in list(variants)[:: 1 if turn % 2 else -1]:
            started = time.perf_counter()
            variants[name]()
            if device == "cuda":
                torch.cuda.synchronize()
            if turn:  # the first is a warm-up
                times[name].append(time.perf_counter() - started)
    return times


def ratio(times: dict[str, list[float]], one: str, other: str) -> float:
    return round(statistics.median(a / b for a, b in zip(times[one], times[other], strict=True)), 3)


def measure(encoder: str, size: int, batch: int, repeats: int, device: str) -> dict[str, Any]:
    data = episodes(batch, size, device)
    train = {
        "plain": step_of(network(encoder, size, "none", 2, device), data),
        "lem": step_of(network(encoder, size, "lem", 2, device), data),
        "unfrozen": step_of(network(encoder, size, "none", 0, device), data),
        "sam": step_of(network(encoder, size, "none", 0, device), data, rho=0.05),
    }
    steps = compare(train, repeats, device)
    net = network(encoder, size, "none", 2, device)
    tests = compare({str(on): lambda on=on: predict(net, data, on) for on in (False, True)}, repeats, device)
    parts = (
        torch.randn(batch, 1, 256, 25, 25, device=device),
        data.support_labels,
        torch.randn(batch, 256, 25, 25, device=device),
    )
    head = SelfSupportHead()
    one_by_one = [tuple(part[place : place + 1] for part in parts) for place in range(batch)]
    heads = compare(
        {"batched": lambda: head(*parts), "loop": lambda: [head(*own) for own in one_by_one]}, repeats, device
    )
    return {
        "device": device,
        "shape": f"{encoder}, {batch} episodes of {size} x {size}",
        "plain_step_ms": round(1000 * statistics.median(steps["plain"]), 1),
        "lem_over_plain": ratio(steps, "lem", "plain"),
        "sam_over_unfrozen": ratio(steps, "sam", "unfrozen"),
        "lcm_over_plain_test": ratio(tests, "True", "False"),
        "self_support_loop_over_batched": ratio(heads, "loop", "batched"),
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--encoder", choices=("resnet50", "convnet"), default="resnet50")
    parser.add_argument("--size", type=int, default=96, metavar="PIXELS")
    parser.add_argument("--batch", type=int, default=4, metavar="EPISODES")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures there")
    options = parser.parse_args()
    found = measure(options.encoder, options.size, options.batch, options.repeats, options.device)
    print("\n".join(f"{name:32} {value}" for name, value in found.items()))
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(fail_cleanly(main))
