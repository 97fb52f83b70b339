"""Where client methods run: one message in, one message out. Every engine is built on this."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from shared.errors import UserError
from shared.federated.client import FederatedClient
from shared.federated.codecs import Chain, Context
from shared.federated.data import ClientData, FederatedData
from shared.federated.errors import ClientError
from shared.federated.payload import Payload
from shared.federated.state import ClientStates
from shared.training.seeding import derive_seed, generator


@dataclass(frozen=True)
class Task:
    """One client's part of a call."""

    client: int
    round: int
    position: int
    method: str
    message: bytes
    save_state: bool = True


@dataclass
class Outcome:
    """The reply's bytes; None with an `error`, or without one when the client had nothing to say."""

    client: int
    message: bytes | None
    error: str = ""
    seconds: float = 0.0


class Node:
    """Runs tasks with what a site has: client code, data, states and codecs."""

    def __init__(
        self,
        client: FederatedClient,
        data: FederatedData,
        states: ClientStates,
        *,
        up: Chain,
        down: Chain,
        seed: int,
    ) -> None:
        self.client, self.data, self.states = client, data, states
        self.up, self.down, self.seed = up, down, seed
        self._opened: tuple[bytes, Payload] | None = None

    def run(self, task: Task) -> Outcome:
        """The reference: open the message, call the method, seal its reply, keep the state."""
        started = time.perf_counter()
        state = self.states[task.client]
        try:
            inbox = self.open(task.message)
            with self.randomness(task):
                payload = getattr(self.client, task.method)(inbox, state, self.client_data(task))
            message = self.seal(task, payload, inbox, state)
        except ClientError as error:
            return Outcome(task.client, None, str(error), time.perf_counter() - started)
        except Exception as error:
            error.add_note(f"in {task.method} of client {task.client}, round {task.round}")
            raise
        if task.save_state:
            self.states[task.client] = state
        return Outcome(task.client, message, seconds=time.perf_counter() - started)

    def open(self, message: bytes) -> Payload:
        """Decode a downlink; a broadcast is decoded once. Receivers read it and never write into it."""
        if self._opened is None or self._opened[0] is not message:
            self._opened = (message, self.down.decode(message))
        return self._opened[1]

    def client_data(self, task: Task) -> ClientData:
        return self.data.client(task.client, task.round, task.position)

    def seal(
        self, task: Task, payload: Payload | None, inbox: Payload, state: dict[str, Any]
    ) -> bytes | None:
        """Encode a reply; stateful codecs keep their memory in `state`."""
        if payload is None:
            return None
        if not isinstance(payload, Payload):
            kind = type(payload).__name__
            raise ClientError(f"{task.method} returned a {kind}; expected a Payload, or None.")
        stream = generator(self.seed, "codec", task.client, task.round, task.method)
        try:
            return self.up.encode(payload, Context(inbox, state, stream))
        except UserError as error:  # a tensor that has no safe format
            raise ClientError(str(error)) from error

    @contextlib.contextmanager
    def randomness(self, task: Task) -> Iterator[None]:
        """Global generators seeded from (seed, client, round, method), and put back afterwards."""
        with isolated(self.seed, "client", task.client, task.round, task.method, device=self.client.device):
            yield


@contextlib.contextmanager
def isolated(*parts: Any, device: torch.device | None = None) -> Iterator[None]:
    """python, numpy and torch seeded from `parts` inside, untouched outside."""
    seed = derive_seed(*parts)
    cuda = torch.cuda if device is not None and device.type == "cuda" else None
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002 - third-party code draws from it
    cpu, gpu = torch.get_rng_state(), cuda.get_rng_state(device) if cuda else None
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    torch.default_generator.manual_seed(seed)
    if cuda:
        cuda.manual_seed_all(seed)
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002
        torch.set_rng_state(cpu)
        if cuda:
            cuda.set_rng_state(gpu, device)
