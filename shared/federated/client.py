"""The client's side. `cohort.call("name", ...)` runs `FederatedClient.name` for each client."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor

from shared.errors import UserError
from shared.federated import local, roles
from shared.federated.data import ClientData
from shared.federated.errors import ClientError
from shared.federated.evaluation import run_validation
from shared.federated.local import LocalTraining, Report
from shared.federated.payload import Payload
from shared.federated.replica import replica


class FederatedClient:
    """Pure code over (inbox, state, data); one object serves every client, and holds nothing of any of them.

    Args:
        module: an ordinary LightningModule, trained unchanged.
        training: epochs, clipping, precision, ... of local training.
        role: which entries are shared, personal, received or frozen (`shared.federated.roles`).
        buffers: average, personal, keep or recompute (`roles.with_buffers`).

    A subclass adds methods, each `(inbox: Payload, state: dict, data: ClientData) -> Payload | None` (None:
    this client has nothing to say), and changes local training at one of three depths: a loss term
    (`extra_loss`), the gradient (`gradient`), or all of it (`fit`). What it puts into `state` comes back in
    its next call, whenever that is; entries are replaced, never changed in place.
    """

    def __init__(
        self,
        module: LightningModule,
        *,
        training: LocalTraining | None = None,
        role: roles.Role = roles.all_shared,
        buffers: str = "average",
    ) -> None:
        self.module = module
        self.training = training or LocalTraining()
        self.buffers = buffers
        self.roles = roles.roles(module, roles.with_buffers(role, buffers))
        self.device = torch.device("cpu")
        self._template = self._copy(module)

    def fit(self, inbox: Payload, state: dict[str, Any], data: ClientData) -> Payload:
        """Load what was received, train, return what is shared."""
        model = self.model(inbox, state)
        report = self.train(model, inbox, state, data)
        return self.result(model, state, data, report)

    def extra_loss(self, model: LightningModule, batch: Any, inbox: Payload, state: dict[str, Any]) -> Tensor:
        """A term added to the loss of every batch (depth one)."""
        raise NotImplementedError

    def gradient(
        self, grads: dict[str, Tensor], params: dict[str, Tensor], inbox: Payload, state: dict[str, Any]
    ) -> dict[str, Tensor]:
        """The gradient that the step uses, by parameter name (depth two).

        Called after unscaling and before clipping. Pure: it reads its arguments and returns new tensors, so
        an engine may call it for many clients at once, every tensor with a leading client dimension under
        `vmap`.
        """
        raise NotImplementedError

    def evaluate(self, inbox: Payload, state: dict[str, Any], data: ClientData) -> Payload | None:
        """Sums and weights of what `validation_step` logs on the client's test data; None without any.

        A message that holds `task` asks for the test data of that task.
        """
        if "task" in inbox:
            data = data.of_task(inbox["task"])
        if data.test is None or not len(data.test):
            return None
        sums, weights = run_validation(self.model(inbox, state), data.loader("test"))
        return Payload(sums=sums, weights=weights)

    def evaluate_received(self, inbox: Payload, state: dict[str, Any], data: ClientData) -> Payload | None:
        """As `evaluate`, with the received model as it is: nothing personal is put in."""
        return self.evaluate(inbox, {}, data)

    def evaluate_after_fit(self, inbox: Payload, state: dict[str, Any], data: ClientData) -> Payload | None:
        """As `evaluate`, after one more `fit`; call it with `save_state=False`."""
        if data.test is None or not len(data.test):
            return None
        reply = self.fit(inbox, state, data)
        return self.evaluate(Payload(model={**inbox.get("model", {}), **reply.get("model", {})}), state, data)

    @property
    def initial(self) -> dict[str, Tensor]:
        """Values of the personal entries before any training: what a client starts from."""
        own = roles.entries(self._template)
        return {name: tensor.detach() for name, _, tensor in own if self.roles[name] == "personal"}

    # What the methods above are made of.

    def model(self, inbox: Payload, state: dict[str, Any]) -> LightningModule:
        """A fresh module: initial values, then what was received, then what is personal."""
        model = self.fresh(inbox)
        if any(tensor.device != self.device for tensor in (*model.parameters(), *model.buffers())):
            model.to(self.device)
        held = {name: tensor for name, _, tensor in roles.entries(model)}
        received = inbox.get("model", {})
        for name, value in [*received.items(), *state.get("personal", {}).items()]:
            if name not in held:
                raise ClientError(f"the model was sent '{name}', which it lacks.")
            if held[name].shape != value.shape:
                raise ClientError(
                    f"'{name}' has shape {tuple(held[name].shape)}, but {tuple(value.shape)} was sent."
                )
        with torch.no_grad():
            for name, value in received.items():
                if self.roles[name] in ("shared", "received"):
                    held[name].copy_(value)
            for name, value in state.get("personal", {}).items():
                held[name].copy_(value)
        return model

    def fresh(self, inbox: Payload) -> LightningModule:
        """The module with its initial values; override it when the architecture depends on the message."""
        return self._copy(self._template)

    def train(
        self,
        model: LightningModule,
        inbox: Payload,
        state: dict[str, Any],
        data: ClientData,
        extra_loss: Callable[[LightningModule, Any, Tensor], Tensor] | None = None,
    ) -> Report:
        """Local training with the hooks of this class, or with the given `extra_loss(model, batch, loss)`.

        Raises:
            ClientError: the client has no sample.
        """
        if not len(data.train):
            raise ClientError("it has no training sample; give it some, or leave it out of the partition.")
        return local.train(
            model,
            data.loader("train"),
            self.training,
            state=state,
            extra_loss=extra_loss
            or self._bound("extra_loss", lambda f: lambda m, batch, loss: f(m, batch, inbox, state)),
            lr_scale=inbox.get("lr_scale", 1.0),
            gradient=self._bound("gradient", lambda f: lambda grads, params: f(grads, params, inbox, state)),
        )

    def result(
        self, model: LightningModule, state: dict[str, Any], data: ClientData, report: Report
    ) -> Payload:
        """Put what is personal into `state`; reply with what is shared and what training took."""
        personal = roles.select(model, self.roles, "personal")
        if personal:
            state["personal"] = personal
        return Payload(
            model=self.shared(model),
            num_samples=len(data.train),
            num_steps=report.steps,
            lr=report.lr,
            metrics=report.metrics,
        )

    def shared(self, model: LightningModule) -> dict[str, Tensor]:
        """What travels up."""
        return roles.select(model, self.roles, "shared")

    def down(self, model: LightningModule) -> dict[str, Tensor]:
        """What travels down."""
        return roles.select(model, self.roles, "shared", "received")

    def _bound(self, name: str, bind: Callable[[Callable], Callable]) -> Callable | None:
        overridden = getattr(type(self), name) is not getattr(FederatedClient, name)
        return bind(getattr(self, name)) if overridden else None

    def _copy(self, module: LightningModule) -> LightningModule:
        """A copy that shares its frozen entries with the original."""
        frozen = []
        if "frozen" in self.roles.values():
            frozen = [tensor for name, _, tensor in roles.entries(module) if self.roles[name] == "frozen"]
        return replica(module, frozen)


def as_client(client: LightningModule | FederatedClient, kind: type[FederatedClient], **settings: Any) -> Any:
    """`client` itself, or a `kind` around a module.

    Raises:
        UserError: neither a module nor a client of that kind, or settings beside a finished client.
    """
    if isinstance(client, LightningModule):
        return kind(client, **settings)
    if not isinstance(client, kind):
        raise UserError(f"expected a LightningModule or a {kind.__name__}, found a {type(client).__name__}.")
    if settings:
        raise UserError(f"{', '.join(settings)}: give these to the {type(client).__name__} itself.")
    return client
