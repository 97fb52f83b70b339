"""LEM, the Low-level Enhancement Module: another amplitude for the phase of a low-level support feature.

The phase of a feature map carries shapes and edges, its amplitude the domain. A random convolution gives the
amplitude of some other domain; training on the mixture flattens the loss around the low-level feature:
min over theta of E_eps L(phi_h(F_s + eps)), where sharpness-aware minimisation has a maximum over eps. There
is no second backward pass.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d

from shared.errors import UserError
from shared.vision.fourier import amplitude_and_phase, from_amplitude_and_phase

SPACE = (-2, -1)


class LEM(nn.Module):
    """Acts in training mode only; in evaluation mode it returns its input itself.

    Args:
        sigma: standard deviation of the random kernel.
        kernel: its side, odd.
        prob: share of the training steps in which it acts.
        match_rms: scale each result to the root mean square of its input.
    """

    def __init__(
        self, sigma: float = 0.1, kernel: int = 3, prob: float = 1.0, match_rms: bool = False
    ) -> None:
        super().__init__()
        if kernel < 1 or kernel % 2 == 0:
            raise UserError(f"lem.kernel is an odd number of pixels, found {kernel}.")
        if not 0 <= prob <= 1:
            raise UserError(f"lem.prob lies between 0 and 1, found {prob}.")
        if sigma <= 0:
            raise UserError(f"lem.sigma is above 0, found {sigma}; lem.kind=none switches LEM off.")
        self.sigma, self.kernel, self.prob, self.match_rms = sigma, kernel, prob, match_rms

    def forward(self, features: Tensor) -> Tensor:
        """`features` (N, C, h, w), one new kernel for all N of them."""
        if not self.training or (self.prob < 1 and torch.rand(()) >= self.prob):
            return features
        disturbed = self.disturb(features, random_kernel(features, self.sigma, self.kernel))
        return matched(disturbed, features) if self.match_rms else disturbed

    def disturb(self, features: Tensor, theta: Tensor) -> Tensor:
        return enhance(features, theta)


def random_kernel(features: Tensor, sigma: float, side: int) -> Tensor:
    """Theta ~ N(0, sigma^2), float32 (C, C, side, side), without bias."""
    channels = features.shape[1]
    return sigma * torch.randn(channels, channels, side, side, device=features.device)


def enhance(features: Tensor, theta: Tensor) -> Tensor:
    """F^t = Re IFFT(A' e^(iP)): P of `features` (N, C, h, w), A' of their convolution with `theta`.

    Computed in float32 whatever the precision around it: half-precision transforms exist for some sizes only.
    """
    _, phase = amplitude_and_phase(features, SPACE)
    amplitude, _ = amplitude_and_phase(convolve(features, theta), SPACE)
    return from_amplitude_and_phase(amplitude, phase, SPACE).to(features.dtype)


def convolve(features: Tensor, theta: Tensor) -> Tensor:
    """F' = F * Theta (stride 1, zeros around), float32 or wider."""
    wide = torch.promote_types(features.dtype, torch.float32)
    with torch.autocast(features.device.type, enabled=False):
        return conv2d(features.to(wide), theta.to(wide), padding=theta.shape[-1] // 2)


def matched(changed: Tensor, features: Tensor) -> Tensor:
    """`changed` with the root mean square that `features` has, image by image."""
    sizes = [each.float().square().mean((1, 2, 3), keepdim=True) for each in (features, changed)]
    return changed * (sizes[0] / sizes[1].clamp_min(1e-20)).sqrt().to(changed.dtype)
