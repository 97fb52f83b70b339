"""From replies to one value: means with missing keys and any weights, and robust alternatives.

Sums run over ascending client ids in float64, so a result does not depend on who answered first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from shared.errors import UserError
from shared.federated.errors import NoReplies
from shared.federated.payload import Reply

Weights: TypeAlias = str | Mapping[int, float] | Callable[[Reply, str], float] | None
Values: TypeAlias = list[tuple[Reply, Tensor]]


def weighted_mean(
    replies: Sequence[Reply],
    name: str,
    by: Weights = "num_samples",
    *,
    integers: str = "max",
    also: tuple[Any, float] | None = None,
) -> Any:
    """The mean of entry `name`: a tensor, or (nested) dicts of tensors, key by key over its senders.

    Args:
        by: a number in the reply ("num_samples", "num_steps"), client -> weight, (reply, key) -> weight, or
            None for equal weights.
        integers: what becomes of whole-number entries such as `num_batches_tracked`: "max" or "sum".
        also: (value, weight) that votes beside the replies, e.g. the server's own.

    Raises:
        NoReplies: nobody answered.
        UserError: the weights of a key add up to nothing.
    """
    weigh = _weigher(by)

    def mean(key: str, values: Values, own: Tensor | None) -> Tensor:
        first = values[0][1]
        if not first.is_floating_point():
            stacked = torch.stack([value for _, value in values])
            reduced = stacked.amax(0) if integers == "max" else stacked.sum(0)
            return reduced.to(first.dtype)
        pairs = [(float(weigh(reply, key)), value) for reply, value in values]
        if own is not None and also[1] != 0:
            pairs.append((float(also[1]), own))
        if len(pairs) == 1 and pairs[0][0] != 0:
            return pairs[0][1].clone()
        total = sum(weight for weight, _ in pairs)
        if total == 0:
            raise UserError(
                f"the weights of '{key}' add up to 0 over {len(pairs)} replies; nothing to average."
            )
        result = torch.zeros_like(first, dtype=torch.float64)
        for weight, value in pairs:
            result.add_(value.to(result.device, torch.float64), alpha=weight)
        return result.div_(total).to(first.dtype)

    return _reduce(replies, name, mean, also[0] if also else None)


def median(replies: Sequence[Reply], name: str) -> Any:
    """The value-wise median (mean of the two middle ones for an even number)."""
    return _reduce(replies, name, lambda key, values, own: _quantile_mean(values, len(values) - 1 >> 1))


def trimmed_mean(replies: Sequence[Reply], name: str, cut: int) -> Any:
    """The value-wise mean without the `cut` least and `cut` greatest values (Yin et al. 2018)."""
    if len(replies) <= 2 * cut:
        raise UserError(f"cutting {cut} at each end needs more than {2 * cut} replies, found {len(replies)}.")
    return _reduce(replies, name, lambda key, values, own: _quantile_mean(values, cut))


def by_layer(weights: Tensor, replies: Sequence[Reply], layer_of: Callable[[str], int | None]) -> Weights:
    """Weights (L, N), one row a layer, one column a reply; a key of no layer (None) counts all alike."""
    column = {reply.client: i for i, reply in enumerate(replies)}
    if weights.dim() != 2 or weights.shape[1] != len(column):
        raise UserError(f"expected weights (layers, {len(column)}), found {tuple(weights.shape)}.")

    def weigh(reply: Reply, key: str) -> float:
        layer = layer_of(key)
        return 1.0 if layer is None else float(weights[layer, column[reply.client]])

    return weigh


def by_count(counts: str) -> Weights:
    """Weights from a dict in the reply that has the same keys, e.g. samples of each class."""
    return lambda reply, key: float(reply[counts][key])


def total(replies: Sequence[Reply], name: str) -> float:
    """The sum of a number over replies."""
    return float(sum(reply[name] for reply in replies))


def _reduce(
    replies: Sequence[Reply],
    name: str,
    reduce: Callable[[str, Values, Tensor | None], Tensor],
    own: Any = None,
) -> Any:
    ordered = sorted(replies, key=lambda reply: reply.client)
    if not ordered:
        raise NoReplies(f"nobody sent '{name}'; there is nothing to aggregate.")

    def walk(key: str, values: list[tuple[Reply, Any]], own: Any) -> Any:
        if isinstance(values[0][1], Mapping):
            keys = dict.fromkeys(k for _, value in values for k in value)
            return {
                k: walk(
                    k if not key else f"{key}/{k}",
                    [(reply, value[k]) for reply, value in values if k in value],
                    None if own is None else own.get(k),
                )
                for k in keys
            }
        shapes = {tuple(value.shape) for _, value in values}
        if len(shapes) > 1:
            raise UserError(f"'{name}/{key}' comes in shapes {', '.join(map(str, sorted(shapes)))}.")
        return reduce(key, values, own)

    return walk("", [(reply, reply[name]) for reply in ordered], own)


def _weigher(by: Weights) -> Callable[[Reply, str], float]:
    if by is None:
        return lambda reply, key: 1.0
    if isinstance(by, str):
        return lambda reply, key: reply[by]
    if isinstance(by, Mapping):
        return lambda reply, key: by[reply.client]
    return by


def _quantile_mean(values: Values, cut: int) -> Tensor:
    stacked = torch.stack([value for _, value in values])
    kept = stacked.double().sort(0).values[cut : len(values) - cut]
    return kept.mean(0).to(stacked.dtype)
