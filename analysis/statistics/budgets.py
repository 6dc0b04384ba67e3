"""The steps that a baseline needs for a variant's result, of a baseline trained at several budgets.

Between budgets its result is the polynomial through them in the logarithm of the steps. Where that
of the means meets the variant's mean are the steps needed. The 95 % interval holds the steps at
which a paired t-test does not tell the baseline from the variant. A polynomial's value there is
linear in a seed's results at the budgets. So the test of a polynomial is exact for normal noise,
whatever the budgets of a seed have in common (Fieller 1954, "Some problems in interval
estimation"). Of a baseline that is no polynomial it does not hold the error of form, which grows
with the distance from a budget. Where the monotone curve PCHIP through measured means is the truth,
the interval covers ratios of 1.08 and 1.21 in 93 to 95 % and of 2.3 in 86 %
(`tests/analysis/test_budgets.py`). So the steps by PCHIP are given, too, and a number that they
move far is exploratory. Nothing is extrapolated: an end beyond the budgets is 0 or infinite.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from scipy import interpolate

from analysis.statistics.comparisons import ALPHA, Seeds, holm, paired
from analysis.statistics.intervals import Estimate, t_interval, tolerance

# Budgets, and seeds, from which on there is a number.
LEAST = 3
# The most that another form of the curve may move a number, in half-widths of its interval. Through
# measured means, numbers near a budget move by 0.1 or less, one amid two budgets by 0.27.
FORM = 0.25


@dataclass(frozen=True)
class Budgets:
    """A baseline's results, lower is better, over the seeds that it and a variant have.

    `steps` [m], ascending; `baseline` [m, n]; `variant` [n].
    """

    steps: np.ndarray
    baseline: np.ndarray
    variant: np.ndarray

    @property
    def turn(self) -> tuple[float, float] | None:
        """Returns a budget and the first larger one that is worse (paired t-test of each with the
        best before it, 0.05 after Holm), None if there is none: the baseline then overfits, and
        steps do not buy results."""
        seeds = [dict(enumerate(values)) for values in self.baseline]
        best = [int(np.argmin(self.baseline[:k].mean(axis=1))) for k in range(1, len(seeds))]
        compared = [paired(seeds[k], seeds[j]) for k, j in enumerate(best, 1)]
        p_values = holm([comparison.p for comparison in compared])
        for k, j, comparison, p in zip(range(1, len(seeds)), best, compared, p_values, strict=True):
            if p < ALPHA and comparison.difference > 0:
                return float(self.steps[j]), float(self.steps[k])
        return None

    @property
    def bend(self) -> tuple[float, float] | None:
        """Returns the first two neighbouring budgets between which the polynomial leaves their
        range by a t-test, None if there are none: more budgets are needed there."""
        for k in range(len(self.steps) - 1):
            places = np.geomspace(self.steps[k], self.steps[k + 1], 50)[1:-1]
            between = self._curve(places)
            above, _ = t_interval(between - self.baseline[k])
            _, below = t_interval(between - self.baseline[k + 1])
            within = tolerance(self.baseline.ravel()).item()
            if (above > within).any() or (below < -within).any():
                return float(self.steps[k]), float(self.steps[k + 1])
        return None

    def _curve(self, steps: np.ndarray) -> np.ndarray:
        """Returns the baseline's result at `steps` [...] by seed, [..., n]."""
        curves = interpolate.BarycentricInterpolator(np.log(self.steps), self.baseline)
        return np.asarray(curves(np.log(steps)))

    def differences(self, steps: np.ndarray) -> np.ndarray:
        """Returns the baseline's result at `steps` [...] minus the variant's, by seed, [..., n]."""
        return self._curve(steps) - self.variant


def of_seeds(baseline: Mapping[float, Seeds], variant: Seeds) -> Budgets:
    """Returns the results of a baseline by its steps, over the seeds that all have.

    Raises ValueError for fewer than three budgets or seeds.
    """
    steps = sorted(baseline)
    seeds = sorted(set(variant).intersection(*(baseline[step] for step in steps)))
    if min(len(steps), len(seeds)) < LEAST:
        raise ValueError(
            f"{len(steps)} budget(s) of the baseline, {len(seeds)} seed(s) that all have; three of "
            "each are the least"
        )
    return Budgets(
        np.array(steps, float),
        np.array([[baseline[step][seed] for seed in seeds] for step in steps]),
        np.array([variant[seed] for seed in seeds]),
    )


def needed(budgets: Budgets, equal: float) -> Estimate:
    """Returns the steps that the baseline needs for the variant's mean result, with their interval:
    0 for less than the least budget, infinite for more than the largest. At the budgets and at
    `equal` steps, those of equal compute, the interval agrees exactly with the paired t-test."""
    first, *_, last = budgets.steps.tolist()
    # Of 8-fold budgets these are 0.1 % apart, with straight lines between them.
    places = np.geomspace(first, last, 2001)
    # Where no FLOP are recorded `equal` is nan.
    equal = float(np.clip(np.nan_to_num(equal, nan=first), first, last))
    places = np.unique([*places[1:-1], *budgets.steps, equal])
    differences = budgets.differences(places)
    low, high = t_interval(differences)
    return Estimate(
        _crossing(places, differences.mean(axis=-1), 0.0, math.inf),
        _crossing(places, low, 0.0, last),
        _crossing(places[::-1], -high[::-1], math.inf, first),
    )


def by_pchip(budgets: Budgets) -> float:
    """Returns the steps that the baseline needs for the variant's mean result by the monotone cubic
    through its means in the logarithm of the steps (PCHIP; Fritsch & Butland 1984, "A method for
    constructing local monotone piecewise cubic interpolants"); nan beyond the budgets."""
    places = np.geomspace(budgets.steps[0], budgets.steps[-1], 2001)
    means = budgets.baseline.mean(axis=1)
    curve = interpolate.PchipInterpolator(np.log(budgets.steps), means)
    return _crossing(places, curve(np.log(places)) - budgets.variant.mean(), math.nan, math.nan)


def is_of_form(needed: Estimate, other: float) -> bool:
    """Returns whether steps within the budgets depend on the curve's form: those by an `other` one
    are further away than FORM times the interval's shorter side, in logarithms."""
    if not 0 < needed.value < math.inf:
        return False
    with np.errstate(divide="ignore"):
        away = np.abs(np.log([needed.low, needed.high, other]) - math.log(needed.value))
    return bool(away[2] > FORM * away[:2].min())


def _crossing(places: np.ndarray, values: np.ndarray, before: float, behind: float) -> float:
    """Returns the first place where `values`, straight lines between the places, are 0 or less;
    `before` if they are from the first place on, `behind` if nowhere."""
    reached = np.flatnonzero(values <= 0)
    if not reached.size:
        return behind
    if not reached[0]:
        return before
    ends = slice(reached[0] - 1, reached[0] + 1)
    return float(np.interp(0.0, -values[ends], places[ends]))
