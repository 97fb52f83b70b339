"""The largest eigenvalue of a loss's Hessian by power iteration on Hessian-vector products."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def top_eigenvalue(
    loss: Callable[[], Tensor],
    parameters: Sequence[Tensor],
    *,
    generator: torch.Generator,
    iterations: int = 100,
    tolerance: float = 1e-3,
) -> float:
    """The eigenvalue of largest size, with its sign.

    Args:
        loss: gives the (twice differentiable) loss as a function of `parameters`.
        generator: of the first direction.
        tolerance: relative change of the Rayleigh quotient at which the iteration ends.
    """
    with torch.enable_grad():
        gradients = torch.autograd.grad(loss(), parameters, create_graph=True)
    v = _unit([torch.randn(p.shape, generator=generator).to(p) for p in parameters])
    found = 0.0
    for _ in range(iterations):
        product = torch.autograd.grad(gradients, parameters, grad_outputs=v, retain_graph=True)
        before, found = found, sum(float((a * b).sum()) for a, b in zip(product, v, strict=True))
        if abs(found - before) <= tolerance * abs(found):
            break
        v = _unit(product)
    return found


def top_eigenvalue_of(net: nn.Module, images: Tensor, labels: Tensor, **settings: object) -> float:
    """Of the mean cross entropy of `net` on these samples, in evaluation mode."""
    was_training, parameters = net.training, [p for p in net.parameters() if p.requires_grad]
    net.eval()
    try:
        return top_eigenvalue(lambda: F.cross_entropy(net(images), labels), parameters, **settings)
    finally:
        net.train(was_training)


def _unit(v: Sequence[Tensor]) -> list[Tensor]:
    norm = torch.stack([part.norm() for part in v]).norm().clamp_min(1e-30)
    return [part / norm for part in v]
