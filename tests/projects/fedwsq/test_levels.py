"""The tables, and the solver that explains them. Properties 4 to 6."""

import math

import numpy as np
import pytest
import torch
from scipy import integrate, optimize

from projects.fedwsq.levels import (
    FLOAT,
    NORMAL_FLOAT,
    PUBLISHED,
    UNIFORM,
    absmax_table,
    danuq_table,
    nearest,
)
from projects.fedwsq.lloyd_max import danuq_levels, expected_error, half_error, lloyd_max
from shared.errors import UserError

TABLES = [danuq_table(b, which) for b in (1, 2, 4) for which in ("published", "lloyd")]
TABLES += [absmax_table("nf", 2), absmax_table("nf", 4), absmax_table("fp", 4), absmax_table("uniform", 3)]


@pytest.mark.parametrize("table", TABLES, ids=lambda t: str(len(t)))
def test_quantising_is_idempotent_monotone_and_takes_the_nearest(table):
    x = torch.randn(4001, generator=torch.Generator().manual_seed(0)).sort().values * 1.5
    q = table[nearest(x, table).long()]
    assert set(q.tolist()) <= set(table.tolist())
    assert torch.equal(table[nearest(q, table).long()], q)
    assert (q.diff() >= 0).all()
    assert torch.equal(table[nearest(table, table).long()], table)
    brute = table[(x[:, None] - table[None]).abs().argmin(1)]
    torch.testing.assert_close((q - x).abs(), (brute - x).abs())


def test_counts_and_zeros():
    for bits, levels in PUBLISHED.items():
        assert len(levels) == len(set(levels)) == 2**bits and list(levels) == sorted(levels)
        assert (0.0 in levels) == (bits >= 2)
        assert sum(level > 0 for level in levels) == 2 ** (bits - 1)
    assert len(NORMAL_FLOAT[4]) == 16 and len(NORMAL_FLOAT[2]) == 4 and len(FLOAT[4]) == 15
    assert {6 * level for level in FLOAT[4] if level >= 0} == {0, 0.5, 1, 1.5, 2, 3, 4, 6}
    assert UNIFORM[1] == (-1, 1) and UNIFORM[2] == pytest.approx((-1, -1 / 3, 1 / 3, 1))
    for table in TABLES[6:]:
        assert table.abs().max() == 1 and (table.diff() > 0).all()


def test_small_tables_are_the_optimum_and_the_large_one_is_near_it():
    assert PUBLISHED[1] == pytest.approx((-math.sqrt(2 / math.pi), math.sqrt(2 / math.pi)), abs=1e-4)
    assert PUBLISHED[2] == pytest.approx(danuq_levels(2), abs=1e-4)
    assert lloyd_max(3) == pytest.approx((-1.2240, 0, 1.2240), abs=1e-4)
    assert lloyd_max(5)[3:] == pytest.approx((0.7646, 1.7241), abs=1e-4)
    assert np.abs(np.subtract(PUBLISHED[4], danuq_levels(4))).max() < 0.17
    assert (
        expected_error(danuq_levels(4))
        < expected_error(PUBLISHED[4])
        < 1.015 * expected_error(danuq_levels(4))
    )


def test_the_optimum_of_three_and_four_bits():
    three = (-2.0334, -1.1881, -0.5606, 0, 0.4436, 0.9188, 1.4764, 2.2547)
    assert danuq_levels(3) == pytest.approx(three, abs=1e-4)
    assert expected_error(danuq_levels(3)) == pytest.approx(0.03593, abs=1e-5)
    four = danuq_levels(4)
    assert four[:3] == pytest.approx((-2.6809, -2.0065, -1.5461), abs=1e-4)
    assert four[-3:] == pytest.approx((1.6844, 2.1270, 2.7808), abs=1e-4)
    assert expected_error(four) == pytest.approx(0.009602, abs=1e-6)
    assert expected_error(PUBLISHED[4]) == pytest.approx(0.009718, abs=1e-6)


@pytest.mark.parametrize("count", [1, 3])
def test_a_general_minimiser_of_the_papers_objective_finds_the_same_half(count):
    """Nelder-Mead on E(q), the integral by the trapezoidal rule; nothing of the closed form is used."""
    x = np.linspace(0, 9, 20_001)
    density = np.exp(-(x**2) / 2) / np.sqrt(2 * np.pi)

    def objective(q):
        levels = np.concatenate([[0.0], np.sort(np.abs(q))])
        errors = ((x - levels[:, None]) ** 2).min(0)  # to the nearest level
        return integrate.trapezoid(errors * density, x)

    start = np.linspace(0.5, 2, count)
    assert objective(start) == pytest.approx(half_error(start), abs=1e-7)
    found = optimize.minimize(objective, start, method="Nelder-Mead", options={"xatol": 1e-7, "fatol": 1e-12})
    full = np.array(lloyd_max(2 * count + 1))
    assert np.sort(np.abs(found.x)) == pytest.approx(full[full > 1e-9], abs=2e-4)


def test_lloyd_max_against_published_optima():
    """Max (1960): two, four and eight levels."""
    assert lloyd_max(4)[2:] == pytest.approx((0.4528, 1.510), abs=1e-3)
    assert lloyd_max(8)[4:] == pytest.approx((0.2451, 0.7560, 1.344, 2.152), abs=1e-3)
    assert expected_error(lloyd_max(8)) == pytest.approx(0.03454, abs=1e-4)
    assert lloyd_max(1) == pytest.approx((0.0,))


@pytest.mark.parametrize(("bits", "wanted"), [(1, 0.3634), (2, 0.1351), (4, 0.00972)])
def test_squared_error_on_a_million_normal_values(bits, wanted):
    x = torch.randn(1_000_000, generator=torch.Generator().manual_seed(bits))
    table = danuq_table(bits)
    q = table[nearest(x, table).long()]
    assert (q - x).square().mean() == pytest.approx(wanted, rel=0.01)
    assert expected_error(PUBLISHED[bits]) == pytest.approx(wanted, rel=0.002)
    bias = {1: 0.0, 2: 0.040, 4: 0.0005}[bits]  # asymmetric tables are not unbiased
    assert float(q.mean()) == pytest.approx(bias, abs=3e-3)


def test_tables_that_do_not_exist_are_named():
    with pytest.raises(UserError, match="published DANUQ levels of 1, 2, 4 bits; quantizer.bits is 3"):
        danuq_table(3)
    assert len(danuq_table(3, "lloyd")) == 8
    with pytest.raises(UserError, match="published or lloyd"):
        danuq_table(2, "loyd")
    with pytest.raises(UserError, match="1 to 8 bits"):
        danuq_table(9, "lloyd")
    with pytest.raises(UserError, match="nf levels of 2, 4 bits"):
        absmax_table("nf", 1)
    with pytest.raises(UserError, match="one level at least"):
        lloyd_max(0)
