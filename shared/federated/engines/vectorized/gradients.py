"""Gradient clipping for each of K models by itself."""

from __future__ import annotations

import torch
from torch import Tensor


def clip(grads: dict[int, Tensor | None], limit: float | None, algorithm: str) -> None:
    """Replace gradients (K, ...) as torch.nn.utils does: by value, or by each lane's norm."""
    present = {key: grad for key, grad in grads.items() if grad is not None}
    if not limit or not present:
        return
    if algorithm == "value":
        grads.update({key: grad.clamp(-limit, limit) for key, grad in present.items()})
        return
    norms = torch.stack([torch.linalg.vector_norm(grad.flatten(1), dim=1) for grad in present.values()], 1)
    factor = (limit / (torch.linalg.vector_norm(norms, dim=1) + 1e-6)).clamp(max=1.0)  # (K,)
    grads.update({key: grad * factor.view(-1, *[1] * (grad.dim() - 1)) for key, grad in present.items()})
