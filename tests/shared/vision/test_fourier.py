"""Amplitude and phase: round trips, agreement with numpy, symmetry, precision."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from shared.vision.fourier import amplitude_and_phase, from_amplitude_and_phase

CASES = [((3, 5, 384), -1), ((2, 7), (1,)), ((2, 3, 9, 14), (-2, -1)), ((4, 6, 5), (0, 1, 2)), ((3, 1), 1)]


@pytest.mark.parametrize(("shape", "dims"), CASES)
def test_parts_put_together_are_the_signal(shape: tuple[int, ...], dims: int | tuple[int, ...]) -> None:
    x = torch.randn(shape)
    amplitude, phase = amplitude_and_phase(x, dims)
    assert amplitude.shape == phase.shape == x.shape
    torch.testing.assert_close(from_amplitude_and_phase(amplitude, phase, dims), x, atol=1e-5, rtol=0)


@pytest.mark.parametrize(("shape", "dims"), CASES)
def test_parts_are_those_of_numpy(shape: tuple[int, ...], dims: int | tuple[int, ...]) -> None:
    x = torch.randn(shape, dtype=torch.float64)
    amplitude, phase = amplitude_and_phase(x, dims)
    spectrum = np.fft.fftn(x.numpy(), axes=(dims,) if isinstance(dims, int) else dims)
    np.testing.assert_allclose(amplitude, np.abs(spectrum), atol=1e-10)
    np.testing.assert_allclose(amplitude * torch.exp(1j * phase), spectrum, atol=1e-10)


def test_a_mixture_of_amplitudes_stays_real_and_takes_negative_weights() -> None:
    x, y = torch.randn(2, 8, 31, dtype=torch.float64)
    (amplitude, phase), (other, _) = amplitude_and_phase(x, -1), amplitude_and_phase(y, -1)
    mixed = 0.3 * amplitude - 1.7 * other
    whole = np.fft.ifft(mixed.numpy() * np.exp(1j * phase.numpy()), axis=-1)
    assert np.abs(whole.imag).max() < 1e-12
    np.testing.assert_allclose(from_amplitude_and_phase(mixed, phase, -1), whole.real, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_worked_in_float32(dtype: torch.dtype) -> None:
    x = torch.randn(2, 16, dtype=dtype)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        amplitude, phase = amplitude_and_phase(x, -1)
        again = from_amplitude_and_phase(amplitude, phase, -1)
    assert amplitude.dtype == phase.dtype == again.dtype == torch.float32
    torch.testing.assert_close(again, x.float(), atol=1e-5, rtol=0)


def test_the_phase_ignores_the_scale_so_its_gradient_is_orthogonal_to_the_signal() -> None:
    x = torch.randn(5, 24, requires_grad=True)
    _, phase = amplitude_and_phase(x, -1)
    from_amplitude_and_phase(torch.rand(24) + 1, phase, -1).square().mul(torch.randn(5, 24)).sum().backward()
    assert x.grad.norm() > 0.1
    assert float((x.grad * x.detach()).sum(-1).abs().max()) < 1e-4
