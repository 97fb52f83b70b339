"""Ways to run the tasks of one call. All give the results of `Sequential`, `vectorized` up to rounding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from shared.errors import UserError, suggest

if TYPE_CHECKING:  # a node of a Flower federation that only says who it is should not load torch
    from shared.federated.node import Node, Outcome, Task


class Engine(Protocol):
    """Runs every task and returns one outcome each, in any order.

    An engine may batch clients, share them out or send them elsewhere. It uses `node.run(task)` for one
    client, or `node.open`, `node.client_data`, `node.randomness`, `node.seal` and `node.states` to do the
    same in its own way.
    """

    def run(self, tasks: Sequence[Task], node: Node) -> list[Outcome]: ...


def make(engine: str | Engine) -> Engine:
    """An engine by name, or the object given."""
    if not isinstance(engine, str):
        return engine
    if engine == "sequential":
        from shared.federated.engines.sequential import Sequential

        return Sequential()
    if engine == "vectorized":
        from shared.federated.engines.vectorized import Vectorized

        return Vectorized()
    if engine == "auto":
        from shared.federated.engines.auto import Auto

        return Auto()
    if engine == "flower":
        from shared.federated.engines import flower

        flower.require()
        from shared.federated.engines.flower.simulation import Simulation

        return Simulation()
    names = ["auto", "sequential", "vectorized", "flower"]
    raise UserError(f"unknown engine '{engine}'; engines: {', '.join(names)}.{suggest(engine, names)}")
