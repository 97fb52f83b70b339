"""Why something cannot be computed for many clients at once."""

from __future__ import annotations


class Refusal(Exception):
    """What was asked for has no batched form; the clients are trained one after the other instead.

    `structural`: clients whose objects have the same structure might still be batched among themselves.
    """

    def __init__(self, reason: str, *, structural: bool = False) -> None:
        super().__init__(reason)
        self.structural = structural
