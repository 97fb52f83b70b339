"""Which entries of a module travel and which stay: a role for every parameter and buffer.

- shared: sent both ways.  - personal: stays in the client's state.  - received: sent down only, never back.
- frozen: never sent, never changed; exists once a process.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import TypeAlias

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from shared.errors import UserError

ROLES = ("shared", "personal", "received", "frozen")
Role: TypeAlias = Callable[
    [str, nn.Module, Tensor], str
]  # (name, owning module, parameter or buffer) -> role


def all_shared(name: str, module: nn.Module, entry: Tensor) -> str:
    """Every parameter and buffer is shared: FedAvg."""
    return "shared"


def personal_norms(name: str, module: nn.Module, entry: Tensor) -> str:
    """Batch and instance normalisation stay with the client, statistics included: FedBN."""
    return "personal" if isinstance(module, _NormBase) else "shared"


def trainable_only(name: str, module: nn.Module, entry: Tensor) -> str:
    """What requires a gradient is shared, the rest is frozen: adapters and prompts on a frozen backbone."""
    return "shared" if entry.requires_grad else "frozen"


def by_name(**patterns: str) -> Role:
    """Roles by regular expressions on the name: `by_name(personal=r"^head\\.")`; the rest is shared."""
    unknown = set(patterns) - set(ROLES)
    if unknown:
        raise UserError(f"unknown role {', '.join(sorted(unknown))}; roles are {', '.join(ROLES)}.")

    def role(name: str, module: nn.Module, entry: Tensor) -> str:
        return next((role for role, pattern in patterns.items() if re.search(pattern, name)), "shared")

    return role


BUFFERS = ("average", "personal", "keep", "recompute")


def with_buffers(role: Role, policy: str) -> Role:
    """`role` for parameters, `policy` for the buffers that it shares (running statistics and the like).

    - average: as parameters (whole numbers: the largest).   - personal: each client keeps its own.
    - keep: the server's go down, clients' changes are dropped.   - recompute: as keep, and the server
        computes
    batch statistics anew on its public data after every round.
    """
    if policy not in BUFFERS:
        raise UserError(f"buffers takes {', '.join(BUFFERS)}; found {policy!r}.")
    instead = {"average": "shared", "personal": "personal"}.get(policy, "received")

    def policed(name: str, module: nn.Module, entry: Tensor) -> str:
        found = role(name, module, entry)
        return instead if found == "shared" and not isinstance(entry, nn.Parameter) else found

    return policed


def entries(module: nn.Module) -> Iterator[tuple[str, nn.Module, Tensor]]:
    """(name, owning module, tensor) of everything that `module.state_dict()` holds, in its order."""
    saved = module.state_dict(keep_vars=True)
    for name, tensor in saved.items():
        if isinstance(tensor, Tensor):
            owner = name.rpartition(".")[0]
            yield name, module.get_submodule(owner), tensor


def roles(module: nn.Module, role: Role) -> dict[str, str]:
    """The role of every entry.

    Raises:
        UserError: `role` answered something that is no role.
    """
    found = {name: role(name, owner, tensor) for name, owner, tensor in entries(module)}
    for name, value in found.items():
        if value not in ROLES:
            raise UserError(f"the role of '{name}' is {value!r}; roles are {', '.join(ROLES)}.")
    return found


def select(module: nn.Module, found: dict[str, str], *wanted: str) -> dict[str, Tensor]:
    """The entries of these roles, not copied."""
    return {
        name: tensor.detach()
        for name, tensor in module.state_dict(keep_vars=True).items()
        if found.get(name) in wanted
    }
