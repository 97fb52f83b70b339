"""The clients of a call shared out over the ranks of Lightning's strategy (devices=2, DDP, many nodes).

Every rank then has every reply and every state, so all ranks run the same server code and stay equal. What is
exchanged is bytes in the wire format; nothing is unpickled.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from shared.federated import trees
from shared.federated.engines import Engine
from shared.federated.node import Node, Outcome, Task


class Ranks:
    """`inner` runs this rank's share of the tasks."""

    def __init__(self, inner: Engine) -> None:
        self.inner = inner

    def run(self, tasks: Sequence[Task], node: Node) -> list[Outcome]:
        rank, size = dist.get_rank(), dist.get_world_size()
        mine = tasks[rank::size]
        outcomes, failure = [], None
        try:
            outcomes = self.inner.run(mine, node)
        except Exception as error:  # the other ranks wait for this one's share
            failure = error
        share = {
            "failure": "" if failure is None else f"{type(failure).__name__}: {failure}",
            "outcomes": [
                [o.client, None if o.message is None else _tensor(o.message), o.error, o.seconds]
                for o in outcomes
            ],
            "engine": self.state_dict(),
            "states": {task.client: node.states[task.client] for task in mine if task.save_state},
        }
        found: list[Outcome] = []
        shares = [
            trees.from_bytes(message) for message in _all_gather(trees.to_bytes(share), node.client.device)
        ]
        if failure is not None:
            raise failure
        self.load_state_dict(shares[0]["engine"])  # what rank 0 decided holds for all from now on
        for other, theirs in enumerate(shares):
            if theirs["failure"]:
                raise RuntimeError(f"rank {other} failed: {theirs['failure']}")
            for client, message, error, seconds in theirs["outcomes"]:
                data = None if message is None else message.numpy().tobytes()
                found.append(Outcome(client, data, error, seconds))
            if other != rank:
                for client, state in theirs["states"].items():
                    node.states[client] = state
        return found

    def state_dict(self) -> dict[str, Any]:
        return self.inner.state_dict() if hasattr(self.inner, "state_dict") else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state and hasattr(self.inner, "load_state_dict"):
            self.inner.load_state_dict(state)


def _tensor(message: bytes) -> Tensor:
    return torch.frombuffer(bytearray(message), dtype=torch.uint8)


def _all_gather(message: bytes, device: torch.device) -> list[bytes]:
    """Every rank's message, on every rank."""
    own = _tensor(message).to(device)
    sizes = [torch.zeros(1, dtype=torch.int64, device=device) for _ in range(dist.get_world_size())]
    dist.all_gather(sizes, torch.tensor([len(own)], device=device))
    longest = int(max(sizes))
    padded = torch.zeros(longest, dtype=torch.uint8, device=device)
    padded[: len(own)] = own
    gathered = [torch.empty_like(padded) for _ in sizes]
    dist.all_gather(gathered, padded)
    return [data[: int(size)].cpu().numpy().tobytes() for data, size in zip(gathered, sizes, strict=True)]
