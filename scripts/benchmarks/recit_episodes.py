"""Few-shot evaluation on stored features: episodes in batches against one after the other, in one run.

Banks have the sizes of the paper's four targets. The loop is the usual one of few-shot code: for each episode
classes by `random.sample`, images by a permutation of each class, their features put together, normalised,
centred and compared with prototypes. Both times include drawing. Runs alternate; the ratios of a row are
medians over pairs, of wall time and of all cores' time; the first ratio is of all rows together. For equal
accuracies the loop also answers the very episodes of the batches. Target: at least 20 times faster.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent.parent))

import numpy as np
import torch
from torch import Tensor

from projects.recit.prototypes import Bank, Episodes, accuracies, bank, draw_episodes
from shared.errors import fail_cleanly
from shared.training.seeding import generator

WAYS, QUERIES, WIDTH = 5, 15, 384
TARGETS = {  # classes, mean number of images of each
    "CropDiseases": (38, 1144),
    "EuroSAT": (10, 2700),
    "ISIC": (7, 1431),
    "ChestX": (7, 3693),
}


def domain(classes: int, images: int) -> tuple[Tensor, Tensor]:
    """Random features of so many classes, `images` each, that overlap."""
    stream = torch.Generator().manual_seed(0)
    labels = torch.arange(classes).repeat_interleave(images)
    centres = torch.randn(classes, WIDTH, generator=stream)
    return 0.25 * centres[labels] + torch.randn(len(labels), WIDTH, generator=stream), labels


def one_episode(features: list[np.ndarray], shots: int) -> float:
    """Share of right answers on features (5 arrays (shots + 15, 384)) by plain operations."""
    z = torch.from_numpy(np.array(features))
    z = z / z.norm(dim=-1, keepdim=True)
    z = z - z[:, :shots].reshape(-1, WIDTH).mean(0)
    z = z / z.norm(dim=-1, keepdim=True)
    prototypes = z[:, :shots].mean(1)
    query = z[:, shots:].reshape(-1, WIDTH)
    distance = ((query[:, None] - prototypes[None]) ** 2).sum(-1)
    predicted = (-distance).numpy().argmax(1)
    return float((predicted == np.repeat(np.arange(WAYS), QUERIES)).mean())


def loop_drawing(by_class: dict[int, list[np.ndarray]], episodes: int, shots: int) -> None:
    """The whole loop, episodes drawn on the way."""
    for _ in range(episodes):
        features = []
        for label in random.sample(list(by_class), WAYS):
            order = np.random.permutation(len(by_class[label])).tolist()  # noqa: NPY002 - as they do
            features.append([np.squeeze(by_class[label][place]) for place in order[: shots + QUERIES]])
        one_episode(features, shots)


def loop_answers(features: np.ndarray, episodes: Episodes, shots: int) -> Tensor:
    """The accuracies of given episodes, one after the other."""
    rows = torch.cat([episodes.support, episodes.query], -1).numpy()
    return torch.tensor([one_episode([features[way] for way in own], shots) for own in rows])


def batched(own: Bank, episodes: int, shots: int) -> Tensor:
    stream = generator("benchmark")
    return accuracies(own, draw_episodes(own, episodes, shots=shots, queries=QUERIES, stream=stream))


def compare(target: str, episodes: int, shots: int, repeats: int) -> dict[str, Any]:
    classes, images = TARGETS[target]
    features, labels = domain(classes, images)
    own = bank(features, labels, [str(number) for number in range(classes)])
    by_class = {label: list(features[labels == label].numpy()) for label in range(classes)}
    drawn = draw_episodes(own, episodes, shots=shots, queries=QUERIES, stream=generator("benchmark"))
    answers, expected = batched(own, episodes, shots), loop_answers(features.numpy(), drawn, shots)
    times = {"batched": [], "loop": []}
    for _ in range(repeats):
        times["batched"].append(clocks(lambda: batched(own, episodes, shots)))
        times["loop"].append(clocks(lambda: loop_drawing(by_class, episodes, shots)))
    wall, cpu = (
        statistics.median(loop[kind] / ours[kind] for ours, loop in zip(*times.values(), strict=True))
        for kind in (0, 1)
    )
    return {
        "target": f"{target}, {classes} x {images} images",
        "shots": shots,
        "batched_s": round(statistics.median(own[0] for own in times["batched"]), 3),
        "loop_s": round(statistics.median(own[0] for own in times["loop"]), 3),
        "ratio": round(wall, 1),
        "cpu_ratio": round(cpu, 1),
        "accuracy_batched": round(100 * float(answers.mean()), 4),
        "accuracy_loop": round(100 * float(expected.mean()), 4),
        "answers_that_differ": round(float((answers - expected).abs().sum()) * WAYS * QUERIES),
        "answers": episodes * WAYS * QUERIES,
    }


def clocks(work: Callable[[], Any]) -> tuple[float, float]:
    """Seconds on the wall and of all cores that `work` takes."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - wall, time.process_time() - cpu


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--targets", nargs="+", choices=list(TARGETS), default=list(TARGETS))
    parser.add_argument("--episodes", type=int, default=4000)
    parser.add_argument("--shots", type=int, nargs="+", default=[1, 5])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rows = [
        compare(target, options.episodes, shots, options.repeats)
        for target in options.targets
        for shots in options.shots
    ]
    seconds = {kind: sum(row[f"{kind}_s"] for row in rows) for kind in ("loop", "batched")}
    found = {
        "setting": f"{options.episodes} episodes, {WAYS}-way, {QUERIES} queries, {WIDTH} numbers a feature",
        "threads": options.threads,
        "ratio": round(seconds["loop"] / seconds["batched"], 1),
        "rows": rows,
    }
    print(json.dumps(found, indent=1))
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(fail_cleanly(main))
