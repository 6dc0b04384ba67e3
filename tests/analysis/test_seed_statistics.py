"""Statistics over seeds, against hand-worked values and against scipy."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from analysis import statistics


def test_a_summary_by_hand() -> None:
    """0.1, 0.2, 0.6: mean 0.3, median 0.2, squared deviations 0.04 + 0.01 + 0.09 = 0.14."""
    summary = statistics.summarise([0.1, 0.2, 0.6])
    assert summary.n == 3
    assert summary.median == pytest.approx(0.2)
    assert summary.mean == pytest.approx(0.3)
    assert summary.sd == pytest.approx(math.sqrt(0.14 / 2))
    assert summary.method == "BCa"
    assert 0.1 <= summary.low < summary.mean < summary.high <= 0.6


def test_the_interval_is_scipys_bca() -> None:
    values = np.array([0.21, 0.22, 0.25, 0.24, 0.30])
    expected = stats.bootstrap(
        (values,), np.mean, n_resamples=9999, method="BCa", rng=np.random.default_rng(0)
    ).confidence_interval
    summary = statistics.summarise(values)
    assert (summary.low, summary.high) == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_a_table_is_the_same_each_time() -> None:
    assert statistics.summarise([0.1, 0.2, 0.4]) == statistics.summarise([0.1, 0.2, 0.4])


def test_equal_values_have_themselves_as_interval() -> None:
    summary = statistics.summarise([0.1, 0.1, 1 - 0.9])
    assert (summary.low, summary.high, summary.method) == (0.1, 0.1, "equal")
    assert summary.sd == 0.0


def test_one_value_has_no_interval() -> None:
    summary = statistics.summarise([0.25])
    assert (summary.n, summary.median, summary.mean, summary.method) == (1, 0.25, 0.25, "none")
    assert math.isnan(summary.low)
    assert math.isnan(summary.high)
    assert math.isnan(summary.sd)


@pytest.mark.parametrize("values", [[], [0.1, math.nan]])
def test_no_summary_of_nothing_or_of_nan(values) -> None:
    with pytest.raises(ValueError, match="finite numbers, one per seed"):
        statistics.summarise(values)


@settings(deadline=None)
@given(st.lists(st.floats(0, 1), min_size=2, max_size=10))
def test_an_interval_holds_finite_numbers_within_the_values(values) -> None:
    low, high, _ = statistics.interval(np.array(values))
    assert min(values) - 1e-9 <= low <= high <= max(values) + 1e-9


def test_a_paired_t_test_by_hand() -> None:
    """Differences -0.1, -0.2, -0.3: mean -0.2, sd 0.1, t = -0.2 / (0.1 / sqrt 3) = -3.4641, two
    degrees of freedom: p = 1 - |t| / sqrt(2 + t^2) = 1 - 3.4641 / 3.7417 = 0.0742."""
    comparison = statistics.paired({0: 0.2, 1: 0.3, 2: 0.4}, {0: 0.3, 1: 0.5, 2: 0.7})
    assert (comparison.pairs, comparison.test) == (3, "t")
    assert comparison.difference == pytest.approx(-0.2)
    assert comparison.p == pytest.approx(0.0742, abs=5e-5)
    half_width = 4.302653 * 0.1 / math.sqrt(3)
    assert comparison.low == pytest.approx(-0.2 - half_width, rel=1e-5)
    assert comparison.high == pytest.approx(-0.2 + half_width, rel=1e-5)


def test_the_p_value_is_scipys_paired_t_test() -> None:
    first = {0: 0.20, 1: 0.24, 2: 0.22, 3: 0.25, 4: 0.21}
    second = {0: 0.22, 1: 0.25, 2: 0.21, 3: 0.28, 4: 0.25}
    expected = stats.ttest_rel(list(first.values()), list(second.values()))
    assert statistics.paired(first, second).p == pytest.approx(expected.pvalue)


def test_only_shared_seeds_are_paired() -> None:
    comparison = statistics.paired({0: 0.1, 2: 0.4, 9: 0.9}, {2: 0.1, 0: 0.2, 5: 0.7})
    assert comparison.pairs == 2
    assert comparison.difference == pytest.approx((-0.1 + 0.3) / 2)


@pytest.mark.parametrize("shared", [0, 1])
def test_fewer_than_two_pairs_have_no_p_value(shared) -> None:
    comparison = statistics.paired({0: 0.1}, {0: 0.2} if shared else {1: 0.2})
    assert (comparison.pairs, comparison.test, comparison.verdict) == (
        shared,
        "none",
        "cannot tell",
    )
    assert math.isnan(comparison.p)
    assert math.isnan(comparison.difference) == (shared == 0)


def test_an_interval_moves_with_its_values() -> None:
    """0.08 + 0.10 + 0.12 depends on the order in its last bit, 7 + 9 + 11 does not."""
    low, high, method = statistics.interval(np.array([7.0, 9.0, 11.0]))
    for shift in range(4):
        values = np.array([7, 9, 11]) / 100 + shift / 100
        moved = statistics.interval(values)
        assert moved == (
            pytest.approx((low + shift) / 100),
            pytest.approx((high + shift) / 100),
            method,
        )


def test_equal_differences_take_the_exact_sign_flip_p_value() -> None:
    """All three differences are -0.1: of the 8 sign patterns 2 are as extreme, p = 0.25."""
    comparison = statistics.paired({0: 0.2, 1: 0.3, 2: 0.4}, {0: 0.3, 1: 0.4, 2: 0.5})
    assert (comparison.test, comparison.p) == ("sign", 0.25)


def test_no_difference_at_all() -> None:
    values = {0: 0.2, 1: 0.3}
    assert statistics.paired(values, values).p == 1.0


def test_holm_by_hand() -> None:
    """Sorted 0.01, 0.03, 0.04: times 3, 2, 1 is 0.03, 0.06, 0.04; the last may not fall below."""
    assert statistics.holm([0.04, 0.01, 0.03]) == pytest.approx([0.06, 0.03, 0.06])


def test_holm_stops_at_one_and_passes_over_nan() -> None:
    corrected = statistics.holm([0.9, math.nan, 0.8])
    assert corrected[0] == 1.0
    assert math.isnan(corrected[1])
    assert corrected[2] == 1.0
    assert statistics.holm([]) == []


@settings(deadline=None)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=10))
def test_holm_lies_between_the_p_value_and_bonferroni_and_keeps_the_order(p_values) -> None:
    corrected = statistics.holm(p_values)
    for p, q in zip(p_values, corrected, strict=True):
        assert p <= q <= min(1.0, p * len(p_values))
    order = np.argsort(p_values, kind="stable")
    assert (np.diff(np.array(corrected)[order]) >= 0).all()


@pytest.mark.parametrize(
    ("difference", "p", "lower_is_better", "expected"),
    [
        (-0.1, 0.049, True, "better"),
        (0.1, 0.049, True, "worse"),
        (-0.1, 0.049, False, "worse"),
        (0.1, 0.049, False, "better"),
        (-0.1, 0.05, True, "cannot tell"),
        (-0.1, math.nan, True, "cannot tell"),
    ],
)
def test_verdicts(difference, p, lower_is_better, expected) -> None:
    assert statistics.verdict(difference, p, lower_is_better) == expected
