"""Sharpness-aware minimisation (ICLR 2021) of some of the weights, as an optimiser."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch.nn import Parameter
from torch.optim import SGD

from shared.errors import UserError


class SAM(SGD):
    """SGD with the gradient at theta + rho g / ||g||, where g is the gradient at theta of `perturbed`.

    Every step evaluates the closure twice. Weights outside `perturbed` stay in place between the two.
    """

    def __init__(
        self, params: Iterable[Any], perturbed: Sequence[Parameter], rho: float, **settings: Any
    ) -> None:
        super().__init__(params, **settings)
        self.perturbed, self.rho = list(perturbed), rho
        if rho <= 0:
            raise UserError(f"sam.rho is above 0 for sharpness-aware minimisation, found {rho}.")
        if not self.perturbed:
            raise UserError(
                "sharpness-aware minimisation found no low-level weight that learns: set encoder.frozen "
                "below sam.stages."
            )

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        if closure is None:
            raise UserError(
                "sharpness-aware minimisation evaluates the loss twice and needs a closure, which 16-mixed "
                "precision does not pass on. Use trainer.precision=32-true or bf16-mixed."
            )
        loss = closure()
        with torch.no_grad():
            gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.perturbed]
            size = torch.stack([gradient.norm() for gradient in gradients]).norm()
            before = [parameter.clone() for parameter in self.perturbed]
            for parameter, gradient in zip(self.perturbed, gradients, strict=True):
                parameter.add_(gradient, alpha=float(self.rho / (size + 1e-12)))
        closure()
        with torch.no_grad():
            for parameter, value in zip(self.perturbed, before, strict=True):
                parameter.copy_(value)
        super().step()
        return loss
