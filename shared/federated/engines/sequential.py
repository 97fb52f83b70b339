"""One client after the other in this process: the reference."""

from __future__ import annotations

from collections.abc import Sequence as Many

from shared.federated.node import Node, Outcome, Task


class Sequential:
    def run(self, tasks: Many[Task], node: Node) -> list[Outcome]:
        return [node.run(task) for task in tasks]
