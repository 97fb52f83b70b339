"""FedPara: each weight is the elementwise product of two low-rank matrices, W = (X1 Y1) o (X2 Y2).

After Hyeon-Woo et al. 2022 (rank up to r^2 from 2 r (p + q) values), for convolutions on the same matrix view
as the other methods, not in its tensor form. The start is ours, as in `fedlmt.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from projects.fedmud.decomposition import draw


@dataclass(frozen=True)
class Hadamard:
    """W = (left1 right1) o (left2 right2), (rows, columns), both of rank `rank`; `std`: of the first W."""

    rows: int
    columns: int
    rank: int
    std: float = 0.01

    @classmethod
    def of_ratio(cls, rows: int, columns: int, ratio: float, std: float = 0.01) -> Hadamard:
        """r = max(1, ceil(N ratio / (2 (p + q))))."""
        rank = max(1, math.ceil(rows * columns * ratio / (2 * (rows + columns))))
        return cls(rows, columns, rank, std)

    @property
    def trained(self) -> dict[str, tuple[int, ...]]:
        left, right = (self.rows, self.rank), (self.rank, self.columns)
        return {"left1": left, "right1": right, "left2": left, "right2": right}

    @property
    def frozen(self) -> dict[str, tuple[int, ...]]:
        return {}

    def start(self, *stream: int | str) -> dict[str, Tensor]:
        """An entry of X Y has variance r s^4; of two such, the standard deviations multiply."""
        std = (self.std / self.rank) ** 0.25
        return {name: draw(shape, std, "normal", *stream, name) for name, shape in self.trained.items()}

    def __call__(self, factors: Mapping[str, Tensor]) -> Tensor:
        return (factors["left1"] @ factors["right1"]) * (factors["left2"] @ factors["right2"])
