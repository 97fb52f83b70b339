"""FedWS: convolutions whose weights are standardised on every forward pass."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

EPS = 1e-5


def standardize(weight: Tensor, rho: float = 1e-3, eps: float = EPS) -> Tensor:
    """rho (w - mean) / (sigma + eps) of every output row w of `weight` (O, I, k, k).

    sigma is the unbiased standard deviation of a row's d = I k k values; eps is added to it, not under a root
    (official code). The gradient with respect to w is then orthogonal to 1 and w - mean, up to eps / sigma.
    """
    rows = weight.flatten(1)
    centred = rows - rows.mean(1, keepdim=True)
    return (rho * centred / (centred.std(1, keepdim=True) + eps)).view_as(weight)


class WSConv2d(nn.Conv2d):
    """A convolution by `standardize(weight)`, without bias; what is stored, trained and sent is `weight`.

    Its output has the size of `rho`. A GroupNorm must follow; with its own eps of 1e-5 the outputs of a
    rho of 1e-3 are not large against that eps, so rho does change the result.
    """

    def __init__(self, *args: Any, rho: float = 1e-3, **kwargs: Any) -> None:
        self.rho = rho
        super().__init__(*args, bias=False, **kwargs)

    def reset_parameters(self) -> None:
        """Kaiming uniform, a = 0, fan in (official code); nn.Conv2d itself takes a = sqrt(5)."""
        nn.init.kaiming_uniform_(self.weight)

    def forward(self, images: Tensor) -> Tensor:
        return self._conv_forward(images, standardize(self.weight, self.rho), None)


def standardized(conv: nn.Conv2d, rho: float) -> WSConv2d:
    """A freshly initialised `WSConv2d` of the shape of `conv`."""
    return WSConv2d(
        conv.in_channels,
        conv.out_channels,
        conv.kernel_size,
        conv.stride,
        conv.padding,
        conv.dilation,
        conv.groups,
        rho=rho,
        device=conv.weight.device,
        dtype=conv.weight.dtype,
    )


@torch.no_grad()
def standardize_all(net: nn.Module, rho: float) -> nn.Module:
    """Replace every convolution of `net` in place; names and shapes of its entries stay as they are."""
    for module in list(net.modules()):
        for name, child in list(module.named_children()):
            if type(child) is nn.Conv2d:
                setattr(module, name, standardized(child, rho))
    return net
