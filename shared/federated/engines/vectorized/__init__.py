"""Many clients' local training as one batched computation."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from shared.federated.engines.vectorized.meeting import Answer, run_together
from shared.federated.engines.vectorized.randomness import Randomness
from shared.federated.engines.vectorized.refusal import Refusal
from shared.federated.engines.vectorized.tape import Tape
from shared.federated.engines.vectorized.template import alike
from shared.federated.engines.vectorized.training import train_together
from shared.federated.local import Job, train_alone
from shared.federated.node import Node, Outcome, Task

log = logging.getLogger(__name__)


class Vectorized:
    """Results are those of `Sequential` up to the order of floating-point sums.

    Args:
        lanes: how many clients train together; what exceeds it trains in further groups. Default: as many as
            fit into `memory`.
        memory: bytes that parameters, gradients and optimiser state of clients training together may take.

    What cannot be batched trains one client after the other; each reason is logged once.
    """

    def __init__(self, lanes: int | None = None, memory: int = 2**30) -> None:
        self.lanes, self.memory = lanes, memory
        self.reasons: set[str] = set()
        self.batched = 0  # jobs trained together so far
        self._tapes: dict[Any, Tape] = {}

    def run(self, tasks: Sequence[Task], node: Node) -> list[Outcome]:
        tasks = sorted(tasks, key=lambda task: task.client)  # results do not depend on the sampler's order
        lanes = self.lanes or self._affordable(node)
        outcomes: list[Outcome] = []
        for start in range(0, len(tasks), lanes):
            part = tasks[start : start + lanes]
            outcomes += [node.run(part[0])] if len(part) == 1 else run_together(part, node, self._train)
        return outcomes

    def _affordable(self, node: Node) -> int:
        trained = [p for p in node.client.module.parameters() if p.requires_grad]
        each = 5 * sum(p.numel() * p.element_size() for p in trained)  # twice itself, gradient, two of Adam
        return max(1, min(32, self.memory // max(each, 1)))

    def _train(self, jobs: list[Job], streams: list[Randomness]) -> list[Answer]:
        if len(jobs) == 1:
            return [_alone(jobs[0], streams[0])]
        try:
            reports = train_together(jobs, streams, self._tapes)
            self.batched += len(jobs)
            return list(reports)
        except Refusal as reason:
            groups = (
                alike([(job.model, job.extra_loss, job.gradient) for job in jobs])
                if reason.structural
                else []
            )
            if 1 < len(groups) < len(jobs):
                return self._train_groups(jobs, streams, groups)
            self._note(reason)
            return [_alone(job, stream) for job, stream in zip(jobs, streams, strict=True)]

    def _note(self, reason: Refusal) -> None:
        if str(reason) not in self.reasons:
            self.reasons.add(str(reason))
            log.warning("clients train one after the other: %s.", reason)

    def _train_groups(
        self, jobs: list[Job], streams: list[Randomness], groups: list[list[int]]
    ) -> list[Answer]:
        answers: dict[int, Any] = {}
        for group in groups:
            found = self._train([jobs[i] for i in group], [streams[i] for i in group])
            answers |= dict(zip(group, found, strict=True))
        return [answers[i] for i in range(len(jobs))]


def _alone(job: Job, stream: Randomness) -> Answer:
    """Train with the client's own streams; `stream` goes on where they end."""
    outer = Randomness.capture(stream.device)
    stream.restore()
    try:
        return train_alone(job)
    except Exception as error:
        return error
    finally:
        vars(stream).update(vars(Randomness.capture(stream.device)))
        outer.restore()
