"""The clients of one round, as the server's code sees them."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from torch import Tensor

from shared.errors import UserError, suggest
from shared.federated.codecs import Chain, Codec, Context, chain
from shared.federated.errors import ClientError, WireError
from shared.federated.node import Task
from shared.federated.payload import Payload, Reply

if TYPE_CHECKING:
    from shared.federated.module import FederatedModule

log = logging.getLogger(__name__)
Expected: TypeAlias = str | Sequence[str] | Mapping[str, str]


@dataclass
class RoundRecord:
    """What happened in one round, for the log."""

    participants: set[int] = field(default_factory=set)
    dropped: set[int] = field(default_factory=set)
    excluded: dict[int, str] = field(default_factory=dict)
    bytes: dict[str, int] = field(default_factory=lambda: {"down": 0, "up": 0})
    metrics: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=lambda: {"clients": 0.0, "codec": 0.0})

    def means(self) -> dict[str, float]:
        """What clients logged, weighted by their samples."""
        return {
            name: sum(value * weight for value, weight in pairs)
            / max(sum(weight for _, weight in pairs), 1e-12)
            for name, pairs in self.metrics.items()
        }


class Cohort:
    """`round`: its number. `clients`: who takes part, in the sampler's order."""

    def __init__(
        self, server: FederatedModule, round: int, clients: Sequence[int], record: RoundRecord | None = None
    ) -> None:
        self.server, self.round, self.clients = server, round, list(clients)
        self.record = record or RoundRecord()
        self.positions = {client: i for i, client in enumerate(self.clients)}

    def call(
        self,
        method: str,
        payload: Payload | Callable[[int], Payload],
        *,
        codec: Chain | Codec | Sequence[Codec] | None = None,
        phase: str | None = None,
        expects: Expected = (),
        save_state: bool = True,
    ) -> list[Reply]:
        """Send `payload`, run `method` at every client, return the replies in ascending order of client ids.

        Args:
            method: of the `FederatedClient`.
            payload: for all, or client -> its own.
            codec: of the replies; default: the server's `codec`.
            phase: the ledger's name of this exchange; default: `method`.
            expects: entries that must be in a reply. In a group every key must have been sent, as a tensor of
                the same shape and kind (fewer keys are legal); a number must not be negative. A mapping
                names the group that was sent where it has another name: {"delta_control": "control"}.
            save_state: False leaves every client's state as it was (evaluation).

        Clients that vanish, decline or are left out have no reply; the list may be empty.

        Raises:
            UserError: no such method.
            ClientError: a client failed or sent something unusable, and `on_bad_reply` is "raise".
        """
        server, node = self.server, self.server.node
        if not callable(getattr(node.client, method, None)):
            known = [name for name in dir(node.client) if name[0] != "_"]
            raise UserError(f"{type(node.client).__name__} has no method '{method}'.{suggest(method, known)}")
        started = time.perf_counter()
        vanishing = {c for c in self.clients if save_state and server.data.dropouts(c, self.round)}
        rolled_back = set() if server.data.keep_dropout_state else vanishing
        tasks = {
            client: Task(
                client,
                self.round,
                self.positions[client],
                method,
                message,
                save_state and client not in rolled_back,
            )
            for client, message in self._messages(payload, phase or method)
        }
        before = {}
        if server.on_bad_reply == "exclude":
            before = {client: server.states[client] for client, task in tasks.items() if task.save_state}
        sent = time.perf_counter()
        previous, node.up = node.up, node.up if codec is None else chain(codec)
        try:
            outcomes = server.engine.run(list(tasks.values()), node)
            worked = time.perf_counter()
            replies = []
            for outcome in sorted(outcomes, key=lambda outcome: outcome.client):
                if outcome.client in vanishing:
                    self.record.dropped.add(outcome.client)
                    continue
                reply = self._receive(outcome, tasks[outcome.client], phase or method, expects)
                outcome.message = None  # the bytes of one reply at a time, beside what was decoded
                if reply is not None:
                    replies.append(reply)
                elif outcome.client in self.record.excluded and outcome.client in before:
                    server.states[outcome.client] = before[outcome.client]
        finally:
            node.up = previous
        self.record.seconds["clients"] += worked - sent
        self.record.seconds["codec"] += sent - started + time.perf_counter() - worked
        return replies

    def only(self, clients: Sequence[int]) -> Cohort:
        """The part of this round that consists of `clients`, in the order given."""
        part = Cohort(self.server, self.round, clients, self.record)
        part.positions |= {client: self.positions[client] for client in clients if client in self.positions}
        return part

    @property
    def everyone(self) -> Cohort:
        """All clients that train, whether drawn this round or not (set-up, discovery, groupings)."""
        return self.only([c for c in self.server.data.training_clients if c not in self.record.dropped])

    def grouped(self, group_of: Mapping[int, Hashable] | Callable[[int], Hashable]) -> Iterator[tuple]:
        """(group, its part of the cohort), in order of first appearance by ascending client id."""
        lookup = group_of.__getitem__ if isinstance(group_of, Mapping) else group_of
        members: dict[Hashable, list[int]] = {}
        for client in sorted(self.clients):
            members.setdefault(lookup(client), []).append(client)
        for group, clients in members.items():
            yield group, self.only(sorted(clients, key=self.clients.index))

    @property
    def stage(self) -> int:
        """The running stage of the task stream; 0 without one."""
        return self.server.data.stream.stage(self.round) if self.server.data.stream else 0

    @property
    def starts_stage(self) -> bool:
        return self.server.data.stream.starts(self.round) if self.server.data.stream else self.round == 0

    @property
    def ends_stage(self) -> bool:
        return bool(self.server.data.stream) and self.server.data.stream.ends(self.round)

    def _messages(
        self, payload: Payload | Callable[[int], Payload], phase: str
    ) -> Iterator[tuple[int, bytes]]:
        encode = self.server.down.encode
        broadcast = None if callable(payload) else encode(payload)  # encoded once, counted for every receiver
        for client in self.clients:
            if client not in self.record.dropped:
                message = encode(payload(client)) if broadcast is None else broadcast
                self._count(message, "down", client, phase)
                yield client, message

    def _receive(self, outcome: Any, task: Task, phase: str, expects: Expected) -> Reply | None:
        client = outcome.client
        if outcome.error:
            return self._bad(client, outcome.error)
        if outcome.message is None:
            return None
        inbox = self.server.node.open(task.message)
        try:
            reply = Reply(client, self.server.node.up.decode(outcome.message, Context(inbox)))
        except ClientError as error:
            self._count(outcome.message, "up", client, phase, readable=not isinstance(error, WireError))
            return self._bad(client, str(error))
        self._count(outcome.message, "up", client, phase)
        try:
            check(reply, inbox, expects)
        except ClientError as error:
            return self._bad(client, str(error))
        self.record.participants.add(client)
        told = {f"client/{name}": reply[name] for name in ("lr", "num_steps") if name in reply}
        for name, value in {**reply.get("metrics", {}), **told}.items():
            self.record.metrics.setdefault(name, []).append((value, reply.get("num_samples", 1)))
        return reply

    def _bad(self, client: int, reason: str) -> None:
        if self.server.on_bad_reply == "raise":
            raise ClientError(f"client {client}, round {self.round}: {reason}")
        log.warning("client %d is left out of round %d: %s", client, self.round, reason)
        self.record.excluded[client] = reason

    def _count(
        self, message: bytes, direction: str, client: int, phase: str, *, readable: bool = True
    ) -> None:
        self.record.bytes[direction] += self.server.ledger.count(
            message, round=self.round, phase=phase, direction=direction, client=client, readable=readable
        )


