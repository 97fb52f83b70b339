"""What a person sees while runs go on: a bar with the time left, or one line a run without a terminal."""

from __future__ import annotations

import time

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn

from shared.reproduction.execute import BUSY, Outcome
from shared.reproduction.plan import RunSpec
from shared.reproduction.store import FAILED, FINISHED


class RunProgress:
    """Context manager and `launchers.Report`; `minutes` is the first estimate, finished runs correct it."""

    def __init__(self, console: Console, total: int, minutes: float | None) -> None:
        self.console, self.total, self.estimate = console, total, None if minutes is None else 60 * minutes
        self.ended = 0
        self.at_once = 1
        self.seconds: list[float] = []  # of the runs that were carried out now
        self.running: dict[str, str] = {}
        self.started = time.monotonic()
        columns = [SpinnerColumn(), BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}")]
        self.bar = Progress(*columns, console=console, transient=True) if console.is_terminal else None

    def __enter__(self) -> RunProgress:
        if self.bar:
            self.task = self.bar.add_task("starting", total=self.total)
            self.bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self.bar:
            self.bar.stop()

    def __call__(self, event: str, spec: RunSpec, outcome: Outcome | None) -> None:
        if event == "started":
            self.running[spec.id] = spec.name
            self.at_once = max(self.at_once, len(self.running))
        elif outcome is not None:
            self.running.pop(spec.id, None)
            if outcome.state != BUSY:
                self.ended += 1
                self.seconds += [outcome.seconds] if outcome.seconds else []
                self._line(spec, outcome)
        if self.bar:
            now = ", ".join(self.running.values()) or "waiting for another reproduce"
            self.bar.update(self.task, completed=self.ended, description=f"{self._left()}  {now}")

    def say(self, text: str) -> None:
        """Print a line without disturbing the bar."""
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def _line(self, spec: RunSpec, outcome: Outcome) -> None:
        if self.bar and outcome.state == FINISHED:
            return  # the bar says it
        how = "reused" if outcome.reused else f"{outcome.state} after {outcome.seconds:.1f} s"
        text = f"[{self.ended}/{self.total}] {spec.name}: {how}"
        if outcome.state == FAILED:
            text += f": {outcome.error}\n        log: {outcome.log}"
        elif not self.bar and self.ended < self.total:
            text += f"  ({self._left()})"
        self.say(text)

    def _left(self) -> str:
        if self.seconds:
            left = sum(self.seconds) / len(self.seconds) * (self.total - self.ended) / self.at_once
        elif self.estimate is not None:
            left = max(0.0, self.estimate - (time.monotonic() - self.started))
        else:
            return "time left unknown"
        return f"{duration(left)} left"


def duration(seconds: float) -> str:
    """``"40 s"``, ``"12 min"``, ``"3.5 h"``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
