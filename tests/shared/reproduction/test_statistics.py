import math

import numpy as np
import pytest
import scipy.stats

from shared.reproduction import statistics as st


@pytest.mark.parametrize("n", [2, 3, 5, 17])
@pytest.mark.parametrize("level", [0.8, 0.95, 0.99])
def test_t_interval_is_scipys(n, level):
    values = np.random.default_rng(n).normal(2.0, 3.0, n).tolist()
    expected = scipy.stats.ttest_1samp(values, 0.0).confidence_interval(level)
    assert st.t_interval(values, level) == pytest.approx((expected.low, expected.high), rel=1e-9)


def test_t_interval_of_differences_is_the_paired_test():
    rng = np.random.default_rng(3)
    left = dict(enumerate(rng.normal(80, 5, 5).tolist()))
    right = {seed: value + float(rng.normal(0.5, 0.2)) for seed, value in left.items()}
    expected = scipy.stats.ttest_rel(list(left.values()), list(right.values())).confidence_interval(0.95)
    differences = st.paired_differences(left, right)
    assert st.t_interval(list(differences.values())) == pytest.approx((expected.low, expected.high))


def test_t_interval_closed_form_for_two_values():
    # one degree of freedom is the Cauchy law, whose 97.5 % point is tan(0.475 pi); mean 1, s / sqrt(2) = 1
    half = math.tan(0.475 * math.pi)
    assert st.t_interval([0.0, 2.0]) == pytest.approx((1 - half, 1 + half))


def test_no_spread_gives_a_point():
    assert st.t_interval([1.5] * 4) == (1.5, 1.5)
    assert st.bootstrap_interval([1.5] * 5) == (1.5, 1.5)


def test_mean_and_std_are_numpys():
    values = [1.0, 4.0, 9.0, -2.0]
    assert st.mean(values) == pytest.approx(np.mean(values))
    assert st.std(values) == pytest.approx(np.std(values, ddof=1))
    assert st.std([3.0]) is None


def _covered(interval, n, trials, rng):
    hits = 0
    for _ in range(trials):
        low, high = interval(rng.normal(1.0, 2.0, n).tolist())
        hits += low <= 1.0 <= high
    return hits / trials


def test_t_interval_covers_as_often_as_it_says():
    trials = 3000  # binomial standard error 0.4 %
    assert _covered(st.t_interval, 5, trials, np.random.default_rng(0)) == pytest.approx(0.95, abs=0.015)


def test_bootstrap_coverage_is_what_the_docstring_says():
    def bootstrap(values):
        return st.bootstrap_interval(values, resamples=400)

    assert _covered(bootstrap, 5, 1000, np.random.default_rng(1)) == pytest.approx(0.83, abs=0.04)
    assert _covered(bootstrap, 40, 1000, np.random.default_rng(2)) == pytest.approx(0.94, abs=0.03)


def test_bootstrap_agrees_with_scipy_and_repeats():
    values = np.random.default_rng(5).exponential(1.0, 12).tolist()
    ours = st.bootstrap_interval(values)
    theirs = scipy.stats.bootstrap(
        (values,), np.mean, n_resamples=20_000, method="percentile", rng=np.random.default_rng(9)
    ).confidence_interval
    assert ours == pytest.approx((theirs.low, theirs.high), abs=0.03)
    assert st.bootstrap_interval(values) == ours
    assert st.bootstrap_interval(values, seed=1) != ours


def test_bootstrap_refuses_few_seeds():
    with pytest.raises(ValueError, match="needs 5 seeds, found 4"):
        st.bootstrap_interval([1.0, 2.0, 3.0, 4.0])


def test_pairs_use_common_seeds_only():
    assert st.paired_differences({0: 3.0, 1: 5.0, 2: 9.0}, {1: 1.0, 2: 2.0, 7: 0.0}) == {1: 4.0, 2: 7.0}
    assert st.paired_ratios({0: 3.0, 1: 5.0}, {1: 2.0, 3: 1.0}) == {1: 2.5}


def test_ratio_of_means_and_its_interval():
    left = {0: 2.0, 1: 4.0, 2: 6.0, 3: 8.0, 4: 10.0}
    right = {
        seed: value / 2 for seed, value in left.items()
    }  # the ratio is 2 in every resample of whole seeds
    assert st.ratio_of_means(left, right) == 2.0
    assert st.ratio_bootstrap_interval(left, right) == pytest.approx((2.0, 2.0))
    noisy = {0: 1.1, 1: 1.8, 2: 3.3, 3: 3.9, 4: 5.2}
    low, high = st.ratio_bootstrap_interval(left, noisy)
    assert low < st.ratio_of_means(left, noisy) < high


@pytest.mark.parametrize("right", [{0: 1.0, 1: 0.0}, {0: 1.0, 1: -1.0}])
def test_ratio_with_a_denominator_that_means_nothing_is_refused(right):
    for function in (st.paired_ratios, st.ratio_of_means, st.ratio_bootstrap_interval):
        with pytest.raises(ValueError, match="zero or changes its sign"):
            function({0: 1.0, 1: 1.0}, right)


def test_bad_values_are_refused():
    with pytest.raises(ValueError, match="not finite"):
        st.t_interval([1.0, math.nan])
    with pytest.raises(ValueError, match="2 or more values"):
        st.t_interval([1.0])
    with pytest.raises(ValueError, match="between 0 and 1"):
        st.t_interval([1.0, 2.0], level=95)
