"""Comparisons of a variant with the baseline over seeds, paired where most seeds are shared.

Which test, and why: with 3 to 10 seeds a permutation test of paired differences cannot reach
p < 0.05 after a correction (five seeds allow p >= 2 / 2**5 = 0.0625), so seeds that are shared are
compared by the paired t-test, which assumes that differences between seeds are about normal. A
study's shared seeds give both variants the same initial parameters and batches; where seeds share
nothing but their number (AlgoPerf's logs) the permutation test of `permutation.py` takes its place,
with the larger of its p-value and Welch's: the one needs no normal noise, the other no equal
variances, and no p below 0.05 stands beside an interval of Welch's that holds 0.

Pairs use the shared seeds alone, so they are formed only where those are most (more than half) of
the smaller side: of 12 seeds each with 2 in common a paired test would ignore 20 of 24 runs.
Otherwise all runs are compared, unpaired. Shared seeds make that test conservative: with 6 of 12
in common, whose values correlate by 0.9, it told 0.9 % of 4,000 simulated studies apart, not 5 %.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np

from analysis.statistics import permutation
from analysis.statistics.intervals import all_equal, t_bounds, t_interval, tolerance
from analysis.statistics.results import Comparison, Verdict

ALPHA = 0.05
Seeds = Mapping[int, float]


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
    comparison = _untested(float(np.mean(list(values.values()))) - against)
    return replace(comparison, n=len(values), n_baseline=len(baseline), baseline=against)


def paired_seeds(
    values: Collection[int], baseline: Collection[int], shares_seeds: bool
) -> list[int]:
    """Returns the seeds to pair `values` and `baseline` by: those in both, where they are more than
    half of the smaller side's; none where the study's variants do not share seeds."""
    shared = sorted(set(values) & set(baseline)) if shares_seeds else []
    return shared if 2 * len(shared) > min(len(values), len(baseline)) else []


def paired(values: Seeds, baseline: Seeds) -> Comparison:
    """Returns the comparison over the seeds in both; its test is `none` below 2 of them, and its
    difference nan without one."""
    seeds = sorted(values.keys() & baseline.keys())
    pairs = np.array([(values[seed], baseline[seed]) for seed in seeds]).reshape(-1, 2)
    differences = pairs[:, 0] - pairs[:, 1]
    if len(seeds) < 2:
        comparison = _untested(float(differences.mean()) if seeds else math.nan)
    elif all_equal(differences, within := tolerance(pairs.ravel()).item()):
        # Of the 2**n sign patterns of equal differences 2 are as extreme as the one there is.
        mean, smallest = float(differences.mean()), 2.0 ** (1 - len(seeds))
        p = 1.0 if abs(mean) <= within else smallest
        comparison = Comparison(0, mean, mean, mean, p, "sign", sd=0.0, smallest_p=smallest)
    else:
        comparison = _t_test(differences)
    against = float(pairs[:, 1].mean()) if seeds else math.nan
    return replace(
        comparison,
        pairs=len(seeds),
        n=len(values),
        n_baseline=len(baseline),
        baseline=against,
    )


def _untested(difference: float) -> Comparison:
    return Comparison(0, difference, math.nan, math.nan, math.nan, "none")


def _t_test(differences: np.ndarray) -> Comparison:
    low, high = map(float, t_interval(differences))
    mean, sd = float(differences.mean()), float(differences.std(ddof=1))
    return Comparison(
        pairs=0,
        difference=mean,
        low=low,
        high=high,
        p=float(paired_p(differences)),
        test="t",
        sd=sd,
        effect=standardised(mean, sd, len(differences) - 1),
        smallest_p=0.0,
    )


def paired_p(differences: np.ndarray) -> np.ndarray:
    """Returns the two-sided p-values [...] of Student's t-test of `differences` [..., n] against
    0 (1908; scipy.stats.ttest_1samp)."""
    from scipy import stats

    return np.asarray(stats.ttest_1samp(differences, 0.0, axis=-1).pvalue)


def unpaired(values: Seeds, baseline: Seeds) -> Comparison:
    """Returns the comparison of all seeds of both, at least 2 of each."""
    first, second = (np.array(list(group.values())) for group in (values, baseline))
    n, m = len(first), len(second)
    difference = float(first.mean() - second.mean())
    constant = all_equal(first) and all_equal(second)
    sd = 0.0 if constant else pooled_sd(first, second)
    bounds = (difference, difference) if constant else welch_interval(first, second)
    return Comparison(
        pairs=0,
        difference=difference,
        low=float(bounds[0]),
        high=float(bounds[1]),
        p=float(unpaired_p(first, second)),
        test="permutation",
        n=n,
        n_baseline=m,
        baseline=float(second.mean()),
        sd=sd,
        effect=standardised(difference, sd, n + m - 2),
        smallest_p=permutation.smallest_p(n, m),
    )


def unpaired_p(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Returns the two-sided p-values [...] of `first` [..., n] against `second` [..., m], n and
    m > 1: the larger of the permutation test's and Welch's; of groups without spread, for which
    Welch's t is undefined, the permutation test's."""
    welch = np.where(_constant(first) & _constant(second), 0.0, welch_p(first, second))
    return np.maximum(permutation.p_values(first, second), welch)


