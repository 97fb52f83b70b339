"""The best levels for a standard normal variable: Lloyd-Max, and the halves that DANUQ joins at a zero."""

from __future__ import annotations

import functools
import math

import numpy as np
from scipy.stats import norm

from shared.errors import UserError


@functools.cache
def lloyd_max(count: int, tolerance: float = 1e-12) -> tuple[float, ...]:
    """`count` levels of least squared error for N(0, 1), ascending; symmetric about 0.

    Lloyd's iteration: thresholds are midpoints, levels the means between them. The normal density is
    log-concave, so the fixed point is unique.
    """
    if count < 1:
        raise UserError(f"a quantiser needs one level at least, found {count}.")
    levels = norm.ppf((np.arange(count) + 0.5) / count)
    for _ in range(100_000):
        edges = np.concatenate([[-np.inf], (levels[1:] + levels[:-1]) / 2, [np.inf]])
        new = -np.diff(norm.pdf(edges)) / np.diff(norm.cdf(edges))
        moved, levels = np.abs(new - levels).max(), new
        if moved < tolerance:
            break
    return tuple(((levels - levels[::-1]) / 2).tolist())


def danuq_levels(bits: int) -> tuple[float, ...]:
    """The exact optimum of DANUQ's objective: 2^bits levels, ascending, with a zero for bits >= 2.

    Each half is optimal given the zero level, so the negative one is that of the (2^bits - 1)-level Lloyd-Max
    quantiser and the positive one, with one level more, that of the (2^bits + 1)-level one. One bit has no
    zero: +- sqrt(2 / pi).
    """
    if bits == 1:
        return (-math.sqrt(2 / math.pi), math.sqrt(2 / math.pi))
    fewer, more = lloyd_max(2**bits - 1), lloyd_max(2**bits + 1)
    return (*(q for q in fewer if q < -1e-9), 0.0, *(q for q in more if q > 1e-9))


def half_error(levels: np.ndarray | list[float]) -> float:
    """DANUQ's objective for one half: E of (x - q)^2 over x > 0, levels 0 < q_1 < ... < q_R beside a zero."""
    q = np.concatenate([[0.0], np.asarray(levels, float)])
    return _error(q, np.concatenate([[0.0], (q[1:] + q[:-1]) / 2, [np.inf]]))


def expected_error(levels: np.ndarray | list[float] | tuple[float, ...]) -> float:
    """E of (x - Q(x))^2 for x ~ N(0, 1) and the nearest of `levels`."""
    q = np.sort(np.asarray(levels, float))
    return _error(q, np.concatenate([[-np.inf], (q[1:] + q[:-1]) / 2, [np.inf]]))


def _error(q: np.ndarray, edges: np.ndarray) -> float:
    """Sum over r of the integral of (x - q_r)^2 phi(x) from edges_r to edges_{r+1}, in closed form."""
    density = norm.pdf(edges)
    x_density = np.where(np.isfinite(edges), edges, 0.0) * density
    mass = np.diff(norm.cdf(edges))
    return float(((1 + q**2) * mass - np.diff(x_density) + 2 * q * np.diff(density)).sum())
