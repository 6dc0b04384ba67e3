"""The power analysis: differences that a study's seeds can detect, and the seeds that the paper's
effect, or one that is given, needs.

Power of t-tests is exact for normal noise, by the noncentral t distribution: Cohen (1988),
"Statistical power analysis for the behavioral sciences", chapter 2; as in statsmodels' TTestPower
and TTestIndPower, which give nan at some shifts (effect in standard errors) above 3.6. The test of
unpaired seeds needs larger differences: `unpaired_factor`.

The SD is an estimate from the same seeds. So each result has a range: that of the 90 % interval of
the true SD (chi-square). There is no result below LEAST_DEGREES.
"""

import bisect
import dataclasses
import functools
import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy import special

from analysis.compare.error_table import ErrorTable
from analysis.load import paper
from analysis.statistics import comparisons
from analysis.statistics.intervals import Estimate

# A word of a workload's name to the paper's table of that domain, and the workload it prints.
DOMAINS = {
    "vit": ("vit_error", "imagenet_vit"),
    "conformer": ("conformer_wer", "librispeech_conformer"),
    "lm": ("lm_test_loss", "c4_lm"),
    "bert": ("bert_mlm_error", "wikipedia_bert_2b"),
}
# The paper prints losses of the language model on test only.
PRINTED = "test"
POWER = 0.8
# More are more than anybody trains, and far more make scipy's t distribution overflow.
MOST_SEEDS = 10_000
# Degrees of freedom of the SD from which on there is a result: five pairs. With three pairs the
# 90 % interval of the SD is 0.58 to 4.4 times the estimate, with five 0.65 to 2.4 times.
LEAST_DEGREES = 4
RANGE = 0.9
# The p-value of the test against a target that `seeds_to_reach` is for.
REACHED = 0.001
UNKNOWN = Estimate(math.nan, math.nan, math.nan)
# The most seeds of a side and the most variants of `unpaired_factor`.
MOST_SIMULATED, MOST_TESTS = 12, 7


@dataclass(frozen=True)
class Sensitivity:
    """What a variant's comparison with the baseline can detect, at 80% power and a level of 0.05
    divided by the number of variants that Holm's correction counts, or a look's threshold.
    `detectable` is the smallest true difference, inf if none can be found at these n; `effect` is
    the one asked for; `seeds` of each side would detect it, inf if MOST_SEEDS do not. Each with its
    range; nan if undefined, as below LEAST_DEGREES. `possible` is the number of seeds of each side
    from which on the test can find any difference. The upper end of `detectable` is inf if the
    factor of its test was not simulated, and `detectable` is a lower bound."""

    effect: float
    detectable: Estimate = UNKNOWN
    seeds: Estimate = UNKNOWN
    possible: float = math.nan


def of_table(table: ErrorTable, split: str, effects: Mapping[str, float]) -> dict[str, Sensitivity]:
    """Returns the sensitivity of each variant that is compared with the baseline on `split`, by
    its name: to its size in `effects`, if it has one."""
    compared = {
        row.variant: comparison
        for row in table.rows
        if (comparison := row.splits[split].comparison) is not None
    }
    tested = sum(comparison.is_tested for comparison in compared.values())
    alpha = table.threshold or comparisons.ALPHA / max(1, tested, table.family)
    return {
        name: _sensitivity(comparison, alpha, effects.get(name, math.nan))
        for name, comparison in compared.items()
    }