def _constant(group: np.ndarray) -> np.ndarray:
    return np.ptp(group, axis=-1) <= tolerance(group)[..., 0]


def welch_p(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Returns the two-sided p-values [...] of Welch's t-test (as `welch_interval`); nan or 0 where
    both are without spread."""
    from scipy import stats

    difference, error, degrees = _welch(first, second)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(2 * stats.t.sf(np.abs(difference) / error, degrees))


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
    """Returns the effect size J(degrees) difference / sd, nan where sd is 0 or undefined.

    Paired by seed: Cohen's d_z, corrected; sd of the n differences, degrees n - 1. Not paired:
    Hedges' g; the pooled sd of both groups, degrees n + m - 2. The two have different units: d_z
    is larger the more the pairs' values correlate.
    """
    return correction(degrees) * difference / sd if sd > 0 else math.nan


def pooled_sd(first: np.ndarray, second: np.ndarray) -> float:
    """Returns the pooled standard deviation of `first` [n] and `second` [m], each n > 1: the root
    of ((n - 1) s^2 + (m - 1) t^2) / (n + m - 2)."""
    squares = sum(float(((group - group.mean()) ** 2).sum()) for group in (first, second))
    return math.sqrt(squares / (len(first) + len(second) - 2))


def holm(p_values: Sequence[float] | np.ndarray) -> np.ndarray:
    """Returns p-values [..., m] corrected for their number, in the order given; nan stays nan
    and is not counted. Holm (1979), "A simple sequentially rejective multiple test procedure":
    the i-th smallest of m (from 0) times m - i, at most 1, never below a smaller one's."""
    p = np.asarray(p_values, dtype=float)
    order = np.argsort(p, axis=-1)
    ascending = np.take_along_axis(p, order, axis=-1)
    defined = np.sum(~np.isnan(p), axis=-1, keepdims=True)
    stepped = np.minimum(1.0, ascending * (defined - np.arange(p.shape[-1])))
    # nan sorts last, so what is accumulated before it stays defined.
    corrected = np.empty_like(p)
    np.put_along_axis(corrected, order, np.maximum.accumulate(stepped, axis=-1), axis=-1)
    return corrected


def verdict(difference: float, p_holm: float, lower_is_better: bool) -> Verdict:
    """Returns better or worse where the corrected p-value is below 0.05, else cannot tell."""
    if not p_holm < ALPHA:
        return "cannot tell"
    return "better" if (difference < 0) == lower_is_better else "worse"


def corrected(comparisons: Sequence[Comparison], lower_is_better: bool) -> list[Comparison]:
    """Returns the comparisons with `p_holm` corrected over them all, and the verdicts."""
    p_values = holm([comparison.p for comparison in comparisons])
    return [
        replace(
            comparison,
            p_holm=float(p_holm),
            verdict=verdict(comparison.difference, float(p_holm), lower_is_better),
        )
        for comparison, p_holm in zip(comparisons, p_values, strict=True)
    ]
