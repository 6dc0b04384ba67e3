"""Makes `analysis/reference/unpaired_power.csv` anew: how much larger than Student's t-test's the
smallest difference is that the test of unpaired seeds (the larger p of permutations and Welch's)
finds with 80 % power, for 2 to 12 seeds of a side and 1 to 7 variants.

  python -m tests.analysis.power_table

Each cell is found by simulated studies with normal noise of equal variance. The power of Student's
t-test is known exactly and is simulated on the same studies, so that its error is taken off. It
takes minutes.
"""

import itertools
import math
from collections.abc import Sequence

import numpy as np
from scipy import special

from analysis.compare import sensitivity
from analysis.statistics import comparisons

SEEDS = range(2, 13)
VARIANTS = range(1, 8)
STUDIES = 4_000
# Studies whose permutations are held at once.
BATCH = 100
# Rounds of the search for 80 % power: each narrows the bracket by interpolation.
ROUNDS = 3


def deals(n: int, m: int, rng: np.random.Generator) -> np.ndarray:
    """Returns which of `n` + `m` seeds are dealt to the first group, [deals, n + m] of 0 and 1:
    every deal, or PERMUTATIONS random ones where these are fewer."""
    if math.comb(n + m, n) <= comparisons.PERMUTATIONS:
        chosen = np.array(list(itertools.combinations(range(n + m), n)))
    else:
        order = rng.random((comparisons.PERMUTATIONS, n + m)).argsort(axis=1)
        chosen = order[:, :n]
    dealt = np.zeros((len(chosen), n + m))
    np.put_along_axis(dealt, chosen, 1.0, axis=1)
    return dealt


def permutation_p(first: np.ndarray, second: np.ndarray, dealt: np.ndarray) -> np.ndarray:
    """Returns p-values [studies] as `comparisons.permutation_p` of `first` [studies, n] against
    `second` [studies, m], by matrix products: ten times as fast."""
    n, m = first.shape[1], second.shape[1]
    both = np.concatenate([first, second], axis=1)
    both = (both - both.mean(axis=1, keepdims=True)) / np.ptp(both, axis=1, keepdims=True)
    parts = []
    for values in np.array_split(both, math.ceil(len(both) / BATCH)):
        of_deals = _welch_t(dealt @ values.T, dealt @ values.T**2, values, n, m)
        whole = values[:, :n]
        statistic = _welch_t(whole.sum(axis=1), (whole**2).sum(axis=1), values, n, m)
        tails = [
            (of_deals >= statistic - 1e-9).sum(axis=0),
            (of_deals <= statistic + 1e-9).sum(axis=0),
        ]
        parts.append(np.minimum(*tails))
    added = int(len(dealt) < math.comb(n + m, n))  # the deal that there is, among random ones
    return np.minimum(1.0, 2 * (np.concatenate(parts) + added) / (len(dealt) + added))


def _welch_t(
    total: np.ndarray, squares: np.ndarray, values: np.ndarray, n: int, m: int
) -> np.ndarray:
    """Returns Welch's t by the `total` [..., studies] and the `squares` of the first group."""
    rest, others = values.sum(axis=1) - total, (values**2).sum(axis=1) - squares
    variance = (squares - total**2 / n) / (n - 1) / n + (others - rest**2 / m) / (m - 1) / m
    return np.asarray((total / n - rest / m) / np.sqrt(np.maximum(variance, 1e-18)))


def p_values(
    first: np.ndarray, second: np.ndarray, dealt: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the p-values [studies] of the test that tables make, and of Student's t-test."""
    n, m = first.shape[1], second.shape[1]
    difference, error, degrees = comparisons._welch(first, second)
    welch = 2 * special.stdtr(degrees, -np.abs(difference / error))
    pooled = (n * first.var(axis=1) + m * second.var(axis=1)) / (n + m - 2)
    student = difference / np.sqrt(pooled * (1 / n + 1 / m))
    made = np.maximum(permutation_p(first, second, dealt), welch)
    return made, np.asarray(2 * special.stdtr(n + m - 2, -np.abs(student)))


class Cell:
    """The simulated studies of `n` against `m` seeds."""

    def __init__(self, n: int, m: int, studies: int, seed: int) -> None:
        rng = np.random.default_rng([seed, n, m])
        self.n, self.m, self.dealt = n, m, deals(n, m, rng)
        self.first, self.second = rng.normal(size=(studies, n)), rng.normal(size=(studies, m))

    def power(self, effect: float, alpha: float) -> float:
        """Returns the power of the test at `alpha` for a difference of `effect` SDs."""
        made, student = p_values(self.first + effect, self.second, self.dealt)
        exact = sensitivity.power_at(effect, 1.0, self.n, alpha, False, self.m)
        return float((made < alpha).mean() - (student < alpha).mean()) + exact

    def factor(self, variants: int) -> float:
        """Returns the difference that is found with 80 % power at 0.05 / `variants`, over that of
        Student's t-test; inf where none is."""
        alpha = comparisons.ALPHA / variants
        if comparisons.smallest_p(self.n, self.m) >= alpha:
            return math.inf
        start = sensitivity.detectable(1.0, self.n, alpha, paired=False, n_baseline=self.m)
        ends = [(start * 0.9, 0.0), (start, self.power(start, alpha))]
        while ends[-1][1] < sensitivity.POWER:
            larger = ends[-1][0] * 1.15
            ends = [ends[-1], (larger, self.power(larger, alpha))]
        for _ in range(ROUNDS):
            effect = _between(ends)
            power = self.power(effect, alpha)
            ends[int(power >= sensitivity.POWER)] = (effect, power)
        return max(1.0, _between(ends) / start)


def _between(ends: Sequence[tuple[float, float]]) -> float:
    """Returns the effect of 80 % power by a straight line in normal quantiles."""
    effects, powers = zip(*ends, strict=True)
    low, middle, high = special.ndtri(np.clip([powers[0], sensitivity.POWER, powers[1]], 0.2, 0.99))
    share = (middle - low) / (high - low) if high > low else 0.5
    return float(effects[0] + np.clip(share, 0.02, 0.98) * (effects[1] - effects[0]))


def main() -> None:
    """Prints the table as CSV."""
    print("n", "m", *VARIANTS, sep=",")
    for n, m in itertools.combinations_with_replacement(SEEDS, 2):
        cell = Cell(n, m, STUDIES, seed=0)
        factors = [f"{cell.factor(variants):.3f}" for variants in VARIANTS]
        print(n, m, *factors, sep=",", flush=True)


if __name__ == "__main__":
    main()