def _sensitivity(comparison: comparisons.Comparison, alpha: float, effect: float) -> Sensitivity:
    paired, n, m = comparison.is_paired, comparison.n, comparison.n_baseline
    degrees = comparison.pairs - 1 if paired else n + m - 2
    if not comparison.sd > 0 or degrees < LEAST_DEGREES:
        return Sensitivity(effect)
    sds = sd_range(comparison.sd, degrees)
    unit = detectable(1.0, comparison.pairs or n, alpha, paired=paired, n_baseline=m)
    unit *= 1.0 if paired else unpaired_factor(n, m, alpha)
    sizes = Estimate(*(unit * sd for sd in sds))
    possible = comparisons.enough_seeds(comparison.test, [], round(comparisons.ALPHA / alpha))
    if not paired and not is_simulated(n, m, alpha):
        sizes = dataclasses.replace(sizes, high=math.inf)
    if not abs(effect) > 0:
        return Sensitivity(effect, sizes, possible=possible)
    needed = [seeds_needed(effect, sd, alpha, paired=paired) or math.inf for sd in sds]
    return Sensitivity(effect, sizes, Estimate(*needed), possible)


def sd_range(sd: float, degrees: int) -> list[float]:
    """Returns an SD with `degrees` of freedom, then the low and the high end of its RANGE."""
    ends = special.chdtri(degrees, [(1 - RANGE) / 2, (1 + RANGE) / 2])
    return [sd * scale for scale in (1.0, *np.sqrt(degrees / ends).tolist())]


@functools.cache
def _factors() -> pd.DataFrame:
    return pd.read_csv(paper.DIRECTORY / "unpaired_power.csv", index_col=["n", "m"])


def unpaired_factor(n: int, m: int, alpha: float) -> float:
    """Returns how much larger than Student's t-test's the smallest difference is that the test of
    `n` against `m` unpaired seeds (`comparisons.unpaired`) finds at `alpha`; inf if its smallest
    p is not below `alpha`.

    Simulated with normal noise of equal variance, for 2 to 12 seeds of a side and 1 to 7 variants
    (`python -m tests.analysis.power_table`). Beyond (`is_simulated`), the factor of the nearest.
    """
    if comparisons.smallest_p(n, m) >= alpha:
        return math.inf
    few, many = (min(size, MOST_SIMULATED) for size in sorted((n, m)))
    tests = min(MOST_TESTS, round(comparisons.ALPHA / alpha))
    return float(_factors().loc[(few, many), str(tests)])


def is_simulated(n: int, m: int, alpha: float) -> bool:
    """Returns whether `unpaired_factor` holds: it is too small for more variants than MOST_TESTS,
    and for more than MOST_SIMULATED seeds against fewer."""
    return round(comparisons.ALPHA / alpha) <= MOST_TESTS and not min(n, m) < MOST_SIMULATED < max(
        n, m
    )


def check(table: ErrorTable, option: str, value: float | None) -> None:
    """Raises ValueError if the `value` of an `option` is above 1 and the metric is a share."""
    if table.metric.is_bounded and value is not None and value > 1:
        raise ValueError(
            f"{option}={value:g}: give a {table.metric.label} of at most 1 (0.01 is one point)"
        )


def expected(table: ErrorTable, split: str, given: float | None = None) -> dict[str, float]:
    """Returns the size, 0 or more, of the effect to look for on `split` by variant: `given`, of
    every variant; else, of variants that the paper prints, their difference from the baseline in
    the table for the study's workload, or their relative difference in that domain (on test, where
    the paper prints only that), times the baseline's median."""
    if given is not None:
        return {row.variant: given for row in table.rows}
    own = table.study.paper_table, table.workload, dict(table.study.config), split
    if base_and_others := _printed(table, *own):
        base, others = base_and_others
        return {name: abs(value - base) for name, value in others.items()}
    row = table.baseline_row
    summary = row.splits[split].summary if row else None
    domains = [DOMAINS[word] for word in table.workload.split("_") if word in DOMAINS]
    for (name, workload), of_split in itertools.product(domains[:1], (split, PRINTED)):
        if summary and (base_and_others := _printed(table, name, workload, {}, of_split)):
            base, others = base_and_others
            shares = {name: abs(value / base - 1) for name, value in others.items()}
            return {name: share * abs(summary.median) for name, share in shares.items()}
    return {}


