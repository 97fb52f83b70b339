"""Block-wise Kronecker decomposition (BKD, "kron"): a matrix of any rank from few values.

The matrix is read row by row and cut into consecutive runs of z^4 values; each run is a block (z^2, z^2), the
Kronecker product of two factors (z, z). A block has rank(L) rank(R), up to z^2, where a plain product of as
many values is capped at a small r.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Kronecker:
    """Blocks K_o = L_o (x) R_o: K_o[i z + j, m z + n] = L_o[i, m] R_o[j, n], o = 1 .. `blocks`."""

    rows: int
    columns: int
    blocks: int
    side: int

    @classmethod
    def of_ratio(cls, rows: int, columns: int, ratio: float) -> Kronecker:
        """k = ceil(ratio^2 N / 4), z = ceil((N / k)^(1/4)): 2 k z^2 is about N ratio."""
        count = rows * columns
        blocks = math.ceil(ratio**2 * count / 4)
        side = max(1, round((count / blocks) ** 0.25))
        while blocks * side**4 < count:  # in whole numbers: a fourth root may be off by a rounding
            side += 1
        while blocks * (side - 1) ** 4 >= count:
            side -= 1
        return cls(rows, columns, blocks, side)

    @classmethod
    def of_right_ratio(cls, rows: int, columns: int, ratio: float) -> Kronecker:
        """Only the right factor is trained, hence twice the ratio: k z^2 is about N ratio."""
        return cls.of_ratio(rows, columns, 2 * ratio)

    @property
    def left_shape(self) -> tuple[int, int, int]:
        return self.blocks, self.side, self.side

    @property
    def right_shape(self) -> tuple[int, int, int]:
        return self.left_shape

    def __call__(self, left: Tensor, right: Tensor) -> Tensor:
        """(rows, columns) of factors (k, z, z); what the last block has beyond rows * columns is dropped."""
        blocks = left[:, :, None, :, None] * right[:, None, :, None, :]  # (k, i, j, m, n)
        return blocks.reshape(-1)[: self.rows * self.columns].view(self.rows, self.columns)
