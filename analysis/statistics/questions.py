"""Statistics over the questions of tasks: paired tests of two models, bootstrap intervals.

The unit is the question. Where several trials (seeds) answer the same questions, a question's
answers are summed over them first: answers to one question are alike, and counted one by one they
would make a test claim several times the questions there are. What these statistics speak of is
the trained models that were asked; what another seed would give is said by statistics over seeds.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from analysis.statistics.intervals import CONFIDENCE, RESAMPLES


def mcnemar(only_first: int, only_second: int) -> float:
    """Returns the two-sided p-value of McNemar's exact test, of the questions that one of two
    models alone answers right; 1 where there is none.

    McNemar (1947), "Note on the sampling error of the difference between correlated proportions or
    percentages"; exact: scipy.stats.binomtest(only_first, only_first + only_second).
    """
    from scipy import stats

    smaller, both = min(only_first, only_second), only_first + only_second
    return min(1.0, 2 * float(stats.binom.cdf(smaller, both, 0.5)))


def sign_flips(sums: np.ndarray) -> float:
    """Returns the exact two-sided p-value of whole `sums` [n], a question's right answers of one
    model minus the other's over their seeds: the share of the 2**n ways to exchange the models
    question by question whose total is as far from 0. With one seed it is `mcnemar`.

    Fisher (1935), "The Design of Experiments", sect. 21. The distribution of the total is that of
    a sum of k (2 B - m), B binomial, over the m questions of each size k.
    """
    from scipy import stats

    sizes, counts = np.unique(np.abs(sums[sums != 0]), return_counts=True)
    if len(sizes) < 2:
        return mcnemar(int((sums > 0).sum()), int((sums < 0).sum()))
    total, chances = int(abs(sums.sum())), np.ones(1)
    for size, count in zip(sizes.tolist(), counts.tolist(), strict=True):
        spread = np.zeros(size * count + 1)  # the share of ups: 2 k B beside its least value
        spread[::size] = stats.binom.pmf(np.arange(count + 1), count, 0.5)
        chances = np.convolve(chances, spread)
    largest = len(chances) - 1  # totals are -largest, -largest + 2 ... largest
    upper = (largest + total) // 2
    return min(1.0, 2 * float(chances[upper:].sum())) if total else 1.0


def resampled_means(tasks: Iterable[np.ndarray], seed: int = 0) -> np.ndarray:
    """Returns means [RESAMPLES, T] of the T `tasks`, whole numbers [n] of each one's questions,
    over as many of its questions drawn with replacement.

    Of few different numbers it does not matter which question was drawn but how often each number
    was: counts are drawn from the multinomial distribution, which is the same and costs nothing.
    The same `seed` gives the same draws. Efron (1979), "Bootstrap methods: another look at the
    jackknife".
    """
    random = np.random.default_rng(seed)
    columns = []
    for values in tasks:
        numbers, counts = np.unique(values, return_counts=True)
        drawn = random.multinomial(len(values), counts / len(values), size=RESAMPLES)
        columns.append(drawn @ numbers.astype(float) / len(values))
    return np.stack(columns, axis=1)


def interval(means: np.ndarray) -> tuple[float, float]:
    """Returns the 95% percentile interval of resampled `means` [RESAMPLES]."""
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(means, (tail, 1 - tail))
    return float(low), float(high)


def bootstrap_p(differences: np.ndarray) -> float:
    """Returns the two-sided p-value of resampled `differences` [RESAMPLES] against 0: twice the
    share on the other side of it, at least 2 / (RESAMPLES + 1) (Davison and Hinkley, 1997,
    "Bootstrap Methods and their Application", sect. 4.2)."""
    below, above = int((differences <= 0).sum()), int((differences >= 0).sum())
    return min(1.0, 2 * (min(below, above) + 1) / (len(differences) + 1))


def deviations(values: Sequence[Sequence[float]] | np.ndarray) -> tuple[float, float]:
    """Returns two standard deviations (n - 1) of `values` [seeds, checkpoints], never mixed: over
    checkpoints, the mean of the seeds' own, nan for one checkpoint, and over seeds, that of their
    means over checkpoints, nan for one seed."""
    table = np.asarray(values, float)
    seeds, checkpoints = table.shape
    over_checkpoints = table.std(axis=1, ddof=1).mean() if checkpoints > 1 else np.nan
    over_seeds = table.mean(axis=1).std(ddof=1) if seeds > 1 else np.nan
    return float(over_checkpoints), float(over_seeds)
