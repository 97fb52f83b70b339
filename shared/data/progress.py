"""Progress of one download on the terminal; a plain line where standard error is no terminal."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

LARGE = 5_000_000  # bytes; smaller ones are done before a bar would be read


@contextlib.contextmanager
def reporting(name: str, source: str, total: int) -> Iterator[Callable[[int], None]]:
    """Yield a function that is told the bytes so far; `total` 0: nothing is downloaded or shown."""
    if not total:
        yield lambda done: None
        return
    if total < LARGE or not sys.stderr.isatty():
        print(f"fetching {name} ({total / 1e6:.1f} MB) by {source}", file=sys.stderr)
        yield lambda done: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
    from rich.progress import TransferSpeedColumn as Speed

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        Speed(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(f"fetching {name}", total=total)
        yield lambda done: progress.update(task, completed=done)
