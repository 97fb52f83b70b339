"""What differential privacy a client has spent, by the RDP accountant of `dp-accounting` (an extra).

The history is kept in the client's state, so that it persists with it and a resumed run goes on counting.
"""

from __future__ import annotations

import math
from typing import Any

from shared.errors import UserError

KEY = "privacy"  # state[KEY]: rows [noise multiplier, sampling rate, steps]


def spend(
    state: dict[str, Any], noise_multiplier: float, *, sampling_rate: float = 1.0, steps: int = 1
) -> None:
    """Enter `steps` releases of a Gaussian mechanism; noise multiplier = std / L2 sensitivity."""
    if noise_multiplier < 0 or not 0 < sampling_rate <= 1 or steps < 1:
        raise UserError(
            "expected a noise multiplier of 0 or more, a sampling rate in (0, 1] and one step or more; found "
            f"{noise_multiplier}, {sampling_rate}, {steps}."
        )
    history = [list(row) for row in state.get(KEY, [])]
    if history and history[-1][:2] == [noise_multiplier, sampling_rate]:
        history[-1][2] += steps
    else:
        history.append([noise_multiplier, sampling_rate, steps])
    state[KEY] = history


def epsilon(state: dict[str, Any], delta: float) -> float:
    """The epsilon at `delta` of everything that `spend` entered; 0 for nothing, infinity without noise.

    Raises:
        UserError: `dp-accounting` is not installed.
    """
    history = state.get(KEY, [])
    if not history:
        return 0.0
    if any(noise == 0 for noise, _, _ in history):
        return math.inf
    dp, rdp = _library()
    accountant = rdp.RdpAccountant()
    for noise, rate, steps in history:
        event = dp.GaussianDpEvent(noise)
        accountant.compose(event if rate == 1 else dp.PoissonSampledDpEvent(rate, event), int(steps))
    return float(accountant.get_epsilon(delta))


def affordable(
    state: dict[str, Any],
    budget: float,
    delta: float,
    noise_multiplier: float,
    *,
    sampling_rate: float = 1.0,
    steps: int = 1,
) -> bool:
    """Whether one more `spend` stays within `budget`; a client method that cannot afford it returns None."""
    trial = {KEY: state.get(KEY, [])}
    spend(trial, noise_multiplier, sampling_rate=sampling_rate, steps=steps)
    return epsilon(trial, delta) <= budget


def _library() -> tuple[Any, Any]:
    try:
        import dp_accounting
        from dp_accounting import rdp
    except ImportError:
        raise UserError(
            "the privacy accountant needs dp-accounting, which is not installed. Install it with: "
            "pip install -c constraints.txt -e '.[federated]'"
        ) from None
    return dp_accounting, rdp
