"""A linear layer of K lanes as batched matrix products."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass
class Descent:
    """Plain SGD for one weight, done where its gradient arises: w <- (1 - lr * decay) w - lr g.

    The gradient of a large layer is as large as the layer; it then need not be written and read again.
    """

    lr: float
    decay: float
    uses: int = 0  # in the forward pass; with several the gradient is a sum that no use knows alone


def linear_of_lanes(x: Tensor, weight: Tensor, bias: Tensor | None, descent: Descent | None = None) -> Tensor:
    """x (K, N, in), weight (K, out, in), bias (K, out) or None -> (K, N, out).

    With `descent`, the backward pass changes `weight` and gives it no gradient.
    """
    return _Linear.apply(x, weight, bias, descent)


class _Linear(torch.autograd.Function):
    """Its gradients come in the layout of the weights, which autograd's own of `bmm` do not."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, descent: Descent | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.descent = descent
        y = torch.bmm(x, weight.transpose(1, 2))
        return y if bias is None else y.add_(bias[:, None])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        of_x, of_weight, of_bias, _ = ctx.needs_input_grad
        for_x = torch.bmm(grad, weight) if of_x else None
        for_weight, descent = None, ctx.descent
        if of_weight and descent is not None and descent.uses == 1:
            keep = 1 - descent.lr * descent.decay
            weight.detach().baddbmm_(grad.transpose(1, 2), x, beta=keep, alpha=-descent.lr)
        elif of_weight:
            for_weight = torch.bmm(grad.transpose(1, 2), x)
        return for_x, for_weight, grad.sum(1) if of_bias else None, None
