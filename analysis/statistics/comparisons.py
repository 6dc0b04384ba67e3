"""Comparisons of a variant with the baseline over seeds, paired where most seeds are shared.

Seeds that are shared give both variants the same initial parameters and batches. They are compared
by the paired t-test, which assumes that differences between seeds are about normal. A permutation
test of paired differences cannot reach p < 0.05 after a correction with few seeds: five allow
p >= 2 / 2**5 = 0.0625.

AlgoPerf's seeds share nothing but their number. There a permutation test takes the place of the
t-test, with the larger of its p-value and Welch's. The one needs no normal noise, the other no
equal variances, and no p below 0.05 stands beside an interval of Welch's that holds 0.

The permutation test is studentised, because one of the bare difference is not valid where the
groups' variances differ: Janssen (1997), "Studentized permutation tests for non-iid hypotheses and
the generalized Behrens-Fisher problem"; Chung and Romano (2013), "Exact and asymptotically robust
permutation tests". That holds asymptotically only. Of normal seeds without a difference, 2 with
sd 2 against 8 with sd 0.2, it told 42% apart, so Welch's t-test stands beside it.

Pairs use the shared seeds alone, so they are formed only where those are most (more than half) of
the smaller side: of 12 seeds each with 2 in common a paired test would ignore 20 of 24 runs.
Otherwise all runs are compared, unpaired. Shared seeds make that test conservative: with 6 of 12
in common, whose values correlate by 0.9, it told 0.9 % of 4,000 simulated studies apart, not 5 %.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from scipy import special

from analysis.statistics.intervals import (
    NORMAL,
    all_equal,
    merged,
    t_bounds,
    t_interval,
    tolerance,
)

ALPHA = 0.05
# All ways to deal the seeds out are tried where these are no more than this (7 and 7: 3,432; 8 and
# 8: 12,870), else this many seeded random ones.
PERMUTATIONS = 9999
# Numbers that are held at once: 64 MB.
_HELD = 2**23

Seeds = Mapping[int, float]
# "so far": of a study that has not finished.
Verdict = Literal[
    "better", "worse", "equal", "cannot tell", "better so far", "worse so far", "equal so far"
]
Frequency = Literal[
    "more often", "less often", "cannot tell", "more often so far", "less often so far"
]


@dataclass(frozen=True)
class Comparison:
    """A variant against the baseline: over the `pairs` seeds that both have, or (`pairs` = 0)
    over `n` seeds of the one and `n_baseline` of the other.

    `difference` is the mean of variant minus baseline, `low` and `high` its 95% interval (not
    corrected). `p` is two-sided; `p_holm` is corrected over the variants; both nan if `test`
    is `none`. `test` is `t` (paired), `sign` (paired, all differences equal: exact sign flips),
    `permutation` (not paired; p is Welch's where that is larger), or `bootstrap` (`with_choice`).
    `smallest_p` is the least that the test can give at these n, 0 for t. `sd` is that of the
    paired differences, else the pooled one; `effect` is `difference` in units of `sd`, d_z or g by
    `effect_kind` (`standardised`); both nan if undefined. `error` is the standard error of
    `difference` with `degrees` of freedom, 0 without spread. `baseline` is the mean of the
    baseline's runs that are compared. `p_equal` is `equality_p`'s, corrected as `p_holm` is;
    `within` is the margin, if the difference is shown to be smaller. `withheld` is why there is no
    verdict in spite of these: `lost seeds`, `lengths`, `different data`, `other points` or
    `unfinished` (`compare/verdicts.py`), else empty.
    """

    pairs: int = 0
    difference: float = math.nan
    low: float = math.nan
    high: float = math.nan
    p: float = math.nan
    test: Literal["t", "sign", "permutation", "bootstrap", "none"] = "none"
    p_holm: float = math.nan
    verdict: Verdict = "cannot tell"
    n: int = 0
    n_baseline: int = 0
    sd: float = math.nan
    effect: float = math.nan
    smallest_p: float = math.nan
    error: float = 0.0
    degrees: float = math.nan
    baseline: float = math.nan
    p_equal: float = math.nan
    within: str = ""
    withheld: str = ""

    @property
    def is_tested(self) -> bool:
        """Returns whether there is a p-value."""
        return self.test != "none"

    @property
    def seeds(self) -> str:
        """Returns the number of seeds: `3` that both have, or `3 v 5` of the two."""
        return str(self.pairs) if self.is_paired else f"{self.n} v {self.n_baseline}"

    @property
    def is_paired(self) -> bool:
        """Returns whether it is over shared seeds."""
        return self.pairs > 0

    @property
    def is_partial(self) -> bool:
        """Returns whether runs are left out: those whose seed only one of the two has."""
        return self.is_paired and self.pairs < max(self.n, self.n_baseline)

    @property
    def effect_kind(self) -> str:
        """Returns the unit of `effect`: `d_z`, sds of paired differences, or `g`, pooled sds."""
        return "d_z" if self.is_paired else "g"


@dataclass(frozen=True)
class Rate:
    """`count` of `n` runs with the 95% interval of the probability behind it, and its comparison
    with the baseline's rate: two-sided `p`, `p_holm` corrected over the variants compared, both nan
    if there is none, and the verdict at 0.05."""

    count: int
    n: int
    low: float
    high: float
    p: float = math.nan
    p_holm: float = math.nan
    verdict: Frequency = "cannot tell"


def compare(values: Seeds, baseline: Seeds, shares_seeds: bool) -> Comparison:
    """Returns `values` against `baseline`, both seed to number, `values` not empty.

    Paired over `paired_seeds`, else over all seeds of both; the test is `none` where that leaves
    fewer than 2 pairs, or fewer than 2 seeds of either.
    """
    shared = paired_seeds(values, baseline, shares_seeds)
    if len(shared) < 2 <= min(len(values), len(baseline)):
        return unpaired(values, baseline)
    if shared:
        return paired(values, baseline)
    against = float(np.mean(list(baseline.values()))) if baseline else math.nan
    difference = float(np.mean(list(values.values()))) - against
    return Comparison(
        difference=difference, baseline=against, n=len(values), n_baseline=len(baseline)
    )


def paired_seeds(
    values: Collection[int], baseline: Collection[int], shares_seeds: bool
) -> list[int]:
    """Returns the seeds to pair `values` and `baseline` by: those in both, where they are more than
    half of the smaller side's; none if the study's variants do not share seeds."""
    shared = sorted(set(values) & set(baseline)) if shares_seeds else []
    return shared if 2 * len(shared) > min(len(values), len(baseline)) else []


def paired(values: Seeds, baseline: Seeds) -> Comparison:
    """Returns the comparison over the seeds in both, at least one; its test is `none` below 2."""
    seeds = sorted(values.keys() & baseline.keys())
    pairs = np.array([(values[seed], baseline[seed]) for seed in seeds])
    differences = pairs[:, 0] - pairs[:, 1]
    mean, against = float(differences.mean()), float(pairs[:, 1].mean())
    untested = Comparison(
        pairs=len(seeds),
        difference=mean,
        baseline=against,
        n=len(values),
        n_baseline=len(baseline),
    )
    if len(seeds) < 2:
        return untested
    within = tolerance(pairs.ravel()).item()
    if all_equal(differences, within):
        # Of the 2**n sign patterns of equal differences 2 are as extreme as the one there is.
        least = 2.0 ** (1 - len(seeds))
        p = 1.0 if abs(mean) <= within else least
        return replace(untested, low=mean, high=mean, p=p, test="sign", sd=0.0, smallest_p=least)
    low, high = map(float, t_interval(differences))
    sd = float(differences.std(ddof=1))
    return replace(
        untested,
        low=low,
        high=high,
        p=float(paired_p(differences)),
        test="t",
        sd=sd,
        effect=standardised(mean, sd, len(seeds) - 1),
        smallest_p=0.0,
        error=sd / math.sqrt(len(seeds)),
        degrees=len(seeds) - 1,
    )


def with_choice(comparison: Comparison, error: float) -> Comparison:
    """Returns a comparison of best points with an interval and p that cover their choice: t with
    the `error` of `choice.standard_errors`, degrees of freedom one below the fewer seeds. As it is
    where that error is no larger than its own, or without a test."""
    if not comparison.is_tested or not error > comparison.error:
        return comparison
    n, m, difference = comparison.n, comparison.n_baseline, comparison.difference
    degrees = (comparison.pairs or min(n, m)) - 1
    low, high = map(float, t_bounds(difference, error, degrees))
    # With this SD a t-test has this error.
    sd = error / math.sqrt(1 / comparison.pairs if comparison.is_paired else 1 / n + 1 / m)
    return replace(
        comparison,
        low=low,
        high=high,
        p=max(comparison.p, float(_two_sided(np.array(difference / error), degrees))),
        test="bootstrap",
        sd=sd,
        effect=standardised(difference, sd, degrees),
        error=error,
        degrees=degrees,
    )


def paired_p(differences: np.ndarray) -> np.ndarray:
    """Returns the two-sided p-values [...] of Student's t-test of `differences` [..., n] against
    0 (1908; scipy.stats.ttest_1samp)."""
    n = differences.shape[-1]
    error = np.sqrt(differences.var(axis=-1) * (n / (n - 1)) / n)
    return np.asarray(_two_sided(differences.mean(axis=-1) / error, n - 1))


def _two_sided(t: np.ndarray, degrees: np.ndarray | int) -> np.ndarray:
    """Returns the p-values [...] of Student's t [...]. scipy.special has the digits of scipy.stats,
    whose import takes 0.6 s more."""
    return np.asarray(2 * special.stdtr(degrees, -np.abs(t)))


def unpaired(values: Seeds, baseline: Seeds) -> Comparison:
    """Returns the comparison of all seeds of both, at least 2 of each."""
    first, second = (np.array(list(group.values())) for group in (values, baseline))
    n, m = len(first), len(second)
    difference, error, degrees = map(float, _welch(first, second))
    low = high = difference
    sd = 0.0
    if not (all_equal(first) and all_equal(second)):
        low, high = map(float, t_bounds(difference, error, degrees))
        # Pooled: of the squares of both groups, n - 1 and m - 1 of them free.
        sd = math.sqrt((n * first.var() + m * second.var()) / (n + m - 2))
    return Comparison(
        difference=difference,
        low=low,
        high=high,
        p=float(unpaired_p(first, second)),
        test="permutation",
        n=n,
        n_baseline=m,
        baseline=float(second.mean()),
        sd=sd,
        effect=standardised(difference, sd, n + m - 2),
        smallest_p=smallest_p(n, m),
        error=error if sd > 0 else 0.0,
        degrees=degrees,
    )


def unpaired_p(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Returns the two-sided p-values [...] of `first` [..., n] against `second` [..., m], n and
    m > 1: the larger of the permutation test's and Welch's; of groups without spread, for which
    Welch's t is undefined, the permutation test's."""
    difference, error, degrees = _welch(first, second)
    with np.errstate(divide="ignore", invalid="ignore"):
        welch = _two_sided(difference / error, degrees)
    constant = [np.ptp(group, axis=-1) <= tolerance(group)[..., 0] for group in (first, second)]
    p = np.where(constant[0] & constant[1], 0.0, welch)
    return np.maximum(permutation_p(first, second), p)


def welch_interval(first: np.ndarray, second: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the bounds [...] of the 95% interval of mean `first` [..., n] minus mean `second`
    [..., m], n and m > 1, not both without spread.

    Welch (1947), "The generalization of 'Student's' problem when several different population
    variances are involved", with Satterthwaite's degrees of freedom.
    """
    return t_bounds(*_welch(first, second))


def _welch(first: np.ndarray, second: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the difference of the means, its standard error and its degrees of freedom."""
    groups = (first, second)
    squares = [group.var(axis=-1, ddof=1) / group.shape[-1] for group in groups]
    below = sum(s**2 / (g.shape[-1] - 1) for s, g in zip(squares, groups, strict=True))
    with np.errstate(divide="ignore", invalid="ignore"):
        degrees = (squares[0] + squares[1]) ** 2 / below
    difference = first.mean(axis=-1) - second.mean(axis=-1)
    return difference, np.sqrt(squares[0] + squares[1]), degrees


def smallest_p(n: int, m: int) -> float:
    """Returns the least two-sided p-value that groups of `n` and `m` can reach: 2 / 252 for 5 and
    5; of R random permutations 2 / (R + 1) (Phipson and Smyth, 2010)."""
    return min(1.0, 2 / min(math.comb(n + m, n), PERMUTATIONS + 1))


def enough_seeds(
    test: str, others: Sequence[float], family: int = 0, threshold: float = 0.0
) -> float:
    """Returns the least number of seeds of each side with which a `permutation` or `sign` test,
    `corrected` with the p-values `others`, can give a verdict; inf if no number can."""
    for n in range(2, 50):
        least = 2.0 ** (1 - n) if test == "sign" else smallest_p(n, n)
        if corrected([least, *others], family, threshold)[0] < ALPHA:
            return n
    return math.inf


def permutation_p(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Returns the two-sided p-values [...] of the permutation test of `first` [..., n] against
    `second` [..., m], n and m > 1: twice the smaller tail, as scipy.stats.permutation_test gives
    it."""
    from scipy import stats  # 0.6 s, which only logs of unpaired seeds need

    n = first.shape[-1]
    both = merged(np.concatenate([first, second], axis=-1))
    centred = both - both.mean(axis=-1, keepdims=True)
    # Equal values have no scale: every deal is then as extreme as the one there is, and p is 1.
    spread = np.ptp(both, axis=-1, keepdims=True)
    unit = np.where(spread > 0, centred, 0.0) / np.where(spread > 0, spread, 1.0)
    result = stats.permutation_test(
        (unit[..., :n], unit[..., n:]),
        _welch_t,
        n_resamples=PERMUTATIONS,
        batch=max(1, _HELD // unit.size),
        vectorized=True,
        axis=-1,
        rng=np.random.default_rng(0),
    )
    return np.asarray(result.pvalue)


def _welch_t(first: np.ndarray, second: np.ndarray, axis: int) -> np.ndarray:
    """Returns Welch's t. Rounded, so that deals which are equal but for the order of a sum are."""
    squares = (group.var(axis=axis, ddof=1) / group.shape[axis] for group in (first, second))
    error = np.sqrt(sum(squares))
    difference = np.round(first.mean(axis=axis) - second.mean(axis=axis), 12)
    # A standard error below 1e-9 of the range of the values is rounding.
    return np.round(difference / np.maximum(error, 1e-9), 9)


def correction(degrees: int) -> float:
    """Returns the factor that makes a standardised difference with `degrees` of freedom unbiased,
    nan below 2, where its mean does not exist.

    Hedges (1981), "Distribution theory for Glass's estimator of effect size and related
    estimators", eq. 6e: J(v) = Gamma(v / 2) / (sqrt(v / 2) Gamma((v - 1) / 2)).
    """
    if degrees < 2:
        return math.nan
    ratio = math.lgamma(degrees / 2) - math.lgamma((degrees - 1) / 2)
    return math.exp(ratio) / math.sqrt(degrees / 2)


def standardised(difference: float, sd: float, degrees: int) -> float:
    """Returns the effect size J(degrees) difference / sd, nan if sd is 0 or undefined.

    Paired by seed: Cohen's d_z, corrected; sd of the n differences, degrees n - 1. Not paired:
    Hedges' g; the pooled sd of both groups, degrees n + m - 2. The two have different units: d_z
    is larger the more the pairs' values correlate.
    """
    return correction(degrees) * difference / sd if sd > 0 else math.nan


def holm(p_values: Sequence[float] | np.ndarray, family: int = 0) -> np.ndarray:
    """Returns p-values [..., m] corrected for their number, in the order given; nan stays nan and
    is not counted, unless the tests are a `family` of more. Holm (1979), "A simple sequentially
    rejective multiple test procedure": the i-th smallest of m (from 0) times m - i, at most 1,
    never below a smaller one's."""
    p = np.asarray(p_values, dtype=float)
    order = np.argsort(p, axis=-1)
    ascending = np.take_along_axis(p, order, axis=-1)
    defined = np.maximum(np.sum(~np.isnan(p), axis=-1, keepdims=True), family)
    stepped = np.minimum(1.0, ascending * (defined - np.arange(p.shape[-1])))
    # nan sorts last, so what is accumulated before it stays defined.
    corrected = np.empty_like(p)
    np.put_along_axis(corrected, order, np.maximum.accumulate(stepped, axis=-1), axis=-1)
    return corrected


def corrected(p_values: Sequence[float], family: int, threshold: float = 0.0) -> np.ndarray:
    """Returns p-values [m] whose level is 0.05: by `holm`; at a declared look times 0.05 over its
    `threshold`, at most 1, which is Bonferroni's correction (`looks.thresholds`)."""
    scaled = np.asarray(p_values, dtype=float) * (ALPHA / (threshold or 1.0))
    return np.minimum(1.0, scaled) if threshold else holm(p_values, family)


def equality_p(comparison: Comparison, margin: str) -> float:
    """Returns the p-value of a true difference as large as `margin` or larger: the larger one of
    two one-sided t-tests, paired or Welch's as the comparison is; without spread that of the exact
    test's one side; nan without margin or test. `margin` is a number in the metric's unit, or
    `0.5%` of the baseline's mean, which is taken as known. Schuirmann (1987), "A comparison of the
    two one-sided tests procedure and the power approach for assessing the equivalence of average
    bioavailability"."""
    if not (margin and comparison.is_tested):
        return math.nan
    unit = abs(comparison.baseline) / 100 if margin.endswith("%") else 1.0
    left = unit * float(margin.removesuffix("%")) - abs(comparison.difference)
    if comparison.error > 0:
        return float(special.stdtr(comparison.degrees, -left / comparison.error))
    return comparison.smallest_p / 2 if left > 0 else 1.0


def verdict(
    difference: float, p_holm: float, lower_is_better: bool, p_equal: float = 1.0
) -> Verdict:
    """Returns better or worse where the corrected p-value is below 0.05, else equal where that of
    equality is, else cannot tell."""
    if not p_holm < ALPHA:
        return "equal" if p_equal < ALPHA else "cannot tell"
    return "better" if (difference < 0) == lower_is_better else "worse"


def compare_all(
    values: Mapping[str, Seeds],
    baseline: str,
    shares_seeds: bool,
    lower_is_better: bool,
    family: int = 0,
    threshold: float = 0.0,
    margin: str = "",
    errors: Mapping[str, float] | None = None,
) -> dict[str, Comparison]:
    """Returns the comparison of each name in `values` with that of `baseline`, with verdicts, p
    `corrected` over them or over a `family` of more tests; of names without values none, empty if
    there is no baseline. Without `margin` none is equal. `errors`: for `with_choice`."""
    if baseline not in values:
        return {}
    names = [name for name, own in values.items() if own and name != baseline]
    compared = [compare(values[name], values[baseline], shares_seeds) for name in names]
    if errors:
        compared = [*map(with_choice, compared, map(errors.__getitem__, names))]
    p_values = ([each.p for each in compared], [equality_p(each, margin) for each in compared])
    both = (corrected(of_test, family, threshold).tolist() for of_test in p_values)
    return {
        name: replace(
            comparison,
            p_holm=p_holm,
            p_equal=p_equal,
            within=margin if p_equal < ALPHA else "",
            verdict=verdict(comparison.difference, p_holm, lower_is_better, p_equal),
        )
        for name, comparison, p_holm, p_equal in zip(names, compared, *both, strict=True)
    }


def rate(count: int, n: int) -> Rate:
    """Returns `count` of `n` with Wilson's 95% interval (Wilson 1927, "Probable inference, the law
    of succession, and statistical inference"), which Brown, Cai and DasGupta (2001) recommend for
    few runs: it is never empty at 0 of n. 0 <= count <= n, n > 0."""
    share, weight = count / n, 2 * (n + NORMAL**2)
    centre = (2 * n * share + NORMAL**2) / weight
    half = NORMAL / weight * math.sqrt(4 * n * share * (1 - share) + NORMAL**2)
    # Rounding leaves neither bound at 0 or 1.
    low, high = centre - half if count else 0.0, centre + half if count < n else 1.0
    return Rate(count, n, low, high)


def fisher_p(first: Rate, second: Rate) -> float:
    """Returns the two-sided p-value of Fisher's exact test (Fisher 1935; scipy.stats.fisher_exact):
    the share of the ways to deal out what was counted that are no likelier than the one there is,
    all of them whole numbers."""
    counted = first.count + second.count
    ways = [
        math.comb(first.n, count) * math.comb(second.n, counted - count)
        for count in range(max(0, counted - second.n), min(first.n, counted) + 1)
    ]
    observed = math.comb(first.n, first.count) * math.comb(second.n, second.count)
    return sum(count for count in ways if count <= observed) / sum(ways)


def compare_rates(
    rates: Mapping[str, Rate], baseline: str, family: int = 0, threshold: float = 0.0
) -> dict[str, Rate]:
    """Returns the rates, each but that of `baseline` compared with it by `fisher_p`, `corrected`
    over them or a `family` of more; as they are where there is no baseline. Runs of one seed are
    taken as independent, as the test's two groups are."""
    if baseline not in rates:
        return dict(rates)
    base, compared = rates[baseline], dict(rates)
    p_values = {name: fisher_p(rate, base) for name, rate in rates.items() if name != baseline}
    for (name, p), p_holm in zip(
        p_values.items(), corrected([*p_values.values()], family, threshold), strict=True
    ):
        rate = rates[name]
        outcome: Frequency = "cannot tell"
        if p_holm < ALPHA:
            outcome = "more often" if rate.count * base.n > base.count * rate.n else "less often"
        compared[name] = replace(rate, p=p, p_holm=float(p_holm), verdict=outcome)
    return compared
