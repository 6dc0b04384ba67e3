"""Intervals of a difference that is measured on items: over seeds, and over seeds and items.

With the same items in every run, a difference varies in three ways: by seed, by item, and by both
at once. The interval over seeds holds the first and the third: it is of these items. Other items of
the same kind would add the second. All three variances add up to that of the seeds' means plus that
of the items' means minus that of the cells, which is in both (Cameron, Gelbach and Miller 2011,
"Robust inference with multiway clustering"; Owen 2007, "The pigeonhole bootstrap"). A bootstrap
that resamples seeds and items at once counts the third three times (Owen, theorem 3): of images,
where it is the largest, its intervals are up to 1.7 times too wide.
"""

import math

import numpy as np

from analysis.statistics.intervals import Estimate, t_bounds


def two_way(differences: np.ndarray, weights: np.ndarray) -> Estimate:
    """Returns Σ differences / Σ weights, the mean over seeds, with its 95 % interval over seeds and
    items: a t interval with Satterthwaite's degrees of freedom.

    differences [n, N], n and N > 1: of each seed and item, values of the one variant minus those of
    the other; weights [N] are common to all.
    """
    n, count = differences.shape
    # As if each item had the weight 1, to first order.
    by_seed = differences.sum(axis=1) / weights.sum()
    mean = float(by_seed.mean())
    cells = (differences - mean * weights) / weights.mean()
    of_seeds, of_items = (cells.mean(axis=axis) for axis in (1, 0))
    rest = cells - of_seeds[:, None] - of_items
    both = np.sum(rest**2) / ((n - 1) * (count - 1)) / (n * count)
    variances = of_seeds.var(ddof=1) / n, max(0.0, of_items.var(ddof=1) / count - both)
    total = sum(variances)
    below = variances[0] ** 2 / (n - 1) + variances[1] ** 2 / (count - 1)
    if not total:
        return Estimate(mean, mean, mean)
    low, high = t_bounds(mean, math.sqrt(total), total**2 / below)
    return Estimate(mean, float(low), float(high))
