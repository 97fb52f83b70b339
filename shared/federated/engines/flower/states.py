"""Client states that stay at the clients: files of a node, and what the server knows of them.

A state's version is a hash of its bytes; "" is the empty state. The server names the version that a task
starts from, and learns the one that it ended with. So a reply that never arrives leaves the old state in
force, and a server that goes on from a checkpoint goes on from the states of that checkpoint.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from shared.errors import UserError
from shared.federated import trees
from shared.federated.errors import ClientError
from shared.federated.state import ClientStates


class StateFolder:
    """The states of one client of one run, a safetensors file for each version."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def load(self, version: str) -> dict[str, Any]:
        """The state of that version.

        Raises:
            ClientError: this node has no such version, or its file is damaged.
        """
        if not version:
            return {}
        if not version.isalnum():
            raise ClientError(f"'{version}' is no version of a state.")
        try:
            message = self._file(version).read_bytes()
        except OSError:
            held = ", ".join(sorted(path.stem for path in self.folder.glob("*.safetensors"))) or "none"
            raise ClientError(
                f"its state {version} is not in {self.folder} (there: {held}). Give the node its folder "
                "back, or resume from the newest checkpoint."
            ) from None
        if _version(message) != version:
            raise ClientError(f"its state {version} in {self.folder} was altered.")
        return trees.from_bytes(message)

    def save(self, state: dict[str, Any], client: int) -> str:
        """Keep `state`; returns its version."""
        state = trees.checked(state, f"state of client {client}")
        if not state:
            return ""
        message = trees.to_bytes(state)
        version = _version(message)
        if not self._file(version).exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            partial = self._file(version).with_suffix(f".{os.getpid()}")
            partial.write_bytes(message)
            partial.replace(self._file(version))
        return version

    def keep(self, versions: Iterable[str]) -> None:
        """Remove all others."""
        wanted = set(versions)
        for path in self.folder.glob("*.safetensors"):
            if path.stem not in wanted:
                path.unlink(missing_ok=True)

    def _file(self, version: str) -> Path:
        return self.folder / f"{version}.safetensors"


class RemoteStates(ClientStates):
    """The server's side: which version each client's state has, now and in the newest checkpoint."""

    def __init__(self) -> None:
        super().__init__()
        self.saved: dict[int, str] = {}

    def version(self, client: int) -> str:
        return self[client].get("version", "")

    def moved(self, client: int, version: str) -> None:
        self[client] = {"version": version} if version else {}

    def identity(self) -> dict[str, str]:
        return {"states": "kept by the clients"}

    def state_dict(self) -> dict[int, Any]:
        self.saved = {client: self.version(client) for client in self.clients()}
        return super().state_dict()

    def load_state_dict(self, state: dict[int, Any]) -> None:
        if any(set(content) != {"version"} for content in state.values()):
            raise UserError(
                "this checkpoint holds the clients' states; with Flower they stay at the clients."
            )
        super().load_state_dict(state)
        self.saved = {client: self.version(client) for client in self.clients()}


def _version(message: bytes) -> str:
    return hashlib.sha256(message).hexdigest()[:24]
