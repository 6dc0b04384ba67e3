"""Comparisons of two models over the questions of a task.

The unit is the question: if several trials (seeds) answer the same questions, a question's answers
are summed over them first. Answers to one question are alike, and a test that counts them one by
one claims several times the questions that exist. Such a test speaks of the trained models that
were asked. A comparison over seeds (`comparisons`) says what another seed would give.
"""

from collections.abc import Iterable

import numpy as np

# Draws of questions.
RESAMPLES = 9999


def sign_flips(sums: np.ndarray) -> float:
    """Returns the exact two-sided p-value of whole `sums` [n], a question's right answers of one
    model minus the other's over their seeds: the share of the 2**n ways to exchange the models
    question by question whose total is as far from 0.

    Fisher (1935), "The Design of Experiments", sect. 21. The distribution of the total is that of
    a sum of k (2 B - m), B binomial, over the m questions of each size k. With one seed it is the
    exact test of McNemar (1947), "Note on the sampling error of the difference between correlated
    proportions or percentages".
    """
    from scipy import stats

    sizes, counts = np.unique(np.abs(sums[sums != 0]), return_counts=True)
    total, chances = int(abs(sums.sum())), np.ones(1)
    for size, count in zip(sizes.tolist(), counts.tolist(), strict=True):
        spread = np.zeros(size * count + 1)  # the share of ups: 2 k B beside its least value
        spread[::size] = stats.binom.pmf(np.arange(count + 1), count, 0.5)
        chances = np.convolve(chances, spread)
    largest = len(chances) - 1  # totals are -largest, -largest + 2 ... largest
    upper = (largest + total) // 2
    return min(1.0, 2 * float(chances[upper:].sum())) if total else 1.0


def resampled_means(tasks: Iterable[np.ndarray]) -> np.ndarray:
    """Returns means [RESAMPLES, T] of the T `tasks`, whole numbers [n] of each one's questions,
    over as many of its questions drawn with replacement.

    Of few different numbers it does not matter which question was drawn but how often each number
    was: counts are drawn from the multinomial distribution, which is the same and costs nothing.
    Each call makes the same draws. Efron (1979), "Bootstrap methods: another look at the
    jackknife".
    """
    random = np.random.default_rng(0)
    columns = []
    for values in tasks:
        numbers, counts = np.unique(values, return_counts=True)
        drawn = random.multinomial(len(values), counts / len(values), size=RESAMPLES)
        columns.append(drawn @ numbers.astype(float) / len(values))
    return np.stack(columns, axis=1)


def bootstrap_p(differences: np.ndarray) -> float:
    """Returns the two-sided p-value of resampled `differences` [RESAMPLES] against 0: twice the
    share on the other side of it, at least 2 / (RESAMPLES + 1) (Davison and Hinkley, 1997,
    "Bootstrap Methods and their Application", sect. 4.2)."""
    below, above = int((differences <= 0).sum()), int((differences >= 0).sum())
    return min(1.0, 2 * (min(below, above) + 1) / (len(differences) + 1))
