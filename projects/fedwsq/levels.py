"""Tables of levels, ascending: DANUQ's, and those of the quantisers it is compared with."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from projects.fedwsq.lloyd_max import danuq_levels
from shared.errors import UserError

# In units of the standard deviation (official code). The table of 4 bits is the result of a coarse search:
# its squared error on N(0, 1) is 0.009718, that of the optimum (`lloyd_max.danuq_levels`) 0.009602.
PUBLISHED = {
    1: (-0.7979, 0.7979),
    2: (-1.224, 0.0, 0.7646, 1.7242),
    4: (
        *(-2.6536, -1.9735, -1.508, -1.149, -0.8337, -0.5439, -0.2686, 0.0),
        *(0.2303, 0.4648, 0.7081, 0.9663, 1.2481, 1.5676, 1.9679, 2.6488),
    ),
}

# In units of the largest absolute value.
NORMAL_FLOAT = {
    2: (-1.0, 0.0, 0.3339, 1.0),
    4: (
        *(-1.0, -0.6962, -0.5257, -0.3946, -0.2849, -0.1892, -0.0931, 0.0),
        *(0.0796, 0.1603, 0.2453, 0.3487, 0.4622, 0.5952, 0.7579, 1.0),
    ),
}
E2M1 = tuple(sign * value / 6 for sign in (-1, 1) for value in (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0))
FLOAT = {4: tuple(sorted(set(E2M1)))}  # 15 distinct levels; the code of a negative zero is unused
UNIFORM = {bits: tuple(torch.linspace(-1, 1, 2**bits).tolist()) for bits in range(1, 9)}

KINDS = {"nf": NORMAL_FLOAT, "fp": FLOAT, "uniform": UNIFORM}
DANUQ = ("published", "lloyd")


@functools.cache
def danuq_table(bits: int, which: str = "published") -> Tensor:
    """DANUQ's levels (2^bits,): the paper's constants, or the exact optimum ("lloyd", any bits up to 8).

    Raises:
        UserError: no such table.
    """
    if which not in DANUQ:
        raise UserError(f"quantizer.levels takes {' or '.join(DANUQ)}, found '{which}'.")
    if which == "published":
        return torch.tensor(_of(PUBLISHED, bits, "published DANUQ levels"))
    if not 1 <= bits <= 8:
        raise UserError(f"levels are computed for 1 to 8 bits, found {bits}.")
    return torch.tensor(danuq_levels(bits))


@functools.cache
def absmax_table(kind: str, bits: int) -> Tensor:
    """Levels in -1 .. 1 of "uniform", "nf" or "fp".

    Raises:
        UserError: that kind has no table of so many bits.
    """
    return torch.tensor(_of(KINDS[kind], bits, f"{kind} levels"))


def nearest(values: Tensor, table: Tensor) -> Tensor:
    """Places (int32) in `table` of the levels nearest to `values`; thresholds are midpoints, and a value on
    one takes the lower level."""
    middles = (table[1:] + table[:-1]) / 2
    return torch.bucketize(values.contiguous(), middles.to(values.device), out_int32=True)


def _of(tables: dict[int, tuple[float, ...]], bits: int, what: str) -> tuple[float, ...]:
    if bits not in tables:
        raise UserError(f"there are {what} of {', '.join(map(str, tables))} bits; quantizer.bits is {bits}.")
    return tables[bits]
