"""What Lightning promises to a module: its hooks, and the forms optimisers may take."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import LightningModule
from lightning.pytorch.core import optimizer as parsing
from torch import Tensor
from torch.optim import Optimizer

from shared.errors import UserError
from shared.federated.errors import ClientError

HOOKS = (
    "on_train_start",
    "on_train_end",
    "on_train_epoch_start",
    "on_train_epoch_end",
    "on_train_batch_start",
    "on_train_batch_end",
    "on_before_zero_grad",
    "on_before_backward",
    "on_after_backward",
    "on_before_optimizer_step",
    "on_before_batch_transfer",
    "transfer_batch_to_device",
    "on_after_batch_transfer",
)


def optimizers(model: LightningModule) -> tuple[list[Optimizer], list[Any]]:
    """What `configure_optimizers` gives, parsed and checked by Lightning: optimisers, schedule configs."""
    configured = model.configure_optimizers()
    if configured is None:
        raise UserError(f"{type(model).__name__}.configure_optimizers returned nothing to train with.")
    optimizers, schedulers, monitor = parsing._configure_optimizers(configured)
    if model.automatic_optimization:
        configs = parsing._configure_schedulers_automatic_opt(schedulers, monitor)
    else:
        configs = parsing._configure_schedulers_manual_opt(schedulers)
    parsing._validate_multiple_optimizers_support(optimizers, model)
    parsing._validate_optimizers_attached(optimizers, configs)
    parsing._validate_scheduler_api(configs, model)
    return optimizers, configs


def plain(state: dict[str, Any]) -> dict[str, Any]:
    """Scheduler state without what cannot be saved safely and is rebuilt by `configure_optimizers` anyway."""
    kinds = (bool, int, float, str, list, tuple, type(None))
    return {key: value for key, value in state.items() if isinstance(value, kinds)}


def batch_size(batch: Any) -> int:
    first = batch
    while isinstance(first, (list, tuple, dict)) and len(first):
        first = next(iter(first.values())) if isinstance(first, dict) else first[0]
    return int(first.shape[0]) if isinstance(first, Tensor) and first.dim() else 1


def explained(error: ValueError) -> ValueError:
    if "Expected more than 1 value per channel" not in str(error):
        return error
    return ClientError(
        "a batch of one sample met batch normalisation, which needs two. Set drop_last=True, choose a batch "
        "size that leaves no remainder of one, or normalise by group or layer."
    )
