"""The accountant composes monotonically, is a function of the history, and persists with the state."""

import importlib.util
import math
import sys

import pytest

from shared.errors import UserError
from shared.federated import privacy
from shared.federated.state import ClientStates

library = pytest.mark.skipif(
    importlib.util.find_spec("dp_accounting") is None, reason="dp-accounting is not installed"
)


def test_history_is_kept_in_the_state_and_survives_a_checkpoint():
    states, state = ClientStates(), {}
    privacy.spend(state, 1.5, steps=3)
    privacy.spend(state, 1.5)
    privacy.spend(state, 2.0, sampling_rate=0.1)
    states[0] = state
    again = ClientStates()
    again.load_state_dict(states.state_dict())
    assert again[0][privacy.KEY] == [[1.5, 1.0, 4], [2.0, 0.1, 1]]


def test_spending_does_not_change_an_older_state_in_place():
    state = {}
    privacy.spend(state, 1.0)
    before = dict(state)
    privacy.spend(state, 1.0)
    assert before[privacy.KEY] == [[1.0, 1.0, 1]]


def test_trivial_cases_need_no_library_and_mistakes_are_explained():
    assert privacy.epsilon({}, 1e-5) == 0
    state = {}
    privacy.spend(state, 0.0)
    assert privacy.epsilon(state, 1e-5) == math.inf
    for bad in ({"noise_multiplier": -1}, {"noise_multiplier": 1, "sampling_rate": 0}):
        with pytest.raises(UserError):
            privacy.spend({}, **bad)


def test_absent_library_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    state = {}
    privacy.spend(state, 1.0)
    with pytest.raises(UserError, match=r"pip install .*\.\[federated\]"):
        privacy.epsilon(state, 1e-5)


@library
def test_epsilon_is_monotone_and_a_function_of_the_history():
    one, split, state = {}, {}, {}
    spent = []
    for _ in range(5):
        privacy.spend(state, 2.0)
        spent.append(privacy.epsilon(state, 1e-5))
    assert spent == sorted(spent) and spent[0] < spent[-1]
    privacy.spend(one, 2.0, steps=5)
    for _ in range(5):
        privacy.spend(split, 2.0)
    assert privacy.epsilon(one, 1e-5) == privacy.epsilon(split, 1e-5) == spent[-1]


@library
def test_epsilon_is_near_the_closed_form_of_renyi_composition():
    """T releases with multiplier s have RDP a T / (2 s^2); the classical conversion is above epsilon."""
    state = {}
    privacy.spend(state, 4.0, steps=10)
    rate = 10 / (2 * 4.0**2)
    classical = rate + 2 * math.sqrt(rate * math.log(1e5))
    assert 0.7 * classical < privacy.epsilon(state, 1e-5) <= classical * 1.01


@library
def test_a_budget_stops_a_client():
    state, releases = {}, 0
    while privacy.affordable(state, 3.0, 1e-5, 4.0):
        privacy.spend(state, 4.0)
        releases += 1
    assert 1 < releases < 100 and privacy.epsilon(state, 1e-5) <= 3.0
