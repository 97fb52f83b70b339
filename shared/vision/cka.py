"""Linear centred kernel alignment (Kornblith et al., ICML 2019) between feature matrices."""

from __future__ import annotations

from torch import Tensor

from shared.errors import UserError


def linear_cka(a: Tensor, b: Tensor) -> float:
    """Similarity, 0..1, of two descriptions of the same N things: `a` (N, D1), `b` (N, D2).

    ||B^T A||_F^2 / (||A^T A||_F ||B^T B||_F) with centred columns, in float64; unchanged by rotations and
    by one scale for all. Features that are the same for all N have no structure to compare: 0.

    Raises:
        UserError: not two matrices of as many rows.
    """
    if a.ndim != 2 or b.ndim != 2 or len(a) != len(b):
        raise UserError(
            "linear CKA compares two matrices of as many rows (N, D1) and (N, D2); "
            f"found {tuple(a.shape)} and {tuple(b.shape)}."
        )
    a, b = (_centred(matrix) for matrix in (a, b))
    # Grams over the shorter side: the same norms for less work.
    if a.shape[1] <= len(a) and b.shape[1] <= len(a):
        cross, own_a, own_b = (a.T @ b).square().sum(), (a.T @ a).norm(), (b.T @ b).norm()
    else:
        gram_a, gram_b = a @ a.T, b @ b.T
        cross, own_a, own_b = (gram_a * gram_b).sum(), gram_a.norm(), gram_b.norm()
    size = float(own_a * own_b)
    return float(cross) / size if size > 0 else 0.0


def domain_cka(source: Tensor, target: Tensor) -> float:
    """Similarity of two domains in one feature space: `source` (N, D), `target` (N, D), other images each.

    Images have no partners across domains but channels have, so the channels take the place of the things
    compared: linear CKA of the two transposed matrices, each centred over its images.

    Raises:
        UserError: other numbers of images or channels; take as many images of each.
    """
    if source.ndim != 2 or source.shape != target.shape:
        raise UserError(
            "the CKA of two domains takes as many images and channels of each, (N, D) twice; "
            f"found {tuple(source.shape)} and {tuple(target.shape)}."
        )
    return linear_cka(_centred(source).T, _centred(target).T)


def _centred(matrix: Tensor) -> Tensor:
    matrix = matrix.double()
    return matrix - matrix.mean(0)
