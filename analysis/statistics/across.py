"""Statistics of several tasks at once, over plain arrays: name -> scores [runs, tasks].

A score is any number of which more is better; nan where a task has fewer runs than another. In a
row are the runs of one seed, so that two arrays are compared row by row where they were trained in
pairs. After Agarwal et al. (2021), "Deep reinforcement learning at the edge of the statistical
precipice": few runs of many tasks, so intervals of aggregates, not point estimates. Beside theirs
(interquartile mean, probability of improvement, by the stratified bootstrap) stands the mean
standardised effect, which needs no common unit of the tasks and has an interval of its own.
"""

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from analysis.statistics.comparisons import correction, hedges, pooled_sd
from analysis.statistics.results import Estimate

Scores = Mapping[str, np.ndarray]
RESAMPLES = 2_000
# The 97.5% point of the normal distribution.
_Z = 1.959963984540054


def iqm(scores: np.ndarray) -> float:
    """Returns the interquartile mean of `scores` [runs, tasks]: the mean of the middle half of all
    of them, which neither a run that failed nor one task out of four can move alone. nan for none.

    A quarter of n numbers, rounded down, is left out on either side (scipy.stats.trim_mean)."""
    known = np.sort(scores[~np.isnan(scores)])
    cut = known.size // 4
    return float(known[cut : known.size - cut].mean()) if known.size else math.nan


def probability_of_improvement(scores: np.ndarray, baseline: np.ndarray) -> float:
    """Returns the probability that a run of `scores` [runs, tasks] beats one of `baseline`
    [runs, tasks] on the same task, ties counted half, averaged over the tasks that both have; nan
    where there is none. The Mann-Whitney statistic over n·m; paired runs are not used as such."""
    shares = []
    for one, other in zip(scores.T, baseline.T, strict=True):
        mine, theirs = one[~np.isnan(one)], other[~np.isnan(other)]
        if mine.size and theirs.size:
            difference = mine[:, None] - theirs[None, :]
            shares.append(float((difference > 0).mean() + 0.5 * (difference == 0).mean()))
    return float(np.mean(shares)) if shares else math.nan


def bootstrapped(
    statistic: Callable[..., float], *arrays: np.ndarray, resamples: int = RESAMPLES
) -> Estimate:
    """Returns `statistic(*arrays)` with its 95% percentile interval of the stratified bootstrap:
    the runs of each task and array are drawn anew, with replacement, by seeded random numbers.
    No interval where an array has a task of a single run, which draws nothing but itself."""
    value = statistic(*arrays)
    counts = [np.sum(~np.isnan(each), axis=0) for each in arrays]
    if math.isnan(value) or any((each == 1).any() for each in counts):
        return Estimate(value, math.nan, math.nan)
    generator = np.random.default_rng(0)
    found = [statistic(*(_drawn(each, generator) for each in arrays)) for _ in range(resamples)]
    low, high = np.quantile(found, (0.025, 0.975))
    return Estimate(value, float(low), float(high))


def _drawn(scores: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Returns as many runs of each task, drawn with replacement; what is nan stays so."""
    drawn = np.full(scores.shape, math.nan)
    for task, column in enumerate(scores.T):
        known = column[~np.isnan(column)]
        drawn[: known.size, task] = generator.choice(known, known.size) if known.size else known
    return drawn


def mean_effect(scores: np.ndarray, baseline: np.ndarray, paired: Sequence[bool]) -> Estimate:
    """Returns the mean over tasks of Hedges' g of `scores` [runs, tasks] against `baseline`
    [runs, tasks], more than 0 where scores are higher, with its 95% interval.

    `paired` says of each task whether its rows are pairs: then g is in units of the sd of the
    differences, else of the pooled sd. Tasks count alike; those without two runs of both are left
    out. The variance of g is that of the noncentral t it is drawn from (Hedges 1981, eq. 6b), with
    g for the true effect: J² v/(v-2) (1/n + g²) - g², n pairs or n·m/(n+m), v degrees of freedom.
    It exists from v = 3 on, so the interval needs 4 pairs of every task. In 40,000 simulated
    studies of three tasks it held the truth in 96 % with 12 to 20 seeds, in 98 to 99 % with 5.
    """
    found = [
        _effect(one, other, is_paired)
        for one, other, is_paired in zip(scores.T, baseline.T, paired, strict=True)
    ]
    known = [each for each in found if not math.isnan(each[0])]
    if not known:
        return Estimate(math.nan, math.nan, math.nan)
    mean = float(np.mean([effect for effect, _ in known]))
    half = _Z * math.sqrt(sum(variance for _, variance in known)) / len(known)
    return Estimate(mean, mean - half, mean + half)


def _effect(one: np.ndarray, other: np.ndarray, paired: bool) -> tuple[float, float]:
    """Returns a task's g and its variance, nan where either is undefined."""
    if paired:
        differences = (one - other)[~np.isnan(one - other)]
        if differences.size < 2:
            return math.nan, math.nan
        n, degrees = float(differences.size), differences.size - 1
        mean, sd = float(differences.mean()), float(differences.std(ddof=1))
    else:
        mine, theirs = one[~np.isnan(one)], other[~np.isnan(other)]
        if min(mine.size, theirs.size) < 2:
            return math.nan, math.nan
        n = mine.size * theirs.size / (mine.size + theirs.size)
        degrees, sd = mine.size + theirs.size - 2, pooled_sd(mine, theirs)
        mean = float(mine.mean() - theirs.mean())
    effect = hedges(mean, sd, degrees)
    if degrees < 3:
        return effect, math.nan
    scale = correction(degrees) ** 2 * degrees / (degrees - 2)
    return effect, scale * (1 / n + effect**2) - effect**2
