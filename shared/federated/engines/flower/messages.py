"""Tasks and outcomes as Flower records: bytes in the wire format of the loop, and a few plain fields."""

from __future__ import annotations

import json
from typing import Any

from flwr.app import ConfigRecord, RecordDict

from shared.errors import UserError
from shared.federated.codecs import Chain, Codec
from shared.federated.engines.flower.client import RECORD
from shared.federated.errors import ClientError
from shared.federated.node import Outcome, Task

BYTES = "message"


def carrier(message: bytes) -> ConfigRecord:
    """The record of a message; Flower sends a record that several messages share once."""
    return ConfigRecord({BYTES: message})


def from_task(
    task: Task, inbox: ConfigRecord, *, run: str, version: str, keep: str, codec: str, identity: str
) -> RecordDict:
    """`inbox`: the carrier of the task's message; `version` of the client's state to start from; `keep`:
    another version that the client must not forget; `codec`: of the reply, when it is not the usual one;
    `identity`: what the client must have like the server, as JSON."""
    fields = {
        "client": task.client,
        "round": task.round,
        "position": task.position,
        "method": task.method,
        "save_state": task.save_state,
        "run": run,
        "version": version,
        "keep": keep,
        "codec": codec,
        "identity": identity,
    }
    return RecordDict({RECORD: ConfigRecord(fields), BYTES: inbox})


def to_task(content: RecordDict) -> tuple[Task, dict[str, Any]]:
    """The task, and the other fields."""
    fields = dict(content[RECORD])
    names = ("client", "round", "position", "method", "save_state")
    return Task(message=content[BYTES][BYTES], **{name: fields.pop(name) for name in names}), fields


def from_outcome(outcome: Outcome, version: str, failure: str = "") -> RecordDict:
    """`failure`: an error of the code rather than of what the client was asked."""
    fields: dict[str, Any] = {
        "client": outcome.client,
        "error": outcome.error,
        "seconds": outcome.seconds,
        "version": version,
        "failure": failure,
    }
    records = {RECORD: ConfigRecord(fields)}
    if outcome.message is not None:
        records[BYTES] = carrier(outcome.message)
    return RecordDict(records)


def to_outcome(content: RecordDict, client: int) -> tuple[Outcome, str, str]:
    """The outcome, the version of the client's state, and the failure.

    Raises:
        ClientError: the reply has not the fields of one, or is another client's.
    """
    try:
        fields = dict(content[RECORD])
        message = content[BYTES][BYTES] if BYTES in content else None
        outcome = Outcome(int(fields["client"]), message, str(fields["error"]), float(fields["seconds"]))
        version, failure = str(fields["version"]), str(fields["failure"])
    except (KeyError, TypeError, ValueError) as error:
        raise ClientError(f"its reply is none of this loop's ({type(error).__name__}: {error}).") from None
    if outcome.client != client or not isinstance(message, (bytes, type(None))):
        raise ClientError(f"its reply says it is client {outcome.client}'s.")
    return outcome, version, failure


def describe(chain: Chain) -> str:
    """A chain as JSON, for one call of a round with a codec of its own."""

    def plain(value: Any) -> Any:
        if isinstance(value, Codec):
            return {"codec": type(value).__qualname__, "settings": plain(vars(value))}
        if isinstance(value, dict):
            return {str(key): plain(item) for key, item in value.items()}
        if isinstance(value, (bool, int, float, str, type(None))):
            return value
        if isinstance(value, (list, tuple)):
            return [plain(item) for item in value]
        raise UserError(f"the codec {chain} holds a {type(value).__name__}; it cannot be named to a client.")

    return json.dumps([plain(codec) for codec in chain.codecs])


def understand(text: str) -> Chain:
    """The inverse of `describe`, from codecs that this process knows; nothing is imported or evaluated.

    Raises:
        ClientError: a codec that is not known here.
    """
    known = {kind.__qualname__: kind for kind in _kinds(Codec)}

    def built(value: Any) -> Any:
        if isinstance(value, list):
            return [built(item) for item in value]
        if not isinstance(value, dict):
            return value
        if set(value) != {"codec", "settings"}:
            return {key: built(item) for key, item in value.items()}
        if value["codec"] not in known:
            raise ClientError(f"the codec {value['codec']} is not known here.")
        codec = object.__new__(known[value["codec"]])
        vars(codec).update({key: built(item) for key, item in value["settings"].items()})
        return codec

    return Chain([built(value) for value in json.loads(text)])


def _kinds(kind: type[Codec]) -> list[type[Codec]]:
    return [kind, *(found for child in kind.__subclasses__() for found in _kinds(child))]
