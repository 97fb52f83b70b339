"""The faster of `sequential` and `vectorized`, by a short measured trial for every method that is called."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from shared.federated.engines.sequential import Sequential
from shared.federated.engines.vectorized import Vectorized
from shared.federated.node import Node, Outcome, Task

log = logging.getLogger(__name__)

CLIENTS, WARMUP, STEPS, PATIENCE = 10, 1, (3, 9), 5.0  # clients; steps; seconds


class Auto:
    """A method's first call with several clients is preceded by the trial: a few steps of some of them, both
    ways, whose results are thrown away. The choice is kept and saved in checkpoints, so that a resumed run
    computes as the uninterrupted one would.
    """

    def __init__(self) -> None:
        self.sequential, self.vectorized = Sequential(), Vectorized()
        self.choices: dict[str, str] = {}

    def run(self, tasks: Sequence[Task], node: Node) -> list[Outcome]:
        if len(tasks) < 2:
            return self.sequential.run(tasks, node)
        method = tasks[0].method
        if method not in self.choices:
            self.choices[method] = self._choose(tasks[:CLIENTS], node)
        return getattr(self, self.choices[method]).run(tasks, node)

    def state_dict(self) -> dict[str, Any]:
        return {"choices": dict(self.choices)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.choices = dict(state["choices"])

    def _choose(self, tasks: Sequence[Task], node: Node) -> str:
        tasks = [replace(task, save_state=False) for task in tasks]
        before = self.vectorized.batched
        measured: list[dict[str, float]] = []
        for steps in (WARMUP, *STEPS):
            measured.append({})
            for name in ("vectorized", "sequential"):
                measured[-1][name] = self._seconds(getattr(self, name), tasks, node, steps)
                if self.vectorized.batched == before:
                    log.info("engine of %s: sequential; nothing there can be batched.", tasks[0].method)
                    return "sequential"
            if max(measured[-1].values()) > PATIENCE:
                break
        seconds, full = measured[-1], steps
        if len(measured) > len(STEPS):  # a batched step costs less, but what surrounds the steps costs more
            full = max(_steps(task, node) for task in tasks)
            each = {
                name: max(0.0, seconds[name] - measured[-2][name]) / (STEPS[1] - STEPS[0]) for name in seconds
            }
            seconds = {name: seconds[name] + each[name] * max(0, full - STEPS[1]) for name in seconds}
        choice = min(seconds, key=seconds.__getitem__)
        log.info(
            "engine of %s: %s (%d clients, for %d steps each: vectorized %.3f s, sequential %.3f s).",
            tasks[0].method,
            choice,
            len(tasks),
            full,
            seconds["vectorized"],
            seconds["sequential"],
        )
        return choice

    def _seconds(self, engine: Any, tasks: Sequence[Task], node: Node, steps: int) -> float:
        training = node.client.training
        limit = steps if training.max_steps < 0 else min(steps, training.max_steps)
        node.client.training = replace(training, max_steps=limit)
        started = time.perf_counter()
        try:
            engine.run(tasks, node)
        finally:
            node.client.training = training
        return time.perf_counter() - started


def _steps(task: Task, node: Node) -> int:
    """Optimiser steps of an ordinary `fit` of this client."""
    data, training = node.client_data(task), node.client.training
    steps = len(data.loader("train")) * training.max_epochs if len(data.train) else 0
    return steps if training.max_steps < 0 else min(steps, training.max_steps)
