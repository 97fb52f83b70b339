"""FedLMT: each weight is a product of two factors for good, W = L R, and the factors are averaged.

After Liu et al. 2024. The start is ours: both factors normal, such that W has the standard deviation that
the dense network's weights start with.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from projects.fedmud.decomposition import Matrix, draw


@dataclass(frozen=True)
class LowRank:
    """W = L R, (rows, columns); `std`: of the first W."""

    product: Matrix
    std: float = 0.01

    @classmethod
    def of_ratio(cls, rows: int, columns: int, ratio: float, std: float = 0.01) -> LowRank:
        return cls(Matrix.of_ratio(rows, columns, ratio), std)

    @property
    def rows(self) -> int:
        return self.product.rows

    @property
    def columns(self) -> int:
        return self.product.columns

    @property
    def trained(self) -> dict[str, tuple[int, ...]]:
        return {"left": self.product.left_shape, "right": self.product.right_shape}

    @property
    def frozen(self) -> dict[str, tuple[int, ...]]:
        return {}

    def start(self, *stream: int | str) -> dict[str, Tensor]:
        """An entry of L R is a sum of r products: variance r s^4 of factors with standard deviation s."""
        std = (self.std**2 / self.product.rank) ** 0.25
        return {name: draw(shape, std, "normal", *stream, name) for name, shape in self.trained.items()}

    def __call__(self, factors: Mapping[str, Tensor]) -> Tensor:
        return self.product(factors["left"], factors["right"])
