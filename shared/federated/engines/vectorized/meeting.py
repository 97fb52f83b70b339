"""Client methods that wait for each other in `train`.

Every method runs on a thread of its own, one at a time and each with its own random streams, until it asks
for local training. When all have asked, or are done, the jobs of those who asked are trained together and
each goes on with its trained model. A method may train several times, and nothing in it has to know.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Sequence

import torch

from shared.federated.engines.vectorized.randomness import Randomness
from shared.federated.local import Job, Report, trained_by
from shared.federated.node import Node, Outcome, Task

Answer = Report | Exception


def run_together(
    tasks: Sequence[Task], node: Node, train: Callable[[list[Job], list[Randomness]], list[Answer]]
) -> list[Outcome]:
    """The outcomes of `tasks`; `train` gets the jobs that meet and answers each: a report or an error."""
    actors = [_Actor(task, node) for task in tasks]
    waiting = actors
    try:
        while waiting:
            outer = Randomness.capture(node.client.device)
            try:
                for actor in waiting:
                    actor.proceed()
            finally:
                outer.restore()
            waiting = [actor for actor in waiting if actor.job is not None]
            if waiting:
                answers = train([a.job for a in waiting], [a.randomness for a in waiting])
                for actor, answer in zip(waiting, answers, strict=True):
                    actor.answer = answer
    finally:
        for actor in actors:
            actor.abandon()
    return [actor.outcome for actor in actors]


class _Abandoned(BaseException):
    """Unwinds a method whose call has failed elsewhere."""


class _Actor:
    """One task on its thread. It and the caller never run at the same time. It leaves its streams behind."""

    def __init__(self, task: Task, node: Node) -> None:
        self.task, self.node = task, node
        self.job: Job | None = None  # what it waits for
        self.answer: Answer | None = None
        self.randomness: Randomness | None = None
        self.outcome: Outcome | None = None
        self._failure: BaseException | None = None
        self._turn, self._returned = threading.Semaphore(0), threading.Semaphore(0)
        self._thread: threading.Thread | None = None
        self._abandoned, self._grad = False, torch.is_grad_enabled()

    def proceed(self) -> None:
        """Run until the method trains or ends.

        Raises:
            Exception: what the method raised.
        """
        if self.randomness is not None:
            self.randomness.restore()
        if self._thread is None:
            context = contextvars.copy_context()
            self._thread = threading.Thread(
                target=context.run, args=(self._run,), name=f"client-{self.task.client}", daemon=True
            )
            self._thread.start()
        else:
            self._turn.release()
        self._returned.acquire()
        if self.job is not None:
            self.randomness = Randomness.capture(self.node.client.device)
        if self._failure is not None:
            raise self._failure

    def abandon(self) -> None:
        if self._thread is not None:
            if self._thread.is_alive() and self.job is not None:
                self._abandoned = True
                outer = Randomness.capture(self.node.client.device)
                self._turn.release()
                self._returned.acquire()
                outer.restore()
            self._thread.join()

    def _run(self) -> None:
        try:
            with trained_by(self._arrive), torch.set_grad_enabled(self._grad):
                if self.node.client.device.type == "cuda":
                    torch.cuda.set_device(self.node.client.device)
                self.outcome = self.node.run(self.task)
        except BaseException as error:
            self._failure = error
        finally:
            self.job = None
            self._returned.release()

    def _arrive(self, job: Job) -> Report:
        self.job = job
        self._returned.release()
        self._turn.acquire()
        self.job = None
        if self._abandoned:
            raise _Abandoned
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer
