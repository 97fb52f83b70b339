"""How much of a real FedAvg round's update each form can express: least squares, no training of factors.

Plain products by truncated SVD, plain Kronecker blocks by the best rank-1 matrix of each rearranged block
(Van Loan and Pitsianis 1993), frozen factors by projection. All exact optima but one: of the block that the
matrix fills only in part, a plain Kronecker product is fitted by alternating least squares.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from projects.fedmud import aad
from projects.fedmud.aad import KINDS, PATTERNS, Update
from projects.fedmud.bkd import Kronecker
from projects.fedmud.decomposition import fit_ratio
from projects.fedmud.layers import decomposable, matrix_shape, trained_values
from shared.federated.algorithms.fedavg import FedAvg
from shared.federated.cohort import Cohort

SWEEPS = 30


class ApproximationError(FedAvg):
    """FedAvg; of the last round's update it logs `approximation/<kind>_<pattern>`.

    That is ||U - best Delta|| / ||U|| over the layers that are decomposed at `ratio`, where random frozen
    factors are drawn once.
    """

    def __init__(self, client: Any, *, ratio: float, **settings: Any) -> None:
        super().__init__(client, **settings)
        self.ratio = ratio

    def round(self, cohort: Cohort) -> None:
        layers = [layer for _, layer in decomposable(self.model.net)]
        before = [layer.weight.detach().clone() for layer in layers]
        super().round(cohort)
        if cohort.round != self.data.rounds - 1:
            return
        updates = [
            (layer.weight.detach() - old).view(matrix_shape(old))
            for layer, old in zip(layers, before, strict=True)
        ]
        dense = trained_values(self.model) - sum(update.numel() for update in updates)
        for kind in KINDS:
            for pattern in PATTERNS:
                error = relative_error(updates, dense, self.ratio, kind, pattern, self.seed)
                name = f"approximation/{kind}_{pattern.replace('+', '_')}"
                value = torch.tensor(error, dtype=torch.float64)
                self.log(name, value, on_step=True, on_epoch=False, batch_size=1)


def relative_error(
    updates: list[Tensor], dense: int, ratio: float, kind: str, pattern: str, seed: int
) -> float:
    """||U - best Delta|| / ||U|| over the matrices `updates`, decomposed so that the network gets `ratio`."""
    shapes = [(update.shape[0], update.shape[1]) for update in updates]
    forms = fit_ratio(shapes, dense, partial(aad.update, kind=kind, pattern=pattern), ratio)
    left = sum(
        residual(update.double(), form, form.start(seed, "approximation", number))
        for number, (update, form) in enumerate(zip(updates, forms, strict=True))
    )
    return math.sqrt(left / sum(float(update.double().square().sum()) for update in updates))


def residual(target: Tensor, form: Update, factors: Mapping[str, Tensor]) -> float:
    """min ||target - Delta||^2 over the trained factors of `form`; the frozen ones are from `factors`."""
    frozen = {name: factors[name].double() for name in form.frozen}
    if not isinstance(form.product, Kronecker):
        return _matrix_residual(target, form, frozen)
    blocks, known = rearranged(target, form.product)
    total = 0.0
    for number, (block, mask) in enumerate(zip(blocks, known, strict=True)):
        own = {name: value[number].flatten() for name, value in frozen.items()}
        solve = _block_residual if bool(mask.all()) else _partial_residual
        total += solve(block, mask, form.pattern, own) if bool(mask.any()) else 0.0
    return total


def rearranged(target: Tensor, product: Kronecker) -> tuple[Tensor, Tensor]:
    """Blocks (k, z^2, z^2) in which L (x) R is the matrix vec(L) vec(R)^T, and which entries exist."""
    side = product.side
    room = product.blocks * side**4
    flat = torch.zeros(2, room, dtype=target.dtype)
    flat[0, : target.numel()] = target.reshape(-1)
    flat[1, : target.numel()] = 1
    split = flat.view(2, product.blocks, side, side, side, side)  # (i, j, m, n) of K[i z + j, m z + n]
    found = split.permute(0, 1, 2, 4, 3, 5).reshape(2, product.blocks, side**2, side**2)
    return found[0], found[1].bool()


def _matrix_residual(target: Tensor, form: Update, frozen: Mapping[str, Tensor]) -> float:
    if form.pattern == "ab":
        return float(torch.linalg.svdvals(target)[form.product.rank :].square().sum())
    basis = torch.linalg.qr(frozen["frozen_left"]).Q
    rest = target - basis @ (basis.T @ target)
    if form.pattern == "fab+cfd":
        basis = torch.linalg.qr(frozen["frozen_right"].T).Q
        rest = rest - (rest @ basis) @ basis.T
    return float(rest.square().sum())


def _block_residual(block: Tensor, mask: Tensor, pattern: str, frozen: Mapping[str, Tensor]) -> float:
    if pattern == "ab":
        return float(torch.linalg.svdvals(block)[1:].square().sum())
    unit = frozen["frozen_left"] / frozen["frozen_left"].norm()
    rest = block - torch.outer(unit, unit @ block)
    if pattern == "fab+cfd":
        unit = frozen["frozen_right"] / frozen["frozen_right"].norm()
        rest = rest - torch.outer(rest @ unit, unit)
    return float(rest.square().sum())


def _partial_residual(block: Tensor, mask: Tensor, pattern: str, frozen: Mapping[str, Tensor]) -> float:
    """Least squares over the entries in `mask` only."""
    known = mask.to(block.dtype)
    if pattern == "ab":
        right = torch.linalg.svd(block).Vh[0]
        left = _scales(block.T, known.T, right)
        for _ in range(SWEEPS):
            right = _scales(block, known, left)
            left = _scales(block.T, known.T, right)
        return float((known * (block - torch.outer(left, right))).square().sum())
    if pattern == "fab":
        right = _scales(block, known, frozen["frozen_left"])
        return float((known * (block - torch.outer(frozen["frozen_left"], right))).square().sum())
    size = len(block)
    rows, columns = mask.nonzero(as_tuple=True)
    entries = torch.arange(len(rows))
    design = torch.zeros(len(rows), 2 * size, dtype=block.dtype)  # of vec(R), then vec(L)
    design[entries, columns] = frozen["frozen_left"][rows]
    design[entries, size + rows] = frozen["frozen_right"][columns]
    best = torch.linalg.lstsq(design, block[rows, columns, None], driver="gelsd").solution
    return float((block[rows, columns, None] - design @ best).square().sum())


def _scales(block: Tensor, known: Tensor, left: Tensor) -> Tensor:
    """The best factor of `left` for each column, over known entries; 0 for a column without any."""
    size = (known * left[:, None].square()).sum(0)
    return torch.where(size > 0, (known * block * left[:, None]).sum(0) / size.clamp_min(1e-300), 0.0)
