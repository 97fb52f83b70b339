"""Aggregation-aware decomposition (AAD): an update that is linear in what is trained.

The mean of products is not the product of means: mean_i(L_i R_i) != mean_i(L_i) mean_i(R_i). With one random,
frozen factor in each product it is, and a second product makes both sides trainable:

    ab       L R                both trained; L starts at random, R at 0
    fab      L_f R              L_f random and frozen, R starts at 0
    fab+cfd  L_f R + L R_f      AAD; L_f, R_f random and frozen, R and L start at 0

Every update starts at 0. Frozen factors come from the shared seed and are never sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from projects.fedmud.bkd import Kronecker
from projects.fedmud.decomposition import Matrix, Product, draw
from shared.errors import UserError, suggest

KINDS = {"mat": Matrix, "kron": Kronecker}
PATTERNS = ("ab", "fab", "fab+cfd")


@dataclass(frozen=True)
class Update:
    """The update Delta (p, q) of a weight.

    Args:
        product: a `Matrix` or a `Kronecker`.
        pattern: one of PATTERNS.
        magnitude, law: of the random factors, U(-a, a) or N(0, a^2). Of plain SGD the update moves in
            proportion to lr a^2, and to the number of values that a factor sums over.
    """

    product: Product
    pattern: str = "fab+cfd"
    magnitude: float = 1.0
    law: str = "uniform"

    @property
    def rows(self) -> int:
        return self.product.rows

    @property
    def columns(self) -> int:
        return self.product.columns

    @property
    def trained(self) -> dict[str, tuple[int, ...]]:
        right = {"right": self.product.right_shape}
        return right if self.pattern == "fab" else {"left": self.product.left_shape, **right}

    @property
    def frozen(self) -> dict[str, tuple[int, ...]]:
        first, second = (
            {"frozen_left": self.product.left_shape},
            {"frozen_right": self.product.right_shape},
        )
        return {"ab": {}, "fab": first, "fab+cfd": first | second}[self.pattern]

    def start(self, *stream: int | str) -> dict[str, Tensor]:
        """Factors of an update that is exactly 0; the two products draw from streams of their own."""
        zeros = {name: torch.zeros(shape) for name, shape in self.trained.items()}
        random = {
            "ab": {"left": 1},
            "fab": {"frozen_left": 1},
            "fab+cfd": {"frozen_left": 1, "frozen_right": 2},
        }
        shapes = self.trained | self.frozen
        return zeros | {
            name: draw(shapes[name], self.magnitude, self.law, *stream, number)
            for name, number in random[self.pattern].items()
        }

    def __call__(self, factors: Mapping[str, Tensor]) -> Tensor:
        if self.pattern == "ab":
            return self.product(factors["left"], factors["right"])
        first = self.product(factors["frozen_left"], factors["right"])
        if self.pattern == "fab":
            return first
        return first + self.product(factors["left"], factors["frozen_right"])


def update(
    rows: int,
    columns: int,
    ratio: float,
    kind: str,
    pattern: str,
    magnitude: float = 1.0,
    law: str = "uniform",
) -> Update:
    """The update of a weight (rows, columns) with about rows * columns * ratio trained values.

    Raises:
        UserError: a kind or a pattern that is not known.
    """
    if kind not in KINDS:
        raise UserError(f"method.kind takes {', '.join(KINDS)}; found {kind!r}.{suggest(kind, KINDS)}")
    if pattern not in PATTERNS:
        raise UserError(
            f"method.pattern takes {', '.join(PATTERNS)}; found {pattern!r}.{suggest(pattern, PATTERNS)}"
        )
    size = KINDS[kind].of_right_ratio if pattern == "fab" else KINDS[kind].of_ratio
    return Update(size(rows, columns, ratio), pattern, magnitude, law)
