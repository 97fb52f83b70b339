"""What a checkpoint holds of a federation beside the module's own entries, and who may load it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shared.errors import UserError
from shared.federated import trees

if TYPE_CHECKING:
    from shared.federated.module import FederatedModule


def content(module: FederatedModule) -> dict[str, Any]:
    """Identity, client states, ledger, the engine's choices and the attributes named in `server_state`.

    Loads with weights_only.
    """
    where = type(module).__name__
    return {
        "identity": module.identity(),
        "states": module.states.state_dict(),
        "ledger": module.ledger.state_dict(),
        "traffic": dict(module.traffic),
        "initial": {name: value.clone() for name, value in module.client.initial.items()},
        "engine": module.engine.state_dict() if hasattr(module.engine, "state_dict") else {},
        "server": {
            name: trees.checked(getattr(module, name), f"{where}.{name}") for name in module.server_state
        },
    }


def restore(module: FederatedModule, saved: dict[str, Any] | None) -> None:
    """Put back what `content` gave.

    Raises:
        UserError: the checkpoint is of another algorithm, codec or partition; every difference is named.
    """
    if saved is None:
        raise UserError("this checkpoint is of a run that was not federated.")
    there, here = saved["identity"], module.identity()
    differences = [
        f"{key}: {there.get(key)} in the checkpoint, {here.get(key)} here"
        for key in sorted({*there, *here})
        if there.get(key) != here.get(key)
    ]
    if differences:
        raise UserError(
            f"the checkpoint cannot be resumed by this run: {'; '.join(differences)}. Start in a new folder, "
            "or restore what differs."
        )
    module.states.load_state_dict(saved["states"])
    module.ledger.load_state_dict(saved["ledger"])
    module.traffic = dict(saved["traffic"])
    for name, tensor in module.client.initial.items():
        tensor.copy_(saved["initial"][name])
    if saved.get("engine") and hasattr(module.engine, "load_state_dict"):
        module.engine.load_state_dict(saved["engine"])
    for name, value in saved["server"].items():
        setattr(module, name, value)
