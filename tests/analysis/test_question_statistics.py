"""Statistics over questions, against scipy, enumeration and plain resampling."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from analysis.statistics import comparisons, intervals


@given(st.integers(0, 3000), st.integers(0, 3000))
def test_mcnemar_s_test_is_scipy_s_binomial_test(first, second) -> None:
    """Of the questions that one of two models alone answers right."""
    expected = stats.binomtest(first, first + second).pvalue if first + second else 1.0
    assert comparisons.sign_flips(np.repeat([1, -1], [first, second])) == pytest.approx(
        expected, rel=1e-12, abs=1e-12
    )


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(-5, 5), min_size=1, max_size=9))
def test_sign_flips_are_all_ways_to_exchange_the_models(sums) -> None:
    signs = itertools.product((-1, 1), repeat=len(sums))
    totals = [sum(a * b for a, b in zip(sums, each, strict=True)) for each in signs]
    expected = np.mean([abs(total) >= abs(sum(sums)) for total in totals])
    assert comparisons.sign_flips(np.array(sums)) == pytest.approx(expected, rel=1e-12)


def test_resampled_means_are_those_of_questions_drawn_with_replacement() -> None:
    """Of k right of n the bootstrap's mean is binomial: k/n, with variance k (n - k) / n^3."""
    right = np.array([1] * 30 + [0] * 70)
    task = np.array([2, 1, 0, -1] * 10)
    means = comparisons.resampled_means([right, task])
    assert means.shape == (9999, 2)
    assert (comparisons.resampled_means([right, task]) == means).all()
    np.testing.assert_allclose(means.mean(axis=0), (0.3, 0.5), atol=0.006)
    expected = np.sqrt([0.3 * 0.7 / 100, task.var() / 40])
    np.testing.assert_allclose(means.std(axis=0), expected, rtol=0.03)
    ends = stats.binom.ppf((0.025, 0.975), 100, 0.3) / 100
    np.testing.assert_allclose(intervals.percentile_interval(means[:, 0]), ends, atol=0.0101)
    # Tasks are drawn apart from one another.
    assert abs(np.corrcoef(means.T)[0, 1]) < 0.05


@pytest.mark.parametrize(
    ("draws", "p"),
    [([0.1] * 95 + [-0.1] * 4, 2 * 5 / 100), ([0.1] * 99, 2 / 100), ([0.0] * 99, 1.0)],
)
def test_bootstrap_p_by_hand(draws, p) -> None:
    assert comparisons.bootstrap_p(np.array(draws)) == pytest.approx(p)


def test_deviations_over_checkpoints_and_over_seeds_are_apart() -> None:
    """Seeds 1, 3 and 5, 7: each seed's own deviation is the root of 2, their means are 2 and 6."""
    assert intervals.deviations([[1, 3], [5, 7]]) == pytest.approx((2**0.5, 8**0.5))
    undefined = (intervals.deviations([[1, 3]])[1], intervals.deviations([[1], [5]])[0])
    assert np.isnan(undefined).all()