def check(reply: Reply, inbox: Payload, expects: Expected = ()) -> None:
    """Refuse numbers that are not finite, a bad `num_samples`, and what does not fit `expects`.

    Metrics may be NaN: they are not aggregated.

    Raises:
        ClientError: with the entry's name.
    """
    for name, value in reply.flat().items():
        if not name.startswith("metrics/") and not _finite(value):
            raise ClientError(f"'{name}' holds NaN or infinity.")
    if not isinstance(reply.get("metrics", {}), Mapping):
        raise ClientError("'metrics' is no group of numbers.")
    if "num_samples" in reply:
        _check_number("num_samples", reply["num_samples"])
    for name, source in _sources(expects).items():
        if name not in reply:
            held = ", ".join(reply.entries) or "nothing"
            raise ClientError(f"'{name}' was expected, but the reply holds {held}.")
        sent = inbox.get(source)
        if isinstance(reply[name], Mapping) or isinstance(sent, Mapping):
            _check_group(name, reply[name], sent or {})
        else:
            _check_number(name, reply[name])


def _check_group(name: str, group: Any, sent: Mapping[str, Any]) -> None:
    if not isinstance(group, Mapping):
        raise ClientError(f"'{name}' was expected as a group of tensors, found a {type(group).__name__}.")
    for key, value in group.items():
        if key not in sent:
            raise ClientError(f"'{name}/{key}' was not asked for.{suggest(key, sent)}")
        if _form(value) != _form(sent[key]):
            raise ClientError(f"'{name}/{key}' is {_form(value)}, expected {_form(sent[key])}.")


def _check_number(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value < 0:
        raise ClientError(f"'{name}' was expected as a number from 0 up, found {value!r:.60}.")


def _form(value: Any) -> str:
    """What two tensors must have alike to be averaged."""
    if not isinstance(value, Tensor):
        return f"a {type(value).__name__}"
    kind = "floating-point" if value.is_floating_point() else "whole-number"
    return f"a {kind} tensor of shape {tuple(value.shape)}"


def _finite(value: Any) -> bool:
    """A finite sum proves it at a tenth of the cost; a sum may overflow, then every value is looked at."""
    if isinstance(value, Tensor):
        if not value.is_floating_point():
            return True
        return bool(value.sum().isfinite()) or bool(value.isfinite().all())
    return not isinstance(value, float) or math.isfinite(value)


def _sources(expects: Expected) -> dict[str, str]:
    """Name in the reply -> name in the inbox."""
    if isinstance(expects, Mapping):
        return dict(expects)
    return {name: name for name in ([expects] if isinstance(expects, str) else expects)}
