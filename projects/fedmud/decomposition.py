"""Small factors for a matrix: how many, of which shape, and the matrix that a pair of them stands for.

A layer's weight is seen as a matrix (p, q): a linear layer (out, in) as it is, a convolution (O, I, k, k) as
(O k, I k) by a plain row-major view, no axis is moved. The block-wise Kronecker form is in `bkd.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from shared.errors import UserError
from shared.training.seeding import generator

LAWS = ("uniform", "normal")
STEP = 0.001  # of the search for the ratio, and its tolerance


class Product(Protocol):
    """Two factors and the matrix (rows, columns) that they make; linear in each of them."""

    rows: int
    columns: int

    @property
    def left_shape(self) -> tuple[int, ...]: ...

    @property
    def right_shape(self) -> tuple[int, ...]: ...

    def __call__(self, left: Tensor, right: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class Matrix:
    """ "mat": L R with L (p, r) and R (r, q)."""

    rows: int
    columns: int
    rank: int

    @classmethod
    def of_ratio(cls, rows: int, columns: int, ratio: float) -> Matrix:
        """r = max(1, ceil(N ratio / (p + q))) with N = p q, so that r (p + q) is about N ratio."""
        return cls(rows, columns, max(1, math.ceil(rows * columns * ratio / (rows + columns))))

    @classmethod
    def of_right_ratio(cls, rows: int, columns: int, ratio: float) -> Matrix:
        """As many ranks as a trained right factor alone may have: r = max(1, ceil(N ratio / q))."""
        return cls(rows, columns, max(1, math.ceil(rows * columns * ratio / columns)))

    @property
    def left_shape(self) -> tuple[int, int]:
        return self.rows, self.rank

    @property
    def right_shape(self) -> tuple[int, int]:
        return self.rank, self.columns

    def __call__(self, left: Tensor, right: Tensor) -> Tensor:
        return left @ right


class Form(Protocol):
    """A matrix (rows, columns) as a function of named factors, some trained and some frozen."""

    rows: int
    columns: int

    @property
    def trained(self) -> dict[str, tuple[int, ...]]:
        """Name -> shape of the factors that are trained and sent."""
        ...

    @property
    def frozen(self) -> dict[str, tuple[int, ...]]:
        """Name -> shape of the factors that everybody draws from the shared seed; never sent."""
        ...

    def start(self, *stream: int | str) -> dict[str, Tensor]:
        """All factors as drawn from the random stream of that name."""
        ...

    def __call__(self, factors: Mapping[str, Tensor]) -> Tensor:
        """The matrix (rows, columns)."""
        ...


def draw(shape: Sequence[int], size: float, law: str, *stream: int | str) -> Tensor:
    """U(-size, size) or N(0, size^2), from the random stream of that name alone.

    Raises:
        UserError: a law that is not known, or a size that is not positive.
    """
    if not size > 0:
        raise UserError(f"method.magnitude must be positive, found {size}.")
    source = generator(*stream)
    if law == "uniform":
        return torch.empty(*shape).uniform_(-size, size, generator=source)
    if law == "normal":
        return torch.empty(*shape).normal_(0, size, generator=source)
    raise UserError(f"method.law takes {' or '.join(LAWS)}; found {law!r}.")


def parameters(form: Form) -> int:
    """How many values are trained, and sent in each direction."""
    return sum(math.prod(shape) for shape in form.trained.values())


def fit_ratio(
    shapes: Sequence[tuple[int, int]], dense: int, form_of: Callable[[int, int, float], Form], target: float
) -> list[Form]:
    """Forms of the layers `shapes` [(p, q), ...] that bring the whole network down to `target`.

    The ratio of the network is (trained values of the forms + `dense`) / (all values), `dense` being those of
    the layers that are not decomposed. The layers' ratio starts at `target` and falls by 0.001 while that of
    the network is more than 0.001 above the target; where it would reach 0 the last forms stay: the target
    cannot be reached.

    Raises:
        UserError: the target is not between 0 and 1.
    """
    if not 0 < target <= 1:
        raise UserError(f"method.ratio must lie in (0, 1], found {target}.")
    total = dense + sum(rows * columns for rows, columns in shapes)
    ratio = target
    while True:
        forms = [form_of(rows, columns, ratio) for rows, columns in shapes]
        real = (dense + sum(map(parameters, forms))) / total
        if real - target <= STEP or ratio - STEP <= 0:
            return forms
        ratio -= STEP
