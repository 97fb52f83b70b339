"""The door to data and weights: what exists, where it lies, what is missing and how to get it.

Embedded sets are small, come out of public packages and are fetched into the cache (`embedded.yaml`).
Real sets are supplied by the user below `data.root` (`real.yaml`).
"""

from __future__ import annotations

from shared.data.entries import EmbeddedSet, RealSet, embedded_sets, entry, real_sets
from shared.data.fetch import fetch, locate, verify
from shared.data.requirements import (
    Requirement,
    check_layout,
    huggingface_requirement,
    missing,
    requirement,
)

__all__ = [
    "EmbeddedSet",
    "RealSet",
    "Requirement",
    "check_layout",
    "embedded_sets",
    "entry",
    "fetch",
    "huggingface_requirement",
    "locate",
    "missing",
    "real_sets",
    "requirement",
    "verify",
]