def _printed(
    table: ErrorTable, name: str, workload: str, config: dict, split: str
) -> tuple[float, dict[str, float]] | None:
    """Returns the paper's numbers in its table `name`, the baseline's and the other variants', None
    if it prints none of the baseline, or another metric."""
    values = {}
    for row in table.rows:
        if cell := paper.cell(name, table.metric.name, workload, config, row.variant, split):
            values[row.variant] = cell.value
    return (values.pop(table.baseline), values) if table.baseline in values else None


def power_at(
    effect: float,
    sd: float,
    n: int,
    alpha: float,
    paired: bool = True,
    n_baseline: int | None = None,
) -> float:
    """Returns the probability that the two-sided t-test at `alpha` finds a true difference.

    `effect` and `sd` have the same unit. Paired: `sd` is that of the differences over `n` seeds.
    Not paired: that of either group, of `n` and `n_baseline` seeds (`n` unless given). Raises
    ValueError if the power is undefined: one seed, or an `effect` or `alpha` that is nan.
    """
    from scipy import stats  # 0.6 s, which a table without this analysis does not need

    m = n_baseline or n
    degrees = n - 1 if paired else n + m - 2
    shift = abs(effect) / (sd * math.sqrt(1 / n if paired else 1 / n + 1 / m))
    limit = stats.t.isf(alpha / 2, degrees)
    # Of -effect, whose power is the same: of a positive shift scipy's lower tail is nan from 3.6 on
    # and its upper one at some from 37 on, of a negative one neither.
    # From 1e9 standard errors on power is 1 at any level of ours; from 1e12 scipy gives nan.
    mirrored = -min(shift, 1e9)
    power = float(stats.nct.cdf(-limit, degrees, mirrored) + stats.nct.sf(limit, degrees, mirrored))
    if math.isnan(power):
        raise ValueError(f"no power for effect = {effect}, sd = {sd}, n = {n}, alpha = {alpha}")
    return power


def detectable(
    sd: float, n: int, alpha: float, paired: bool = True, n_baseline: int | None = None
) -> float:
    """Returns the smallest true difference, in the unit of `sd`, that the test finds with
    probability POWER; `sd` is above 0, other arguments and errors as for `power_at`."""
    from scipy import optimize

    def missing(effect: float) -> float:
        return power_at(effect, 1.0, n, alpha, paired, n_baseline) - POWER

    most = 1.0
    while missing(most) < 0:
        most *= 2
    return sd * float(optimize.brentq(missing, 0.0, most, xtol=1e-12))


def seeds_needed(effect: float, sd: float, alpha: float, paired: bool = True) -> int | None:
    """Returns the fewest seeds (not paired: of either group) with which the test that is made finds
    a true difference of `effect` with probability POWER, at least 2; None if MOST_SEEDS do
    not. Raises ValueError as `power_at` does."""

    def enough(n: int) -> bool:
        smaller = effect if paired else effect / unpaired_factor(n, n, alpha)
        return power_at(smaller, sd, n, alpha, paired) >= POWER

    if not enough(MOST_SEEDS):
        return None
    return 2 + bisect.bisect_left(range(2, MOST_SEEDS), True, key=enough)


def target_p(gain: float, sd: float, n: np.ndarray | int) -> np.ndarray:
    """Returns the p-values [...] of the one-sided t-test over `n` [...] seeds, n > 1, that the true
    mean reaches a target. `gain` is how far the mean is on its right side, in the unit of `sd`,
    above 0 (Student 1908; scipy.stats.ttest_1samp with an alternative)."""
    return np.asarray(special.stdtr(n - 1, -gain / sd * np.sqrt(n)))


def seeds_to_reach(gain: float, sd: float) -> float:
    """Returns the fewest seeds with which this mean and SD have a `target_p` below REACHED; inf if
    MOST_SEEDS do not, as on the wrong side of the target."""
    n = np.arange(2, MOST_SEEDS + 1)
    enough = n[target_p(gain, sd, n) < REACHED]
    return float(enough[0]) if enough.size else math.inf
