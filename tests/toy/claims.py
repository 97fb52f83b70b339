"""Claims of the toy paper that need a function."""

from __future__ import annotations

from typing import Any


def gain(results: Any, row: str) -> dict[int, float]:
    """Error at the slow rate minus error at the fast one, for each seed."""
    slow, fast = results.per_seed(row, "slow"), results.per_seed(row, "fast")
    return {seed: slow[seed] - fast[seed] for seed in sorted(slow.keys() & fast.keys())}
