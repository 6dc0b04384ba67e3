"""The permutation test of two groups of seeds that are not paired, by a studentised statistic.

Studentised, because a permutation test of the bare difference is not valid where the groups'
variances differ: Janssen (1997), "Studentized permutation tests for non-iid hypotheses and the
generalized Behrens-Fisher problem"; Chung and Romano (2013), "Exact and asymptotically robust
permutation tests".

Asymptotically: with few seeds it is not. Of normal seeds without a difference, 2 with sd 2 against
8 with sd 0.2, it told 42% apart, so `comparisons.unpaired_p` sets Welch's t-test beside it.
"""

import math

import numpy as np

from analysis.statistics.intervals import merged

# All ways to deal the seeds out are tried where these are no more than this (7 and 7: 3,432; 8 and
# 8: 12,870), else this many seeded random ones.
PERMUTATIONS = 9999
# The least standard error, in units of the range of the values: below it is rounding.
_LEAST_ERROR = 1e-9
# Numbers that are held at once: 64 MB.
_HELD = 2**23


def deals(n: int, m: int) -> int:
    """Returns in how many ways n + m seeds can be dealt into groups of `n` and `m`."""
    return math.comb(n + m, n)


def is_exact(n: int, m: int) -> bool:
    """Returns whether all the deals are tried."""
    return deals(n, m) <= PERMUTATIONS


def smallest_p(n: int, m: int) -> float:
    """Returns the least two-sided p-value that groups of `n` and `m` can reach: 2 / 252 for 5 and
    5; of R random permutations 2 / (R + 1) (Phipson and Smyth, 2010)."""
    return min(1.0, 2 / (deals(n, m) if is_exact(n, m) else PERMUTATIONS + 1))


def seeds_to_reach(p: float) -> int | None:
    """Returns the least n of two equal groups whose smallest p-value is below `p`, None where no
    number of seeds brings it below."""
    if p <= 2 / (PERMUTATIONS + 1):
        return None
    return next(n for n in range(1, PERMUTATIONS) if smallest_p(n, n) < p)


def p_values(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Returns the two-sided p-values [...] of `first` [..., n] against `second` [..., m], n and
    m > 1: twice the smaller tail, as scipy.stats.permutation_test gives it."""
    from scipy import stats

    n = first.shape[-1]
    both = merged(np.concatenate([first, second], axis=-1))
    centred = both - both.mean(axis=-1, keepdims=True)
    # Equal values have no scale: every deal is then as extreme as the one there is, and p is 1.
    spread = np.ptp(both, axis=-1, keepdims=True) > 0
    unit = np.where(spread, centred, 0.0) / np.where(spread, np.ptp(both, -1, keepdims=True), 1.0)
    result = stats.permutation_test(
        (unit[..., :n], unit[..., n:]),
        _welch,
        n_resamples=PERMUTATIONS,
        batch=max(1, _HELD // unit.size),
        vectorized=True,
        axis=-1,
        rng=np.random.default_rng(0),
    )
    return np.asarray(result.pvalue)


def _welch(first: np.ndarray, second: np.ndarray, axis: int) -> np.ndarray:
    """Returns Welch's t. Rounded, so that deals which are equal but for the order of a sum are."""
    squares = (group.var(axis=axis, ddof=1) / group.shape[axis] for group in (first, second))
    error = np.sqrt(sum(squares))
    difference = np.round(first.mean(axis=axis) - second.mean(axis=axis), 12)
    return np.round(difference / np.maximum(error, _LEAST_ERROR), 9)
