"""The few-shot head: a bank of features, episodes drawn from it, centred prototypes (paper, equation 6).

Everything is batched over episodes; nothing loops over them one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import normalize

from shared.errors import UserError

CENTRES = ("support", "all")  # inductive, transductive
CHUNK = 16  # episodes at a time: their features stay in the cache of a core


@dataclass(frozen=True)
class Bank:
    """Features of one domain, ordered by class.

    Attributes:
        features: (N, D), of unit length less their common mean, which the centring of an episode cancels; it
            keeps the small differences of crowded features exact.
        squares: (N,), their squared lengths.
        starts, counts: (C,), where the images of each class begin, and how many they are.
        names: of the classes.
    """

    features: Tensor
    squares: Tensor
    starts: Tensor
    counts: Tensor
    names: tuple[str, ...]


@dataclass(frozen=True)
class Episodes:
    """Rows of a bank: `support` (E, ways, shots) and `query` (E, ways, queries); the way is the label."""

    support: Tensor
    query: Tensor


def bank(features: Tensor, labels: Tensor, names: Sequence[str]) -> Bank:
    """The bank of features (N, D) with labels (N,) in 0 .. len(names) - 1."""
    order = labels.argsort(stable=True)
    unit = normalize(features.float(), dim=1)[order]
    unit = unit - unit.mean(0)
    counts = torch.bincount(labels, minlength=len(names))
    return Bank(unit, unit.square().sum(1), counts.cumsum(0) - counts, counts, tuple(names))


def draw_episodes(
    own: Bank, episodes: int, *, ways: int = 5, shots: int = 5, queries: int = 15, stream: torch.Generator
) -> Episodes:
    """Random classes, and of each random images without repetition.

    Raises:
        UserError: too few classes, or a class with too few images (it is named with its count).
    """
    need, classes = shots + queries, len(own.names)
    if min(ways, shots, queries, episodes) < 1:
        raise UserError(
            "episodes, ways, shots and queries are numbers from 1 on; found "
            f"{episodes}, {ways}, {shots} and {queries}."
        )
    if classes < ways:
        raise UserError(f"expected at least {ways} classes for {ways}-way episodes, found {classes}.")
    if short := [f"'{own.names[c]}' has {n}" for c, n in enumerate(own.counts.tolist()) if n < need]:
        raise UserError(
            f"an episode takes {shots} + {queries} = {need} images of a class; {', '.join(short[:5])}"
            f"{' and more' if len(short) > 5 else ''}. Take fewer queries, or leave the class out."
        )
    chosen = torch.rand(episodes, classes, generator=stream).argsort(dim=1)[:, :ways]
    counts = own.counts.cpu()[chosen]
    picked = distinct(counts, need, stream) + own.starts.cpu()[chosen][..., None]
    return Episodes(picked[..., :shots], picked[..., shots:])


def distinct(counts: Tensor, number: int, stream: torch.Generator) -> Tensor:
    """For each n of `counts` (...): `number` different integers below n in random order, (..., number).

    Robert Floyd's sampling, side by side for all of `counts`: every subset is as likely as any other.
    """
    found = torch.empty(*counts.shape, number, dtype=torch.long)
    uniform = torch.rand(*counts.shape, number, generator=stream, dtype=torch.float64)
    for place in range(number):
        top = counts - number + place
        draw = (uniform[..., place] * (top + 1)).long()
        taken = (found[..., :place] == draw[..., None]).any(-1)
        found[..., place] = torch.where(taken, top, draw)
    return found.gather(-1, torch.rand(found.shape, generator=stream).argsort(-1))


def anchors(support: Tensor, query: Tensor | None = None) -> Tensor:
    """Prototypes and, last, the mean m of support (E, ways, shots, D): (E, ways + 1, D).

    Features are of unit length, less any common vector. They are centred by m, brought to unit length, and
    averaged over the shots. With `query` (E, Q, D) the mean is of both.
    """
    ways, shots = support.shape[1:3]
    mean = support.mean((1, 2), keepdim=True)
    if query is not None:
        share = ways * shots / (ways * shots + query.shape[1])
        mean = share * mean + (1 - share) * query.mean(1)[:, None, None]
    prototypes = normalize(support - mean, dim=-1).mean(2)
    return torch.cat([prototypes, mean[:, :, 0]], dim=1)


def scores(gram: Tensor, dots: Tensor, squares: Tensor) -> Tensor:
    """Scores (E, ways, Q) of queries f, of which the largest is predicted: -|g - p|^2 / 2 + a constant.

    Inner products are enough: g = (f - m) / |f - m| and so g.p = (f.p - m.p) / |f - m|.

    Args:
        gram: (E, ways + 1, ways + 1), of the anchors (prototypes p and, last, the mean m) with each other.
        dots: (E, ways + 1, Q), of the anchors with f.
        squares: (E, Q), of f with itself.
    """
    length = (squares[:, None] - 2 * dots[:, -1:] + gram[:, -1:, -1:]).clamp(min=1e-24).sqrt()
    along = (dots[:, :-1] - gram[:, :-1, -1:]) / length
    return along - gram.diagonal(dim1=1, dim2=2)[:, :-1, None] / 2


@torch.inference_mode()
def accuracies(own: Bank, episodes: Episodes, centre: str = "support") -> Tensor:
    """Share of right answers of each episode: (E,)."""
    if centre not in CENTRES:
        raise UserError(f"expected a centring by one of {', '.join(CENTRES)}; found '{centre}'.")
    device = own.features.device
    rows = episodes.query.to(device).flatten(1)
    grams, dots = [], []
    for support, query in zip(episodes.support.to(device).split(CHUNK), rows.split(CHUNK), strict=True):
        features = _rows(own.features, query)  # once from memory: what takes the time
        held = anchors(_rows(own.features, support), features if centre == "all" else None)
        grams.append(held @ held.transpose(1, 2))
        dots.append(held @ features.transpose(1, 2))
    found = scores(torch.cat(grams), torch.cat(dots), own.squares[rows])
    return _right(found.unflatten(2, episodes.query.shape[1:])).float().mean((1, 2))


def _right(found: Tensor) -> Tensor:
    """Where the true way has the largest score, the first of equal ones: (E, ways, Q).

    `found` (E, ways, true ways, Q). The same as comparing `argmax` with the truth, in a tenth of the time.
    """
    true = found.diagonal(dim1=1, dim2=2).transpose(1, 2)[:, None]
    before = torch.ones(found.shape[1:3], dtype=torch.bool, device=found.device).triu(1)[..., None]
    return ~torch.where(before, found >= true, found > true).any(1)


def _rows(table: Tensor, places: Tensor) -> Tensor:
    """Rows of `table` (N, D) at `places` (...): (..., D); on a CPU three times faster than by brackets."""
    return table.index_select(0, places.flatten()).unflatten(0, places.shape)


def mean_and_interval(values: Tensor) -> tuple[float, float]:
    """Mean in per cent, and half the width of its 95 % interval, 1.96 std / sqrt(E)."""
    per_cent = 100 * values.double()
    return float(per_cent.mean()), float(1.96 * per_cent.std(correction=0) / len(values) ** 0.5)
