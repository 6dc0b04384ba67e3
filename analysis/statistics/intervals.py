"""Summaries of numbers over seeds, with Student's t interval of the mean.

With 3 to 20 seeds Student's t interval holds the mean as often as it says, also where the noise is
mildly skewed (docs/analysis.md has its rates), and the bootstrap's does not.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy import special

CONFIDENCE = 0.95
# The 97.5% point of the normal distribution.
NORMAL = 1.959963984540054
# Values this close, in units of their size, are one value with rounding error: metrics are computed
# in single precision, whose numbers are 6e-8 to 1.2e-7 of their size apart, and averaged over
# batches. Taken as different, differences of one image in 400 had p = 6e-11 for a spread of 3e-8.
ROUNDING = 1e-6


@dataclass(frozen=True)
class Estimate:
    """A number and the bounds of its 95% interval, nan if undefined."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Summary:
    """n values over seeds. `sd` has n - 1 in its denominator, nan for n = 1.

    `low` and `high` bound the 95% interval of the mean by `method`: `t` (Student's), `equal` (all
    values equal: that value), `none` (n = 1: no interval, nan).
    """

    n: int
    median: float
    mean: float
    sd: float
    low: float
    high: float
    method: Literal["t", "equal", "none"]


def summarise(values: Sequence[float]) -> Summary:
    """Returns the summary of one finite number per seed, at least one."""
    array = np.asarray(values, dtype=float)
    value = float(array[0])
    if array.size == 1:
        return Summary(1, value, value, math.nan, math.nan, math.nan, "none")
    if all_equal(array):
        return Summary(array.size, value, value, 0.0, value, value, "equal")
    low, high = map(float, t_interval(array))
    sd = float(array.std(ddof=1))
    return Summary(array.size, float(np.median(array)), float(array.mean()), sd, low, high, "t")


def t_interval(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the bounds [...] of the 95% interval of the mean of `values` [..., n], n > 1.

    Student (1908), "The probable error of a mean": mean +- t(n - 1) sd / sqrt(n).
    """
    n = values.shape[-1]
    error = values.std(axis=-1, ddof=1) / math.sqrt(n)
    return t_bounds(values.mean(axis=-1), error, n - 1)


def t_bounds(
    mean: np.ndarray | float, error: np.ndarray | float, degrees: np.ndarray | float
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the bounds [...] of the 95% interval about `mean` [...], whose standard error is
    `error` [...] with `degrees` [...] of freedom."""
    half = special.stdtrit(degrees, (1 + CONFIDENCE) / 2) * error
    return mean - half, mean + half


def widened(estimate: Estimate, half: float) -> Estimate:
    """Returns the interval of `estimate`, which may be 0 or infinite, times an independent factor
    about 1 whose logarithm has the interval ± `half`.

    On the log scale an end is as far from the value as the root of both squared distances (Zou and
    Donner 2008, "Construction of confidence intervals about effect measures: a simple general
    approach"); of a value without a finite logarithm the ends move by `half`, which is more.
    """
    away = np.array([0.0, -1.0, 1.0])
    with np.errstate(divide="ignore"):
        logs = np.log([estimate.value, estimate.low, estimate.high])
    if np.isfinite(logs[0]):
        logs = logs[0] + away * np.hypot(logs - logs[0], half)
    else:
        logs += away * half
    return Estimate(*np.exp(logs).tolist())


def two_way(differences: np.ndarray, weights: np.ndarray) -> Estimate:
    """Returns Σ differences / Σ weights, the mean over seeds, with its 95 % interval over seeds and
    items: a t interval with Satterthwaite's degrees of freedom.

    With the same items in every run, a difference varies by seed, by item, and by both at once. The
    interval over seeds holds the first and the third: it is of these items. Other items of the same
    kind add the second. All three add up to the variance of the seeds' means plus that of the
    items' means minus that of the cells, which is in both (Cameron, Gelbach and Miller 2011,
    "Robust inference with multiway clustering"). A bootstrap that resamples seeds and items at once
    counts the third three times (Owen 2007, "The pigeonhole bootstrap"): where it is the largest,
    as of images, its intervals are up to 1.7 times too wide.

    differences [n, N], n and N > 1: of each seed and item, values of the one variant minus those of
    the other; weights [N] are common to all.
    """
    n, count = differences.shape
    # As if each item had the weight 1, to first order.
    mean = float(differences.sum(axis=1).mean() / weights.sum())
    cells = (differences - mean * weights) / weights.mean()
    of_seeds, of_items = cells.mean(axis=1, keepdims=True), cells.mean(axis=0)
    both = np.sum((cells - of_seeds - of_items) ** 2) / ((n - 1) * (count - 1)) / (n * count)
    # Never 0, which has no degrees of freedom.
    by_seed = of_seeds.var(ddof=1) / n + 1e-150
    by_item = max(0.0, of_items.var(ddof=1) / count - both)
    total = by_seed + by_item
    degrees = total**2 / (by_seed**2 / (n - 1) + by_item**2 / (count - 1))
    return Estimate(mean, *map(float, t_bounds(mean, math.sqrt(total), degrees)))


def tolerance(values: np.ndarray) -> np.ndarray:
    """Returns [..., 1]: how far apart numbers computed from these `values` [..., n] may be and
    still be equal: ROUNDING times the largest, or times 1 where all are smaller, since an error
    is 1 - accuracy and has the rounding of the accuracy."""
    largest = np.abs(values).max(axis=-1, keepdims=True)
    return np.asarray(ROUNDING * np.maximum(1.0, largest))


def all_equal(values: np.ndarray, within: float | None = None) -> bool:
    """Returns whether `values` [n] are one value, but for rounding: no more than `within` apart,
    their own `tolerance` unless given (that of differences is their terms')."""
    return bool(np.ptp(values) <= (tolerance(values).item() if within is None else within))


def merged(values: np.ndarray) -> np.ndarray:
    """Returns `values` [..., n] with those that are equal but for rounding made equal: each to
    the least of its neighbours in order that are within `tolerance`."""
    order = np.argsort(values, axis=-1)
    ascending = np.take_along_axis(values, order, axis=-1)
    new = np.diff(ascending, axis=-1, prepend=-np.inf) > tolerance(values)
    least = np.maximum.accumulate(np.where(new, ascending, -np.inf), axis=-1)
    result = np.empty_like(ascending)
    np.put_along_axis(result, order, least, axis=-1)
    return result


def percentile_interval(means: np.ndarray) -> tuple[float, float]:
    """Returns the 95% percentile interval of resampled `means` [resamples]."""
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(means, (tail, 1 - tail))
    return float(low), float(high)


def deviations(values: Sequence[Sequence[float]] | np.ndarray) -> tuple[float, float]:
    """Returns two standard deviations (n - 1) of `values` [seeds, checkpoints], never mixed: over
    checkpoints, the mean of the seeds' own, nan for one checkpoint, and over seeds, that of their
    means over checkpoints, nan for one seed."""
    table = np.asarray(values, float)
    seeds, checkpoints = table.shape
    over_checkpoints = table.std(axis=1, ddof=1).mean() if checkpoints > 1 else np.nan
    over_seeds = table.mean(axis=1).std(ddof=1) if seeds > 1 else np.nan
    return float(over_checkpoints), float(over_seeds)
