import math

import pytest

from shared.reproduction.published import Published
from shared.reproduction.recipe import Claim, Selector
from shared.reproduction.synthetic import synthetic_results
from shared.reproduction.verdicts import cell_verdict, judge_claim, judge_interval


def published(value, std=None):
    return Published(value, std, None, "the paper's table")


@pytest.mark.parametrize(
    ("mean", "std", "tolerance", "expected"),
    [
        (70.9, 0.5, None, "match"),  # within two published standard deviations
        (71.0, 0.5, None, "match"),  # the edge belongs to it
        (71.1, 0.5, None, "close"),
        (68.1, 0.5, None, "close"),
        (67.9, 0.5, None, "off"),
        (71.5, 0.5, 2.0, "match"),  # a wider declared tolerance wins
        (70.9, 0.5, 0.1, "match"),  # a narrower one does not
        (71.5, None, 1.0, "close"),
        (70.0, None, None, "not judged"),  # even when equal: nothing says how near is near
        (70.0, 0.0, None, "not judged"),
        (None, 0.5, None, "off"),  # diverged
    ],
)
def test_cell_verdicts(mean, std, tolerance, expected):
    assert cell_verdict("paper", mean, 3, published(70.0, std), tolerance) == expected


def test_rounding_does_not_decide_a_cell():
    assert 1.1 - 1.0 > 0.1
    assert cell_verdict("paper", 1.1, 3, published(1.0), 0.1) == "match"


@pytest.mark.parametrize("figure", [None, published(None), published(None, 0.5)])
@pytest.mark.parametrize("mean", [None, 70.0])
def test_what_is_not_published_never_matches(figure, mean):
    assert cell_verdict("paper", mean, 0 if mean is None else 3, figure, 100.0) == "not available"


def test_cells_are_judged_at_the_paper_profile_only():
    assert cell_verdict("laptop", 70.0, 3, published(70.0, 0.5), 1.0) is None
    assert cell_verdict("paper", None, 0, published(70.0, 0.5), 1.0) == "not run"


@pytest.mark.parametrize(
    ("low", "high", "condition", "expected"),
    [
        (0.1, 0.2, (">", 0.0), "holds"),
        (-0.2, -0.1, (">", 0.0), "fails"),
        (-0.1, 0.1, (">", 0.0), "inconclusive"),
        (0.0, 0.1, (">", 0.0), "inconclusive"),
        (0.0, 0.1, (">=", 0.0), "holds"),
        (-0.2, 0.0, (">", 0.0), "fails"),
        (1e-17, 1e-17, (">", 0.0), "fails"),  # zero but for rounding
        (-1e-17, 0.2, (">=", 0.0), "holds"),
        (0.5, 0.9, ("<", 1.0), "holds"),
        (1.1, 1.9, ("<", 1.0), "fails"),
        (1.0, 1.0, ("<=", 1.0), "holds"),
    ],
)
def test_judge_interval(low, high, condition, expected):
    assert judge_interval(low, high, condition) == expected


VALUES = {
    ("base", "x"): {0: 1.0, 1: 2.0, 2: 3.0, 3: 4.0, 4: 5.0},
    ("base", "y"): {0: 2.0, 1: 3.0, 2: 4.0, 3: 5.0, 4: 6.0},
    ("ours", "x"): {0: 1.9, 1: 3.0, 2: 4.1, 3: 5.0, 4: 6.0},
    ("ours", "y"): {0: 3.1, 1: 4.0, 2: 5.0, 3: 6.0, 4: 6.9},
}


def claim(kind="difference", left="ours", right="base", holds_if="> 0", column="*", **more):
    sides = {} if kind == "function" else {"left": Selector(left, column), "right": Selector(right, column)}
    return Claim(id="c", says="ours is better", source="here", kind=kind, holds_if=holds_if, **sides, **more)


def test_difference_of_means_over_cells(tmp_path):
    found = judge_claim(claim(unit="points"), synthetic_results(tmp_path, VALUES))
    assert found.verdict == "holds"
    assert found.n == 5
    assert found.estimate == pytest.approx(1.0)  # per seed: 1.0, 1.0, 1.05, 1.0, 0.95
    # s = sqrt(0.00125) and t(4, 0.975) = 2.776
    half = 2.7764451 * math.sqrt(0.00125 / 5)
    assert found.interval == pytest.approx((1 - half, 1 + half))
    assert "holds if > 0 points" in found.note
    assert "95 % paired t interval, seeds 0, 1, 2, 3, 4" in found.note


