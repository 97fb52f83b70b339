"""What a node works with: tasks are run by the `Node` of its site."""

from __future__ import annotations

import copy
import json
import logging
import traceback
from dataclasses import dataclass
from pathlib import Path

import torch
from flwr.app import RecordDict

from shared.federated.client import FederatedClient
from shared.federated.codecs import Chain
from shared.federated.data import FederatedData
from shared.federated.engines.flower import messages
from shared.federated.engines.flower.states import StateFolder
from shared.federated.errors import ClientError
from shared.federated.module import FederatedModule
from shared.federated.node import Node, Outcome
from shared.federated.state import ClientStates
from shared.training.seeding import derive_seed

log = logging.getLogger(__name__)


@dataclass
class Parts:
    """What server and site must have alike."""

    client: FederatedClient
    data: FederatedData
    up: Chain
    down: Chain
    seed: int

    @classmethod
    def of(cls, module: FederatedModule, data: FederatedData) -> Parts:
        """Those of a federation, without its Trainer and without the server's copy of the model."""
        client, data = copy.copy(module.client), copy.copy(data)
        client.module, data.trainer = client._template, None
        return cls(client, data, module.up, module.down, module.seed)

    def identity(self) -> dict[str, str]:
        """By which a server knows that a site would do the same."""
        kind = type(self.client)
        found = {
            "client": f"{kind.__module__}.{kind.__qualname__}",
            "codec": self.up,
            "down_codec": self.down,
            **self.data.identity(),
        }
        return {name: str(value) for name, value in found.items()}


@dataclass
class Site:
    """One node: which client it is, where its states are, and what it works with.

    `secret` makes its random numbers its own: noise of privacy codecs that nobody else can repeat.
    """

    number: int
    folder: Path
    parts: Parts
    secret: str = ""
    device: str = "cpu"

    def run(self, content: RecordDict) -> RecordDict:
        """A task to its outcome. Errors are told to the server, with their traceback in the site's log."""
        task, about = messages.to_task(content)
        try:
            if task.client != self.number:
                raise ClientError(f"this node is client {self.number}, not {task.client}.")
            if task.method.startswith("_"):
                raise ClientError(f"'{task.method}' is no method for a server to call.")
            self._compare(json.loads(about["identity"]))
            store = StateFolder(self.folder / _safe(about["run"]) / f"client-{task.client}")
            parts, states, version = self.parts, ClientStates(), about["version"]
            states[task.client] = store.load(version)
            up = parts.up if about["codec"] == "" else messages.understand(about["codec"])
            seed = derive_seed(parts.seed, "site", self.secret) if self.secret else parts.seed
            node = Node(parts.client, parts.data, states, up=up, down=parts.down, seed=seed)
            node.client.device = torch.device(self.device)
            outcome = node.run(task)
            if task.save_state and not outcome.error:
                version = store.save(states[task.client], task.client)
            store.keep({version, about["version"], about["keep"]})
        except ClientError as error:
            return messages.from_outcome(Outcome(task.client, None, str(error)), about["version"])
        except Exception as error:
            log.error("client %d: %s", task.client, traceback.format_exc())
            notes = "; ".join(getattr(error, "__notes__", []))
            failure = f"{type(error).__name__}: {error}" + (f" ({notes})" if notes else "")
            return messages.from_outcome(Outcome(task.client, None, failure), about["version"], failure)
        return messages.from_outcome(outcome, version)

    def _compare(self, theirs: dict[str, str]) -> None:
        ours = self.parts.identity()
        differences = [
            f"{name}: {ours.get(name)} here, {theirs.get(name)} at the server"
            for name in sorted({*ours, *theirs})
            if ours.get(name) != theirs.get(name)
        ]
        if differences:
            raise ClientError(f"its node runs another federation ({'; '.join(differences)}).")


def _safe(name: str) -> str:
    if not name or not name.replace("-", "").replace("_", "").isalnum():
        raise ClientError(f"'{name}' cannot name a run.")
    return name
