"""The server's side: an engine that sends the tasks of a call through a Flower `Grid`."""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Iterator, Sequence
from typing import Any

from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from shared.errors import UserError
from shared.federated.engines.flower import messages
from shared.federated.engines.flower.client import RECORD
from shared.federated.engines.flower.site import Parts
from shared.federated.engines.flower.states import RemoteStates
from shared.federated.errors import ClientError
from shared.federated.module import FederatedModule
from shared.federated.node import Node, Outcome, Task

log = logging.getLogger(__name__)
FIRST_PAUSE, LONGEST_PAUSE = 0.01, 0.5  # seconds between two looks for replies
QUESTION_TTL = 60.0


class Flower:
    """Tasks to nodes and replies back.

    Args:
        grid: of the running ServerApp.
        timeout: seconds a call waits for its replies; who has not answered then is lost to this call.
        wait: seconds the first call waits until every client of the federation is there.
        run: names the folder in which nodes keep their states; a resumed run must use the same name.
    """

    def __init__(
        self, grid: Grid | None, *, timeout: float = 600.0, wait: float = 60.0, run: str = ""
    ) -> None:
        self.grid, self.timeout, self.wait, self.name = grid, timeout, wait, run
        self.node_of: dict[int, int] = {}  # client -> node
        self._seen: set[int] = set()
        self._asked: dict[str, int] = {}  # question -> node
        self._waited = False

    def attach(self, module: FederatedModule) -> None:
        """Called when `module` is set up, before a checkpoint is loaded: states are with the clients now."""
        if module.trainer.world_size > 1:
            raise UserError("the flower engine runs one server process; use Trainer(devices=1).")
        if not isinstance(module.states, RemoteStates):
            module.states = RemoteStates()
        self.parts = Parts.of(module, module.data)
        self._usual, self._identity = repr(module.up), json.dumps(self.parts.identity())
        if not self.name:
            text = json.dumps([module.seed, module.identity()], sort_keys=True, default=str)
            self.name = f"run-{hashlib.sha256(text.encode()).hexdigest()[:12]}"

    def run(self, tasks: Sequence[Task], node: Node) -> list[Outcome]:
        self._discover(set(node.data.clients))
        states: Any = node.states
        codec = "" if repr(node.up) == self._usual else messages.describe(node.up)
        inboxes = {id(task.message): task.message for task in tasks}
        carriers = {key: messages.carrier(message) for key, message in inboxes.items()}
        outcomes, sent = [], {}
        for task in tasks:
            if task.client in self.node_of:
                sent[task.client] = messages.from_task(
                    task,
                    carriers[id(task.message)],
                    run=self.name,
                    version=states.version(task.client),
                    keep=states.saved.get(task.client, ""),
                    codec=codec,
                    identity=self._identity,
                )
            else:
                outcomes.append(Outcome(task.client, None, "no connected node is this client."))
        failures = []
        saving = {task.client for task in tasks if task.save_state}
        for client, reply in self._exchange(sent):
            outcome, version, failure = self._understood(client, reply)
            if failure:
                failures.append(failure)
            elif client in saving and not outcome.error:
                states.moved(client, version)
            outcomes.append(outcome)
        if len(failures) == len(tasks) > 1:  # no client's fault
            raise RuntimeError(f"all {len(tasks)} clients failed, the first with: {failures[0]}")
        return outcomes

    def _check(self) -> None:
        """Raise when no reply can come any more."""

    def close(self) -> None:
        """Nodes go on waiting for work; whoever started them stops them."""

    def _understood(self, client: int, reply: Message | str) -> tuple[Outcome, str, str]:
        if isinstance(reply, str):
            return Outcome(client, None, reply), "", ""
        try:
            return messages.to_outcome(reply.content, client)
        except ClientError as error:
            return Outcome(client, None, str(error)), "", ""

    def _exchange(self, sent: dict[int, RecordDict]) -> Iterator[tuple[int, Message | str]]:
        """Every client's reply, or why there is none."""
        waiting = {}
        for client, content in sent.items():
            message = Message(content, self.node_of[client], MessageType.TRAIN, ttl=self.timeout + 1)
            if pushed := next(iter(self.grid.push_messages([message])), None):
                waiting[pushed] = client
            else:
                yield client, "its task could not be sent."
        end, pause = time.monotonic() + self.timeout, FIRST_PAUSE
        while waiting:
            for reply in self.grid.pull_messages(list(waiting)):
                client = waiting.pop(reply.metadata.reply_to_message_id, None)
                if client is None:
                    continue
                pause = FIRST_PAUSE
                if reply.has_error():
                    yield client, f"its node reports: {reply.error.reason} (code {reply.error.code})"
                else:
                    yield client, reply
            if time.monotonic() > end:
                break
            self._check()
            if waiting:
                time.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
        for client in waiting.values():
            yield client, f"no reply within {self.timeout:g} s."

    def _discover(self, everybody: set[int]) -> None:
        """Know which node is which client. The first call waits for everybody; later nodes join later."""
        end = time.monotonic() + self.wait
        while True:
            self._identify()
            missing = everybody - set(self.node_of)
            if self._waited or not missing or time.monotonic() > end:
                break
            time.sleep(0.05)
        if not self._waited and missing:
            log.warning(
                "%d of %d clients are not connected: %s", len(missing), len(everybody), sorted(missing)
            )
        self._waited = True

    def _identify(self) -> None:
        """Take note of nodes that left, ask new ones, hear those that answered; waits for nobody."""
        present = set(self.grid.get_node_ids())
        self.node_of = {client: place for client, place in self.node_of.items() if place in present}
        for place in sorted(present - self._seen):
            question = RecordDict({RECORD: ConfigRecord({"question": "which client are you"})})
            message = Message(question, place, MessageType.QUERY, ttl=self.wait + QUESTION_TTL)
            self._asked |= dict.fromkeys(filter(None, self.grid.push_messages([message])), place)
        self._seen = present
        for reply in self.grid.pull_messages(list(self._asked)) if self._asked else []:
            place = self._asked.pop(reply.metadata.reply_to_message_id, None)
            if place is None:
                continue
            client = None if reply.has_error() else reply.content.get(RECORD, {}).get("client")
            if isinstance(client, int):
                self.node_of[client] = place
            else:
                why = reply.error.reason if reply.has_error() else "its answer is none of this loop's"
                log.warning("node %d does not say which client it is: %s", place, why)
                self._seen.discard(place)  # asked again by the next call
