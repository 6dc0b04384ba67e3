"""Statistics over seeds and questions, by hand, scipy, enumeration and resampling; paired tests and
intervals of means are held against scipy in test_error_table.py."""

import functools
import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from analysis.statistics import comparisons, intervals, looks, questions

VALUES = st.lists(st.floats(0, 1), min_size=2, max_size=5)
APART = VALUES.filter(lambda values: np.ptp(values) > 1e-3)


def by_seed(values) -> dict[int, float]:
    return dict(enumerate(values))


def test_only_shared_seeds_are_paired() -> None:
    comparison = comparisons.paired({0: 0.1, 2: 0.4, 9: 0.9}, {2: 0.1, 0: 0.2, 5: 0.7})
    assert (comparison.pairs, comparison.difference) == (2, pytest.approx((-0.1 + 0.3) / 2))


def test_many_seeds_take_seeded_random_permutations() -> None:
    rng = np.random.default_rng(0)
    first, second = rng.normal(size=10), rng.normal(size=10) + 5
    assert comparisons.smallest_p(7, 7) == pytest.approx(2 / 3432)
    assert comparisons.smallest_p(10, 10) == pytest.approx(0.0002)
    assert comparisons.permutation_p(first, second) == pytest.approx(0.0002)


@pytest.mark.parametrize(("family", "seeds"), [(7, 6), (1, 4), (500, math.inf)])
def test_seeds_that_a_p_value_needs(family, seeds) -> None:
    """2 / 252 = 0.0079 is above 0.05 / 7 = 0.0071, 2 / 924 is below."""
    assert comparisons.enough_seeds("permutation", (), family=family) == seeds


