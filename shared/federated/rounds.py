"""`rounds.jsonl`: one row a round, with the times that have no place among reproducible metrics."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


class RoundsFile:
    def __init__(self, path: Path) -> None:
        self.path, self.resumed = path, False

    def add(self, number: int, clients: list[int], record: Any, values: dict[str, float]) -> None:
        """Append a round; rows that a killed run wrote past its checkpoint are replaced."""
        row = {
            "round": number,
            "clients": clients,
            "participants": sorted(record.participants),
            "dropped": sorted(record.dropped),
            "excluded": {str(client): reason for client, reason in record.excluded.items()},
            "seconds": {name: round(value, 4) for name, value in record.seconds.items()},
            **values,
        }
        if not self.resumed:
            kept = [json.dumps(old) + "\n" for old in self.rows() if old["round"] < number]
            self.path.write_text("".join(kept))
            self.resumed = True
        with self.path.open("a") as file:
            file.write(json.dumps(row) + "\n")

    def rows(self) -> list[dict[str, Any]]:
        """All rows; a torn last line is dropped."""
        found = []
        for line in self.path.read_text().splitlines() if self.path.exists() else []:
            try:
                found.append(json.loads(line))
            except ValueError:
                continue
        return found
