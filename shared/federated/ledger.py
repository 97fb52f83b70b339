"""Who sent how many bytes of what, in which round, phase and direction. Counted on the encoded message."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shared.federated import wire

DIRECTIONS = ("down", "up")


class Ledger:
    """One row a message: (round, phase, direction, client, profile). A profile is a message's bytes by name.

    Messages of equal layout share their profile, so a thousand rounds stay a few kilobytes.
    """

    def __init__(self) -> None:
        self.phases: list[str] = []
        self.profiles: list[dict[str, int]] = []
        self.rows: list[tuple[int, int, int, int, int]] = []
        self._index: dict[tuple, int] = {}

    def count(
        self,
        message: bytes,
        *,
        round: int,
        phase: str,
        direction: str,
        client: int,
        readable: bool = True,
    ) -> int:
        """Enter one message; returns its length. All of one that is not readable counts as header."""
        sizes = wire.sizes(message) if readable else {wire.HEADER: len(message)}
        profile = self._index.setdefault(tuple(sizes.items()), len(self.profiles))
        if profile == len(self.profiles):
            self.profiles.append(sizes)
        if phase not in self.phases:
            self.phases.append(phase)
        self.rows.append((round, self.phases.index(phase), DIRECTIONS.index(direction), client, profile))
        return len(message)

    def total(
        self,
        *,
        round: int | None = None,
        phase: str | None = None,
        direction: str | None = None,
        client: int | None = None,
        name: str | None = None,
        header: bool = True,
    ) -> int:
        """Bytes of all messages that fit what is given.

        Args:
            name: an entry ("model/net.0.weight") or a group of them ("model").
            header: whether framing, names, shapes and strings count; without them only tensors and numbers.
        """
        return sum(self.by("name", round, phase, direction, client, name, header).values())

    def by(
        self,
        key: str,
        round: int | None = None,
        phase: str | None = None,
        direction: str | None = None,
        client: int | None = None,
        name: str | None = None,
        header: bool = True,
    ) -> dict[Any, int]:
        """Bytes split by `key`: "round", "phase", "direction", "client" or "name"."""
        found: dict[Any, int] = {}
        for row in self.rows:
            at = {
                "round": row[0],
                "phase": self.phases[row[1]],
                "direction": DIRECTIONS[row[2]],
                "client": row[3],
            }
            wanted = {"round": round, "phase": phase, "direction": direction, "client": client}
            if any(value is not None and at[which] != value for which, value in wanted.items()):
                continue
            for entry, size in self.profiles[row[4]].items():
                if entry == wire.HEADER and not header:
                    continue
                if name is None or entry == name or entry.startswith(f"{name}/"):
                    label = entry if key == "name" else at[key]
                    found[label] = found.get(label, 0) + size
        return found

    def state_dict(self) -> dict[str, Any]:
        return {
            "phases": list(self.phases),
            "profiles": [dict(profile) for profile in self.profiles],
            "rows": [list(row) for row in self.rows],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.phases = list(state["phases"])
        self.profiles = [dict(profile) for profile in state["profiles"]]
        self.rows = [tuple(row) for row in state["rows"]]
        self._index = {tuple(profile.items()): i for i, profile in enumerate(self.profiles)}
