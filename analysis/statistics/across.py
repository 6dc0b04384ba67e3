"""Statistics of several tasks at once, over plain arrays: name -> scores [runs, tasks].

A score is any number of which more is better; nan where a task has fewer runs than another. In a
row are the runs of one seed, so that two arrays are resampled together where they were trained in
pairs. After Agarwal et al. (2021), "Deep reinforcement learning at the edge of the statistical
precipice": few runs of many tasks, so intervals of aggregates, not point estimates. Beside theirs
(interquartile mean, probability of improvement, by the stratified bootstrap) stands the mean
standardised effect, which needs no common unit of the tasks and has an interval of its own.
"""

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from analysis.statistics.comparisons import correction
from analysis.statistics.intervals import LEAST_BCA
from analysis.statistics.results import Estimate

Scores = Mapping[str, np.ndarray]
RESAMPLES = 2_000
# Runs of each task from which on there is a bootstrap interval. With normal noise the percentile
# interval of the interquartile mean held it in 53 % of studies with 2 seeds, 75 % with 3, 88 % with
# 5; that of the probability of improvement in 71, 83 and 92 %.
LEAST_RUNS = LEAST_BCA
# The 97.5% point of the normal distribution.
_Z = 1.959963984540054


def iqm(scores: np.ndarray) -> np.ndarray:
    """Returns the interquartile means [...] of `scores` [..., runs, tasks]: the mean of the middle
    half of all of them, which neither a run that failed nor one task out of four can move alone;
    nan for none. All of `...` have as many numbers that are not nan.

    A quarter of n numbers, rounded down, is left out on either side (scipy.stats.trim_mean)."""
    flat = np.sort(scores.reshape(*scores.shape[:-2], -1), axis=-1)  # nan comes last
    n = int(np.sum(~np.isnan(flat), axis=-1).max(initial=0))
    if not n:
        return np.full(flat.shape[:-1], math.nan)
    return np.asarray(flat[..., n // 4 : n - n // 4].mean(axis=-1))


def iqm_difference(scores: np.ndarray, baseline: np.ndarray) -> np.ndarray:
    """Returns the interquartile means [...] of `scores` less those of `baseline`, both
    [..., runs, tasks]."""
    return np.asarray(iqm(scores) - iqm(baseline))


def probability_of_improvement(scores: np.ndarray, baseline: np.ndarray) -> np.ndarray:
    """Returns the probabilities [...] that a run of `scores` [..., runs, tasks] beats one of
    `baseline` [..., runs, tasks] on the same task, ties counted half, averaged over the tasks; nan
    where a task has no run of one. The Mann-Whitney statistic over n·m; it takes no notice of
    pairs."""
    shares = []
    for task in range(scores.shape[-1]):
        mine, theirs = scores[..., :, None, task], baseline[..., None, :, task]
        known = ~np.isnan(mine) & ~np.isnan(theirs)
        won = np.where(known, (mine > theirs) + 0.5 * (mine == theirs), 0.0)
        with np.errstate(invalid="ignore"):
            shares.append(won.sum(axis=(-2, -1)) / known.sum(axis=(-2, -1)))
    return np.asarray(np.mean(shares, axis=0))


def bootstrapped(
    statistic: Callable[[np.ndarray, np.ndarray], np.ndarray],
    scores: np.ndarray,
    baseline: np.ndarray,
    paired: Sequence[bool],
    resamples: int = RESAMPLES,
) -> Estimate:
    """Returns `statistic` of `scores` and `baseline`, both [runs, tasks], with its 95% percentile
    interval of the stratified bootstrap: the runs of each task are drawn anew, with replacement, by
    seeded random numbers; together where `paired` says that the task's rows are pairs.

    No interval below LEAST_RUNS runs of a task, nor where all resamples agree: neither would hold
    what it promises."""
    value = float(statistic(scores, baseline))
    counts = np.concatenate([np.sum(~np.isnan(each), axis=0) for each in (scores, baseline)])
    if math.isnan(value) or counts.min() < LEAST_RUNS:
        return Estimate(value, math.nan, math.nan)
    generator = np.random.default_rng(0)
    first = np.full((resamples, *scores.shape), math.nan)
    second = np.full((resamples, *baseline.shape), math.nan)
    for task, is_paired in enumerate(paired):
        mine, theirs = scores[:, task], baseline[:, task]
        if is_paired:
            both = ~np.isnan(mine) & ~np.isnan(theirs)
            mine, theirs = mine[both], theirs[both]
        else:
            mine, theirs = mine[~np.isnan(mine)], theirs[~np.isnan(theirs)]
        drawn = generator.integers(0, mine.size, (resamples, mine.size))
        first[:, : mine.size, task] = mine[drawn]
        if not is_paired:
            drawn = generator.integers(0, theirs.size, (resamples, theirs.size))
        second[:, : theirs.size, task] = theirs[drawn]
    low, high = np.quantile(statistic(first, second), (0.025, 0.975))
    if low == high:
        return Estimate(value, math.nan, math.nan)
    return Estimate(value, float(low), float(high))


def mean_effect(
    effects: Sequence[float], sizes: Sequence[float], degrees: Sequence[int]
) -> Estimate:
    """Returns the mean of Hedges' g over tasks, which count alike, with its 95% interval.

    Of each task: its g, the size that its standard error has (n pairs, or n·m/(n+m) of groups that
    are not paired) and the degrees of freedom of its sd. The variance of g is that of the
    noncentral t it is drawn from (Hedges 1981, eq. 6b), with g for the true effect:
    J² v/(v-2) (1/n + g²) - g². It exists from v = 3 on, so the interval needs 4 pairs of every
    task. In 40,000 simulated studies of three tasks it held the truth in 96 % with 12 to 20 seeds,
    in 98 to 99 % with 5.
    """
    if not effects or any(math.isnan(each) for each in effects):
        return Estimate(math.nan, math.nan, math.nan)
    mean = float(np.mean(effects))
    if min(degrees) < 3:
        return Estimate(mean, math.nan, math.nan)
    variance = 0.0
    for g, n, v in zip(effects, sizes, degrees, strict=True):
        variance += correction(v) ** 2 * v / (v - 2) * (1 / n + g**2) - g**2
    half = _Z * math.sqrt(variance) / len(effects)
    return Estimate(mean, mean - half, mean + half)


def mean_ratio(logs: Sequence[np.ndarray]) -> Estimate:
    """Returns the geometric mean of ratios over tasks, which count alike, from the logs of each
    task's paired ratios [pairs], with the t interval of the mean of the tasks' means (Welch's
    degrees of freedom); no interval where a task has fewer than 2 pairs, nan where it has none."""
    from scipy import stats

    if not logs or any(not each.size for each in logs):
        return Estimate(math.nan, math.nan, math.nan)
    mean = float(np.mean([each.mean() for each in logs]))
    parts = [each.var(ddof=1) / each.size for each in logs if each.size > 1]
    if len(parts) < len(logs) or not sum(parts) > 0:
        return Estimate(math.exp(mean), math.nan, math.nan)
    below = sum(part**2 / (each.size - 1) for part, each in zip(parts, logs, strict=True))
    half = stats.t.ppf(0.975, sum(parts) ** 2 / below) * math.sqrt(sum(parts)) / len(logs)
    return Estimate(math.exp(mean), math.exp(mean - half), math.exp(mean + half))
