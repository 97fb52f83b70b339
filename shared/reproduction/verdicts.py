"""What our figures say: about a published figure (cells), about a statement of the paper (claims)."""

from __future__ import annotations

import importlib
import math
import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shared.errors import UserError
from shared.reproduction import statistics

if TYPE_CHECKING:
    from shared.reproduction.published import Published
    from shared.reproduction.recipe import Claim, Selector
    from shared.reproduction.results import Results

CELL_VERDICTS = ("match", "close", "off", "not available", "not judged", "not run")
CLAIM_VERDICTS = ("holds", "fails", "inconclusive")
COMPARE: dict[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}


def cell_verdict(
    profile: str, mean: float | None, n: int, published: Published | None, tolerance: float | None
) -> str | None:
    """Judge our mean against the published figure; None at every profile but `paper`.

    `match`: |mean - published| <= tol; `close`: <= 2 tol; `off`: further away, or not finite (`mean` None
    though n > 0 runs ended); tol = max(2 * published std, tolerance). `not available`: nothing is published
    for the cell; `not judged`: something is, but with neither std nor tolerance; `not run`: no run has ended.
    """
    if profile != "paper":
        return None
    if published is None or published.value is None:
        return "not available"
    if n == 0:
        return "not run"
    allowed = max(2 * (published.std or 0.0), tolerance or 0.0)
    if allowed == 0:
        return "not judged"
    if mean is None:
        return "off"
    gap = abs(mean - published.value) * (1 - 1e-12)  # 66.1 - 66.0 must not exceed 0.1 by rounding
    return "match" if gap <= allowed else "close" if gap <= 2 * allowed else "off"


@dataclass(frozen=True)
class ClaimResult:
    """Outcome of one claim; `note` says how it was judged, or why it could not be."""

    verdict: str
    estimate: float | None
    interval: tuple[float, float] | None
    n: int
    note: str


def judge_interval(low: float, high: float, condition: tuple[str, float]) -> str:
    """`holds` if the whole interval satisfies `condition`, `fails` if none of it does, else `inconclusive`.

    Ends that differ from the threshold by rounding only count as equal to it.
    """
    compare, threshold = COMPARE[condition[0]], condition[1]
    ends = [
        compare(threshold if math.isclose(end, threshold, rel_tol=1e-9, abs_tol=1e-12) else end, threshold)
        for end in (low, high)
    ]
    return "holds" if all(ends) else "inconclusive" if any(ends) else "fails"


def judge_claim(claim: Claim, results: Results) -> ClaimResult:
    """Test one claim on the runs that have ended.

    A difference is judged by the interval of the paired differences over seeds. A ratio is judged, with
    `interval: t`, by the t interval of the ratios of each seed, with `interval: bootstrap` by the ratio of
    the means. A function gives the value of each seed itself. What cannot be computed is `inconclusive`, with
    the reason as its note; a claim function that raises is reported the same way and stops nothing else.
    """
    try:
        sides, values = _values(claim, results)
    except (UserError, ValueError) as error:
        return ClaimResult("inconclusive", None, None, 0, str(error))
    n = len(values)
    if broken := [seed for seed, value in values.items() if not math.isfinite(value)]:
        return ClaimResult("inconclusive", None, None, n, f"not finite for {_seeds(broken)}")
    if n == 0:
        return ClaimResult("inconclusive", None, None, 0, "no seed has all the runs that this claim needs")
    listed = list(values.values())
    pooled = claim.kind == "ratio" and claim.interval == "bootstrap"
    estimate = statistics.ratio_of_means(*sides) if pooled else statistics.mean(listed)
    if n < 2:
        return ClaimResult(
            "inconclusive", estimate, None, n, "one seed gives no interval; at least 2 are needed"
        )
    try:
        if pooled:
            low, high = statistics.ratio_bootstrap_interval(*sides, claim.level)
        elif claim.interval == "bootstrap":
            low, high = statistics.bootstrap_interval(listed, claim.level)
        else:
            low, high = statistics.t_interval(listed, claim.level)
    except ValueError as error:
        return ClaimResult("inconclusive", estimate, None, n, str(error))
    condition = f"{claim.holds_if} {claim.unit}".strip()
    note = f"holds if {condition}; {_method(claim)}, {_seeds(values)}"
    if lacking := [seed for seed in results.plan.seeds if seed not in values]:
        note += f"; no value for {_seeds(lacking)}"
    if low == high:
        note += "; all seeds give the same value, so the interval is a point"
    return ClaimResult(judge_interval(low, high, claim.condition), estimate, (low, high), n, note)


def select(results: Results, selector: Selector, metric: str | None) -> dict[int, float]:
    """Mean over the cells of `selector`, for every seed that has all of them."""
    rows = _chosen(selector.row, results.rows)
    columns = _chosen(selector.column, results.columns)
    cells = [results.per_seed(row, column, selector.metric or metric) for row in rows for column in columns]
    common = set.intersection(*(set(cell) for cell in cells))
    return {seed: math.fsum(cell[seed] for cell in cells) / len(cells) for seed in sorted(common)}


def load_function(name: str) -> Callable[..., Any]:
    """`"projects.x.claims:fn"` -> the function; a UserError when it cannot be had."""
    module, _, attribute = name.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise UserError(f"cannot load the function {name!r} (expected module:name): {error}") from None


def _values(
    claim: Claim, results: Results
) -> tuple[tuple[dict[int, float], dict[int, float]], dict[int, float]]:
    """The two sides (empty for a function) and the value of each seed."""
    if claim.kind == "function":
        function = load_function(claim.function or "")
        try:
            found = function(results, **claim.arguments)
        except Exception as error:  # a project's code may raise anything; the other claims go on
            raise UserError(f"{claim.function} raised {type(error).__name__}: {error}") from error
        return ({}, {}), {int(seed): float(found[seed]) for seed in sorted(found)}
    left = select(results, claim.left, claim.metric)
    right = select(results, claim.right, claim.metric)
    broken = sorted(
        seed for seed in left.keys() & right.keys() if not math.isfinite(left[seed] + right[seed])
    )
    if broken:
        raise ValueError(f"not finite for {_seeds(broken)}")
    if not left.keys() & right.keys():
        return (left, right), {}
    paired = statistics.paired_differences if claim.kind == "difference" else statistics.paired_ratios
    return (left, right), paired(left, right)


def _chosen(wanted: str | list[str], known: list[str]) -> list[str]:
    return known if wanted == "*" else [wanted] if isinstance(wanted, str) else wanted


def _method(claim: Claim) -> str:
    level = f"{100 * claim.level:g} %"
    if claim.interval == "bootstrap":
        of = "ratio of means, whole seeds resampled" if claim.kind == "ratio" else "mean over seeds"
        return f"{level} percentile bootstrap interval ({of}, {statistics.RESAMPLES} resamples)"
    paired = {"difference": "paired t interval", "ratio": "t interval of the ratios of each seed"}
    return f"{level} {paired.get(claim.kind, 't interval')}"


def _seeds(seeds: Iterable[int]) -> str:
    listed = list(seeds)
    return f"seed{'s' if len(listed) > 1 else ''} {', '.join(map(str, listed))}"
