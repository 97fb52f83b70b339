"""A matrix as two thin factors."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from shared.errors import UserError
from shared.federated.codecs import Codec, Context


class LowRank(Codec):
    """Truncated SVD of the (out, rest) view: r (p + q) values instead of p q, where that is fewer."""

    unbiased = False

    def __init__(self, rank: int, *, only: str = "") -> None:
        super().__init__(only)
        if rank < 1:
            raise UserError(f"LowRank takes a rank of at least 1, found {rank}.")
        self.rank = rank

    def encode(self, name: str, value: Tensor, context: Context) -> tuple[dict[str, Tensor], dict] | None:
        if value.dim() < 2:
            return None
        matrix = value.reshape(value.shape[0], -1)  # (p, q)
        if self.rank * sum(matrix.shape) >= matrix.numel():
            return None
        left, sizes, right = torch.linalg.svd(matrix.float(), full_matrices=False)
        factors = {"left": left[:, : self.rank] * sizes[: self.rank], "right": right[: self.rank]}
        info = {"shape": list(value.shape), "dtype": str(value.dtype).split(".")[-1]}
        return {suffix: factor.contiguous() for suffix, factor in factors.items()}, info

    def decode(self, name: str, parts: dict[str, Tensor], info: dict[str, Any], context: Context) -> Tensor:
        return (parts["left"] @ parts["right"]).reshape(info["shape"]).to(getattr(torch, info["dtype"]))
