"""Statistics over seeds, against hand-worked values and against scipy."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from statsmodels.stats.multitest import multipletests

from analysis.statistics import comparisons, intervals


def test_a_summary_by_hand() -> None:
    """0.1, 0.2, 0.6: mean 0.3, median 0.2, squared deviations 0.04 + 0.01 + 0.09 = 0.14."""
    summary = intervals.summarise([0.1, 0.2, 0.6])
    assert summary.n == 3
    assert summary.median == pytest.approx(0.2)
    assert summary.mean == pytest.approx(0.3)
    assert summary.sd == pytest.approx(math.sqrt(0.14 / 2))
    half_width = 4.302653 * math.sqrt(0.14 / 2) / math.sqrt(3)
    assert summary.method == "t"
    assert summary.low == pytest.approx(0.3 - half_width, rel=1e-5)
    assert summary.high == pytest.approx(0.3 + half_width, rel=1e-5)
    assert summary.bca_method == "none"
    assert math.isnan(summary.bca_low + summary.bca_high)


@settings(deadline=None)
@given(st.lists(st.floats(-1, 1), min_size=2, max_size=10).filter(lambda x: np.ptp(x) > 1e-6))
def test_the_interval_is_scipys_t(values) -> None:
    expected = stats.ttest_1samp(values, 0.0).confidence_interval(0.95)
    low, high, method = intervals.interval(np.array(values))
    assert method == "t"
    assert (low, high) == pytest.approx((expected.low, expected.high), rel=1e-9, abs=1e-12)


def test_the_bootstrap_is_scipys_bca() -> None:
    values = np.array([0.21, 0.22, 0.25, 0.24, 0.30])
    expected = stats.bootstrap(
        (values,), np.mean, n_resamples=9999, method="BCa", rng=np.random.default_rng(0)
    ).confidence_interval
    low, high, method = intervals.bootstrap_interval(values)
    assert (low, high) == pytest.approx((expected.low, expected.high), abs=1e-12)
    assert method == "BCa"


def test_a_summary_has_a_bootstrap_interval_from_ten_seeds_on() -> None:
    values = np.arange(10.0)
    summary = intervals.summarise(values)
    assert (summary.bca_low, summary.bca_high, "BCa") == intervals.bootstrap_interval(values)
    assert intervals.summarise(values[:9]).bca_method == "none"


def test_a_table_is_the_same_each_time() -> None:
    assert intervals.summarise([0.1, 0.2, 0.4]) == intervals.summarise([0.1, 0.2, 0.4])


def test_equal_values_have_themselves_as_interval() -> None:
    summary = intervals.summarise([0.1, 0.1, 1 - 0.9])
    assert (summary.low, summary.high, summary.method) == (0.1, 0.1, "equal")
    assert intervals.bootstrap_interval(np.array([0.1, 0.1, 1 - 0.9])) == (0.1, 0.1, "equal")
    assert summary.sd == 0.0


def test_one_value_has_no_interval() -> None:
    summary = intervals.summarise([0.25])
    assert (summary.n, summary.median, summary.mean, summary.method) == (1, 0.25, 0.25, "none")
    assert summary.bca_method == "none"
    for undefined in ("low", "high", "bca_low", "bca_high", "sd"):
        assert math.isnan(getattr(summary, undefined))


@pytest.mark.parametrize("values", [[], [0.1, math.nan]])
def test_no_summary_of_nothing_or_of_nan(values) -> None:
    with pytest.raises(ValueError, match="finite numbers, one per seed"):
        intervals.summarise(values)


@settings(deadline=None)
@given(st.lists(st.floats(0, 1), min_size=2, max_size=10))
def test_a_bootstrap_interval_holds_finite_numbers_within_the_values(values) -> None:
    low, high, _ = intervals.bootstrap_interval(np.array(values))
    assert min(values) - 1e-9 <= low <= high <= max(values) + 1e-9


def test_an_interval_moves_with_its_values() -> None:
    """0.08 + 0.10 + 0.12 depends on the order in its last bit, 7 + 9 + 11 does not."""
    low, high, method = intervals.bootstrap_interval(np.array([7.0, 9.0, 11.0]))
    for shift in range(4):
        values = np.array([7, 9, 11]) / 100 + shift / 100
        moved = intervals.bootstrap_interval(values)
        assert moved == (
            pytest.approx((low + shift) / 100),
            pytest.approx((high + shift) / 100),
            method,
        )


def test_holm_by_hand() -> None:
    """Sorted 0.01, 0.03, 0.04: times 3, 2, 1 is 0.03, 0.06, 0.04; the last may not fall below."""
    assert comparisons.holm([0.04, 0.01, 0.03]) == pytest.approx([0.06, 0.03, 0.06])


def test_holm_stops_at_one_and_passes_over_nan() -> None:
    corrected = comparisons.holm([0.9, math.nan, 0.8])
    assert corrected[0] == 1.0
    assert math.isnan(corrected[1])
    assert corrected[2] == 1.0
    assert comparisons.holm([]).size == 0


@settings(deadline=None, max_examples=30)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=112))
def test_holm_is_statsmodels_and_lies_between_the_p_value_and_bonferroni_and_keeps_the_order(
    p_values,
) -> None:
    corrected = comparisons.holm(p_values)
    for p, q in zip(p_values, corrected, strict=True):
        assert p <= q <= min(1.0, p * len(p_values))
    expected = multipletests(p_values, method="holm")[1]
    assert corrected == pytest.approx(expected, abs=1e-15)
    order = np.argsort(p_values, kind="stable")
    assert (np.diff(np.array(corrected)[order]) >= 0).all()


def test_holm_corrects_each_row_of_many() -> None:
    rows = np.array([[0.04, 0.01, 0.03], [math.nan, 0.02, 0.5]])
    each = [comparisons.holm(row) for row in rows]
    assert np.array_equal(comparisons.holm(rows), np.stack(each), equal_nan=True)


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
    assert comparisons.verdict(difference, p, lower_is_better) == expected
