"""Split a real tensor into Fourier amplitude and phase along any axes, and put it together again."""

from __future__ import annotations

import torch
from torch import Tensor

Dims = int | tuple[int, ...]


def amplitude_and_phase(x: Tensor, dims: Dims) -> tuple[Tensor, Tensor]:
    """Amplitude and phase (radians, -pi..pi) of the discrete Fourier transform of real `x` along `dims`.

    Both have the shape of `x` (the full spectrum, not its half) and are float32, or float64 for float64 `x`:
    half precision holds neither the range of amplitudes nor a usable phase. Differentiable in `x`.
    """
    with torch.autocast(x.device.type, enabled=False):
        spectrum = torch.fft.fftn(_wide(x), dim=_axes(dims))
        return spectrum.abs(), spectrum.angle()


def from_amplitude_and_phase(amplitude: Tensor, phase: Tensor, dims: Dims) -> Tensor:
    """Real part of the inverse transform of `amplitude * exp(i phase)` along `dims`, float32 or float64.

    It is the whole signal where the amplitude is even and the phase odd in the frequency, as the parts of a
    real signal are; any mixture of amplitudes of real signals keeps this. Negative amplitudes are allowed:
    they turn the phase by pi.
    """
    with torch.autocast(phase.device.type, enabled=False):
        amplitude, phase = _wide(amplitude), _wide(phase)
        spectrum = torch.complex(amplitude * phase.cos(), amplitude * phase.sin())
        return torch.fft.ifftn(spectrum, dim=_axes(dims)).real


def _axes(dims: Dims) -> tuple[int, ...]:
    return (dims,) if isinstance(dims, int) else tuple(dims)


def _wide(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()