def test_the_opposite_claim_fails_and_a_near_one_is_open(tmp_path):
    results = synthetic_results(tmp_path, VALUES)
    assert judge_claim(claim(left="base", right="ours"), results).verdict == "fails"
    assert judge_claim(claim(holds_if="> 1"), results).verdict == "inconclusive"


def test_ratio_by_seed_and_of_means(tmp_path):
    results = synthetic_results(tmp_path, VALUES)
    by_seed = judge_claim(claim("ratio", column="x", holds_if="> 1"), results)
    assert by_seed.estimate == pytest.approx((1.9 + 1.5 + 4.1 / 3 + 1.25 + 1.2) / 5)
    pooled = judge_claim(claim("ratio", column="x", holds_if="> 1", interval="bootstrap"), results)
    assert pooled.estimate == pytest.approx(20 / 15)
    assert pooled.verdict == "holds"
    assert "ratio of means" in pooled.note


def test_ratio_with_a_sign_change_says_so(tmp_path):
    values = {("base", "x"): {0: 1.0, 1: -1.0}, ("ours", "x"): {0: 1.0, 1: 1.0}}
    found = judge_claim(claim("ratio"), synthetic_results(tmp_path, values))
    assert (found.verdict, found.estimate) == ("inconclusive", None)
    assert "changes its sign" in found.note


def test_one_seed_is_inconclusive(tmp_path):
    values = {("base", "x"): {0: 1.0}, ("ours", "x"): {0: 9.0}}
    found = judge_claim(claim(), synthetic_results(tmp_path, values))
    assert (found.verdict, found.estimate, found.interval, found.n) == ("inconclusive", 8.0, None, 1)


def test_no_spread_is_judged_and_said(tmp_path):
    values = {("base", "x"): {0: 1.0, 1: 1.0}, ("ours", "x"): {0: 1.5, 1: 1.5}}
    found = judge_claim(claim(), synthetic_results(tmp_path, values))
    assert (found.verdict, found.interval) == ("holds", (0.5, 0.5))
    assert "the interval is a point" in found.note


def test_missing_runs_leave_common_seeds(tmp_path):
    values = {**VALUES, ("ours", "x"): {1: 3.0, 2: 4.1, 3: 5.0}}
    found = judge_claim(claim(), synthetic_results(tmp_path, values))
    assert found.n == 3
    assert "no value for seeds 0, 4" in found.note
    none = judge_claim(claim(), synthetic_results(tmp_path / "b", {**VALUES, ("ours", "x"): {}}))
    assert (none.verdict, none.n) == ("inconclusive", 0)
    assert "no seed has all the runs" in none.note


def test_diverged_runs_are_named_not_dropped(tmp_path):
    values = {**VALUES, ("ours", "x"): {**VALUES["ours", "x"], 3: math.nan}}
    found = judge_claim(claim(), synthetic_results(tmp_path, values))
    assert (found.verdict, found.estimate, found.note) == ("inconclusive", None, "not finite for seed 3")


def test_bootstrap_with_few_seeds_is_inconclusive_with_an_estimate(tmp_path):
    values = {("base", "x"): {0: 1.0, 1: 2.0}, ("ours", "x"): {0: 2.0, 1: 3.5}}
    found = judge_claim(claim(interval="bootstrap"), synthetic_results(tmp_path, values))
    assert (found.verdict, found.estimate, found.interval) == ("inconclusive", 1.25, None)
    assert "needs 5 seeds" in found.note


def test_unknown_metric_is_a_reason_with_the_nearest_name(tmp_path):
    found = judge_claim(claim(metric="scorre"), synthetic_results(tmp_path, VALUES))
    assert found.verdict == "inconclusive"
    assert "Did you mean 'score'?" in found.note


def best_gain(results, row):
    return {
        seed: value - results.per_seed("base", "y")[seed]
        for seed, value in results.per_seed(row, "y").items()
    }


def broken(results):
    raise ZeroDivisionError("nothing to divide")


def test_function_claims(tmp_path):
    results = synthetic_results(tmp_path, VALUES)
    name = f"{__name__}:best_gain"
    found = judge_claim(claim("function", function=name, arguments={"row": "ours"}), results)
    assert (found.verdict, found.n) == ("holds", 5)
    assert found.estimate == pytest.approx(1.0)
    raised = judge_claim(claim("function", function=f"{__name__}:broken"), results)
    assert raised.verdict == "inconclusive"
    assert "ZeroDivisionError: nothing to divide" in raised.note
    absent = judge_claim(claim("function", function="projects.absent:fn"), results)
    assert "cannot load the function 'projects.absent:fn'" in absent.note
