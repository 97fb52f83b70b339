"""What stands in LEM's place: LEM itself, and two plainer ways to change the style of a feature."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Beta

from projects.cdfss_sharpness.lem import LEM, convolve
from shared.errors import UserError, suggest


class RandomConvolution(LEM):
    """F * Theta as it is: without the Fourier step edges change with the style."""

    def disturb(self, features: Tensor, theta: Tensor) -> Tensor:
        return convolve(features, theta).to(features.dtype)


class MixStyle(nn.Module):
    """Channel means and deviations mixed with those of another image of the batch (MixStyle, ICLR 2021)."""

    def __init__(self, alpha: float = 0.1, prob: float = 1.0) -> None:
        super().__init__()
        self.alpha, self.prob = alpha, prob

    def forward(self, features: Tensor) -> Tensor:
        """`features` (N, C, h, w); the first of a batch of one stays as it is."""
        if not self.training or (self.prob < 1 and torch.rand(()) >= self.prob):
            return features
        mean = features.mean((2, 3), keepdim=True)
        std = (features.var((2, 3), keepdim=True, correction=0) + 1e-6).sqrt()
        other = torch.randperm(len(features)).to(features.device)
        share = Beta(self.alpha, self.alpha).sample((len(features), 1, 1, 1)).to(features)
        new_mean = share * mean + (1 - share) * mean[other].detach()
        new_std = share * std + (1 - share) * std[other].detach()
        return (features - mean) / std * new_std + new_mean


def disturbance(settings: Any) -> nn.Module | None:
    """The module of `config.lem`; None for `none`."""
    shared = (settings.sigma, settings.kernel, settings.prob, settings.match_rms)
    kinds = {
        "lem": lambda: LEM(*shared),
        "random_conv": lambda: RandomConvolution(*shared),
        "mixstyle": lambda: MixStyle(prob=settings.prob),
        "none": lambda: None,
    }
    if settings.kind not in kinds:
        raise UserError(
            f"lem.kind takes {', '.join(kinds)}; found {settings.kind!r}." + suggest(settings.kind, kinds)
        )
    return kinds[settings.kind]()