@settings(deadline=None)
@given(APART, APART)
def test_the_interval_of_unpaired_seeds_is_welchs(first, second) -> None:
    interval = comparisons.welch_interval(np.array(first), np.array(second))
    expected = stats.ttest_ind(first, second, equal_var=False).confidence_interval()
    assert interval == pytest.approx((expected.low, expected.high), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize(("other", "p"), [(0.2, 0.1), (0.1, 1.0)])
def test_groups_without_spread_have_their_difference_as_interval(other, p) -> None:
    """3 against 3: the least p is 2 / 20; 0.1 and 1 - 0.9 are one value."""
    found = comparisons.unpaired(by_seed([0.1, 1 - 0.9, 0.1]), by_seed([other] * 3))
    assert found.p == pytest.approx(p)
    assert (found.low, found.high) == (found.difference, found.difference)
    assert found.sd == 0.0
    assert math.isnan(found.effect)


@pytest.mark.parametrize(
    ("seeds", "others", "shares", "test"),
    [
        ((0, 1), (0, 1), True, "t"),
        ((0, 1), (0, 1), False, "permutation"),
        ((0, 1, 2), (2, 3, 4), True, "permutation"),
        (range(12), range(10, 22), True, "permutation"),  # 2 of 12
        (range(6), range(3, 9), True, "permutation"),  # half
        (range(5), range(2, 7), True, "t"),  # 3 of 5
        (range(2), range(12), True, "t"),  # all of the smaller side
        ((0, 1), (0,), True, "none"),
        ((0, 1), (0,), False, "none"),
        ((0,), (), True, "none"),
    ],
)
def test_which_test_runs(seeds, others, shares, test) -> None:
    values = {seed: 0.3 + 0.1 * seed**2 for seed in seeds}
    baseline = {seed: 0.2 + 0.01 * seed for seed in others}
    found = comparisons.compare(values, baseline, shares)
    assert found.test == test
    assert math.isnan(found.p) == (test == "none")
    assert (found.n, found.n_baseline) == (len(seeds), len(others))
    compared = set(seeds) & set(others) if found.is_paired else set(others)
    mean = sum(baseline[seed] for seed in compared) / len(compared) if compared else math.nan
    assert found.baseline == pytest.approx(mean, nan_ok=True)


@pytest.mark.parametrize(
    ("degrees", "expected", "apart"),
    [
        (1, math.nan, 0.0),  # it does not exist
        (2, 1 / math.sqrt(math.pi), 1e-9),  # Gamma(1) / Gamma(1/2)
        (3, math.sqrt(math.pi / 6), 1e-9),  # sqrt(pi) / 2 / sqrt(3/2)
        (50, 1 - 3 / 199, 1e-4),  # Hedges' approximation 1 - 3 / (4 v - 1)
    ],
)
def test_the_correction_for_few_seeds_by_hand(degrees, expected, apart) -> None:
    assert comparisons.correction(degrees) == pytest.approx(expected, abs=apart, nan_ok=True)


def test_effect_sizes_by_hand() -> None:
    """Paired: -0.2 / 0.1, two degrees of freedom. Not paired: -0.3 / sqrt((0.02 + 0.08) / 4)."""
    paired = comparisons.paired(by_seed([0.2, 0.3, 0.4]), by_seed([0.3, 0.5, 0.7]))
    assert paired.effect == pytest.approx(-2 / math.sqrt(math.pi))
    unpaired = comparisons.unpaired(by_seed([0.1, 0.2, 0.3]), by_seed([0.3, 0.5, 0.7]))
    expected = -0.3 / math.sqrt(0.025) * comparisons.correction(4)
    assert unpaired.effect == pytest.approx(expected)


def test_the_permutation_test_is_studentised() -> None:
    """All C(9, 3) = 84 deals, by Welch's t: of the bare differences of means p would be another."""
    values = np.array([1, 2, 4, 5, 9, 0, 8, 20, 13], dtype=float)
    deals = [list(deal) for deal in itertools.combinations(range(9), 3)]
    found = [stats.ttest_ind(values[d], np.delete(values, d), equal_var=False) for d in deals]
    t = np.array([each.statistic for each in found])
    bare = np.array([values[d].mean() - np.delete(values, d).mean() for d in deals])
    expected, other = (
        2 * min((each <= each[0] + 1e-9).mean(), (each >= each[0] - 1e-9).mean())
        for each in (t, bare)
    )
    assert comparisons.permutation_p(values[:3], values[3:]) == pytest.approx(expected)
    assert abs(expected - other) > 0.01


@pytest.mark.parametrize("shares", [True, False])
def test_equality_by_two_one_sided_tests_of_scipy(shares) -> None:
    """A margin of 0.05, which is 2.5 % of the baseline's mean."""
    values, base = np.array([1.98, 1.96, 1.99, 2.00, 1.97]), np.array([2.0, 1.97, 2.02, 1.99, 2.02])
    found = comparisons.compare(by_seed(values), by_seed(base), shares)
    test = stats.ttest_rel if shares else functools.partial(stats.ttest_ind, equal_var=False)
    sides = (("less", 0.05), ("greater", -0.05))
    p = max(test(values, base + end, alternative=side).pvalue for side, end in sides)
    for margin in ("0.05", "2.5%"):
        assert comparisons.equality_p(found, margin) == pytest.approx(p)


@pytest.mark.parametrize(("shares", "least"), [(True, 2**-6), (False, 1 / math.comb(12, 6))])
def test_equality_without_spread_is_an_exact_test(shares, least) -> None:
    values, base = (dict.fromkeys(range(6), value) for value in (0.3, 0.2))
    found = comparisons.compare(values, base, shares)
    assert [comparisons.equality_p(found, margin) for margin in ("0.11", "0.09")] == [least, 1]


def test_thresholds_of_looks_are_those_of_another_simulation() -> None:
    """Of 40,000 draws; the first one is exact. For 1,000 seeds nothing is left before the last."""
    first, *later = looks.thresholds((4, 6, 8, 10, 12), 0.05).values()
    assert first == pytest.approx(2 * stats.norm.sf(stats.norm.isf(0.025) * math.sqrt(3)))
    assert later == pytest.approx([0.0052, 0.0135, 0.0231, 0.0338], rel=0.04)
    assert looks.thresholds((2, 1000), 0.01) == {2: 1e-12, 1000: pytest.approx(0.01, rel=0.05)}


def test_the_larger_p_of_the_two_tests_counts() -> None:
    """Of 220 deals 2 are as extreme; Welch's t hardly sees a difference of seeds so far apart."""
    first, second = [0.4, 2.9, 5.6], np.linspace(-0.2, 0.2, 9)
    found = comparisons.unpaired(by_seed(first), by_seed(second))
    assert float(comparisons.permutation_p(np.array(first), second)) == pytest.approx(2 / 220)
    assert found.p == pytest.approx(stats.ttest_ind(first, second, equal_var=False).pvalue)
    assert found.p > 0.05


def test_numbers_of_single_precision_that_are_equal_but_for_rounding() -> None:
    """One image of 400 more in each seed: of 8 sign patterns 2 are as extreme, p is 0.25."""
    single = [float(np.float32(value)) for value in (0.9725, 0.965, 0.98, 0.975, 0.9675, 0.9825)]
    values, baseline = (by_seed([1 - each for each in part]) for part in (single[3:], single[:3]))
    paired = comparisons.paired(values, baseline)
    assert (paired.test, paired.p, paired.sd) == ("sign", 0.25, 0.0)
    assert math.isnan(paired.effect)
    nearly = {seed: value + 3e-8 * seed for seed, value in values.items()}
    assert comparisons.paired(nearly, values).p == 1.0


def test_rounding_makes_no_deal_more_extreme_than_another() -> None:
    rng = np.random.default_rng(0)
    first, second = np.array([0.0, 1, 1, 1]), np.array([1.0, 1, 2, 2])
    exact = comparisons.permutation_p(first, second)
    noise = [1e-8 * rng.normal(size=4) for _ in range(2)]
    assert comparisons.permutation_p(first + noise[0], second + noise[1]) == pytest.approx(exact)
    equal = np.full(4, 0.3)
    assert comparisons.permutation_p(equal + noise[0], equal + noise[1]) == 1.0


@pytest.mark.parametrize(
    ("values", "ends", "sd", "method"),
    [
        ([0.1, 0.1, 1 - 0.9], (0.1, 0.1), 0.0, "equal"),
        ([0.25], (math.nan, math.nan), math.nan, "none"),
    ],
)
def test_equal_values_are_their_interval_and_one_value_has_none(values, ends, sd, method) -> None:
    summary = intervals.summarise(values)
    assert (summary.n, summary.median, summary.method) == (len(values), values[0], method)
    np.testing.assert_equal((summary.mean, summary.low, summary.high), (values[0], *ends))
    np.testing.assert_equal(summary.sd, sd)


@pytest.mark.parametrize(
    ("p", "corrected"),
    [
        # Sorted 0.01, 0.03, 0.04: times 3, 2, 1 is 0.03, 0.06, 0.04; the last may not fall below.
        ([0.04, 0.01, 0.03], [0.06, 0.03, 0.06]),
        ([0.01, 0.0125, 0.2, 0.02], [0.04, 0.04, 0.2, 0.04]),
        ([0.9, math.nan, 0.8], [1.0, math.nan, 1.0]),
        ([], []),
    ],
)
def test_holm_by_hand(p, corrected) -> None:
    assert comparisons.holm(p).tolist() == pytest.approx(corrected, nan_ok=True)


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


def test_wilson_s_interval_by_hand() -> None:
    """0 of 20: upper bound z² / (n + z²)."""
    z = stats.norm.ppf(0.975)
    found = comparisons.rate(0, 20)
    assert found.low == 0
    assert found.high == pytest.approx(z**2 / (20 + z**2))
    assert math.isclose(comparisons.rate(10, 20).low, 1 - comparisons.rate(10, 20).high)


def test_holm_over_the_variants() -> None:
    base, more, same = comparisons.rate(0, 20), comparisons.rate(9, 20), comparisons.rate(1, 20)
    _, *found = comparisons.compare_rates(
        {"0": base, "1": more, "2": same, "3": more}, "0"
    ).values()
    p = stats.fisher_exact([[9, 11], [0, 20]]).pvalue
    assert [each.p_holm for each in found] == pytest.approx([3 * p, 1.0, 3 * p])
    assert [each.verdict for each in found] == ["more often", "cannot tell", "more often"]
    assert comparisons.compare_rates({"0": base, "1": more}, "1")["0"].verdict == "less often"
    assert math.isnan(comparisons.compare_rates({"1": more}, "0")["1"].p)


@given(st.integers(0, 3000), st.integers(0, 3000))
def test_mcnemar_s_test_is_scipy_s_binomial_test(first, second) -> None:
    """Of the questions that one of two models alone answers right."""
    expected = stats.binomtest(first, first + second).pvalue if first + second else 1.0
    assert questions.sign_flips(np.repeat([1, -1], [first, second])) == pytest.approx(
        expected, rel=1e-12, abs=1e-12
    )


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(-5, 5), min_size=1, max_size=9))
def test_sign_flips_are_all_ways_to_exchange_the_models(sums) -> None:
    signs = itertools.product((-1, 1), repeat=len(sums))
    totals = [sum(a * b for a, b in zip(sums, each, strict=True)) for each in signs]
    expected = np.mean([abs(total) >= abs(sum(sums)) for total in totals])
    assert questions.sign_flips(np.array(sums)) == pytest.approx(expected, rel=1e-12)


def test_resampled_means_are_those_of_questions_drawn_with_replacement() -> None:
    """Of k right of n the bootstrap's mean is binomial: k/n, with variance k (n - k) / n^3."""
    right = np.array([1] * 30 + [0] * 70)
    task = np.array([2, 1, 0, -1] * 10)
    means = questions.resampled_means([right, task])
    assert means.shape == (9999, 2)
    assert (questions.resampled_means([right, task]) == means).all()
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
    assert questions.bootstrap_p(np.array(draws)) == pytest.approx(p)


def test_deviations_over_checkpoints_and_over_seeds_are_apart() -> None:
    """Seeds 1, 3 and 5, 7: each seed's own deviation is the root of 2, their means are 2 and 6."""
    assert intervals.deviations([[1, 3], [5, 7]]) == pytest.approx((2**0.5, 8**0.5))
    undefined = (intervals.deviations([[1, 3]])[1], intervals.deviations([[1], [5]])[0])
    assert np.isnan(undefined).all()
