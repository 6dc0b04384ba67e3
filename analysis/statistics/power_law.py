"""Power laws of the loss in the number of parameters.

f(n) = a n^b (Kaplan et al. 2020, "Scaling laws for neural language models", eq. 1.1, with
b = -alpha and a = n_c^alpha). No irreducible loss is fitted: the three to five sizes of the
paper's study do not determine a third parameter.

The parameters that a variant saves: n solves a n^b = loss for each of the two, and the share saved
is 1 - n of the variant / n of the baseline. Its interval is the delta method's, from the joint
covariance of the two fits. Their errors are paired where both were fitted to the same studies with
the same seeds: what moves both losses of a study alike (data order, its seeds) then cancels out.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from analysis.statistics.intervals import t_bounds


@dataclass(frozen=True)
class PowerLaw:
    """f(n) = a n^b, fitted as log f = log a + b log n.

    `low` and `high` bound the 95 % t interval of b with `freedom` = sizes - 2 degrees of freedom,
    nan for two sizes. `smallest` and `largest` are the ends of what was fitted. `residuals` [sizes]
    of the logs, times the root of the weights, and `solve` [2, sizes], which takes such residuals
    to errors of (log a, b), are in the order given.
    """

    log_a: float
    b: float
    freedom: int
    low: float
    high: float
    smallest: float
    largest: float
    residuals: np.ndarray
    solve: np.ndarray

    def loss(self, parameters: float) -> float:
        """Returns f(n)."""
        return math.exp(self.log_a + self.b * math.log(parameters))

    def log_parameters(self, loss: float) -> float:
        """Returns log n with f(n) = `loss`; b must not be 0."""
        return (math.log(loss) - self.log_a) / self.b

    @property
    def falls(self) -> bool:
        """Returns whether the loss falls with size, its interval, if there is one, included.
        Otherwise solving a n^b = loss gives any number."""
        return self.b < 0 and not self.high >= 0


def fit(
    parameters: Sequence[float], losses: Sequence[float], weights: Sequence[float] | None = None
) -> PowerLaw:
    """Returns the fit to one point per size by least squares on the logs.

    `losses` are positive, each a geometric mean over seeds where there are several, `weights` the
    numbers of seeds (1 each unless given): an error variance of s^2 / weight, s from the residuals.
    As scipy.stats.linregress with equal weights. There are two sizes or more. Raises ValueError
    for numbers that have no logarithm.
    """
    n, loss = np.asarray(parameters, float), np.asarray(losses, float)
    weight = np.ones_like(n) if weights is None else np.asarray(weights, float)
    if not (np.isfinite(n) & (n > 0) & np.isfinite(loss) & (loss > 0) & (weight > 0)).all():
        raise ValueError(f"sizes, losses and weights must be above 0: {n}, {loss}, {weight}")
    design = np.stack([np.ones_like(n), np.log(n)], axis=1)
    inverse = np.linalg.inv(design.T @ (weight[:, None] * design))
    root = np.sqrt(weight)
    solve = inverse @ design.T * root
    log_a, b = solve @ (root * np.log(loss))
    residuals = root * (np.log(loss) - design @ np.array([log_a, b]))

    freedom = len(n) - 2
    variance = float(residuals @ residuals) / freedom if freedom else math.nan
    low, high = t_bounds(float(b), math.sqrt(variance * inverse[1, 1]), freedom)
    return PowerLaw(
        log_a=float(log_a),
        b=float(b),
        freedom=freedom,
        low=float(low),
        high=float(high),
        smallest=float(n.min()),
        largest=float(n.max()),
        residuals=residuals,
        solve=solve,
    )


def covariance(first: PowerLaw, second: PowerLaw) -> np.ndarray:
    """Returns the covariance [2, 2] of (log a, b) of `first` with that of `second`, two fits
    whose k-th points share what moved them, or one fit twice; they need `freedom`.

    By the covariance of the residuals (seemingly unrelated regressions, Zellner 1962, "An efficient
    method of estimating seemingly unrelated regressions", J. Am. Stat. Assoc. 57).
    """
    shared = float(first.residuals @ second.residuals) / first.freedom
    return np.asarray(shared * first.solve @ second.solve.T)


@dataclass(frozen=True)
class Saving:
    """Parameters to reach a loss: those of the baseline and of the variant, and the `share` saved,
    1 - of_variant / of_baseline.

    `low` and `high` bound the 95 % interval of the share, nan if a fit has no interval.
    `is_extrapolated`: a size lies outside of those that were fitted. `is_paired` says whether the
    errors of the two fits count as paired.
    """

    of_baseline: float
    of_variant: float
    share: float
    low: float
    high: float
    is_extrapolated: bool
    is_paired: bool


def between(baseline: PowerLaw, variant: PowerLaw, loss: float, is_paired: bool = False) -> Saving:
    """Returns how many fewer parameters `variant` takes than `baseline` to reach `loss`.

    `is_paired`: the k-th sizes of the two fits are of one study with the same seeds.

    Simulated were 1,200 pairs of studies of 234 M to 2.2 B parameters, with b = -0.05 and a true
    share of 15 %. Log losses had an sd of 0.0005, 0.003 or 0.01, of which none or 80 % of the
    variance was shared. Of the fits that fall, the 95 % interval holds the true share in

        five sizes   paired: 95 to 96 %; not paired: 96 to 97 %, where noise is shared 100 %
        three sizes  paired: 96 to 99 %; not paired: 96 to 97 %, where noise is shared 99 %

    but with three sizes and an sd of 0.01, where one simulated study in six to ten has fits that
    fall, in 90 to 91 % (paired): those are the ones whose slopes came out steep. A parametric
    bootstrap of the two fits held it in 94 to 96 %, 98 to 99 %, 96 to 98 % and 100 %.
    """
    laws = (baseline, variant)
    logs = [law.log_parameters(loss) for law in laws]
    low, high = _log_interval(baseline, variant, loss, is_paired)
    with np.errstate(over="ignore"):  # a nearly flat law reaches the loss at no size
        sizes = [float(size) for size in np.exp(logs)]
        shares = [-float(np.expm1(log)) for log in (logs[1] - logs[0], high, low)]
    return Saving(
        of_baseline=sizes[0],
        of_variant=sizes[1],
        share=shares[0],
        low=shares[1],
        high=shares[2],
        is_extrapolated=not all(
            law.smallest <= size <= law.largest for law, size in zip(laws, sizes, strict=True)
        ),
        is_paired=is_paired,
    )


def _log_interval(
    baseline: PowerLaw, variant: PowerLaw, loss: float, is_paired: bool
) -> tuple[float, float]:
    """Returns the 95 % interval of log(variant n / baseline n) by the delta method: d log n /
    d log a = -1/b, d log n / d b = -log n / b. Degrees of freedom: sizes - 2 where paired, else
    Welch and Satterthwaite's."""
    laws = (baseline, variant)
    if not all(law.freedom for law in laws):
        return math.nan, math.nan
    difference = variant.log_parameters(loss) - baseline.log_parameters(loss)
    gradients = [np.array([-1.0, -law.log_parameters(loss)]) / law.b for law in laws]
    parts = zip(gradients, laws, strict=True)
    variances = np.array([g @ covariance(law, law) @ g for g, law in parts])
    total, freedom = variances.sum(), float(baseline.freedom)
    if is_paired:
        total -= 2 * gradients[0] @ covariance(baseline, variant) @ gradients[1]
    else:
        freedom = total**2 / sum(variances**2 / [law.freedom for law in laws])
    low, high = t_bounds(difference, math.sqrt(max(total, 0.0)), freedom)
    return float(low), float(high)
