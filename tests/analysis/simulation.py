"""Simulated studies whose truth is known, through the functions that the tables call.

  python -m tests.analysis.simulation

prints how often a study without any difference gives a verdict, by seeds, noise and pairing.

A study is a baseline and 7 variants over n seeds; its noise is normal or mildly skewed (skewness
0.5, a gamma distribution's), half of its variance common to all variants of a seed, so that the
paired differences have sd 1. Unpaired designs are the same without the common part; in some of
them the variants have fewer seeds than the baseline, of another sd.

Two more simulations are of the protocol around the tests, without any difference. Somebody looks
after each seed and stops at the first verdict (FIRST to PLANNED seeds), as the tables do not allow:
they withhold the verdicts of an unfinished study. And a study with a search: the
baseline trains POINTS equally good hyperparameter points on its tuning seeds, the best median is
chosen, and the chosen point is compared on seeds that begin with the tuning seeds, or behind them.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from analysis.compare import sensitivity
from analysis.statistics import comparisons, looks
from sweeps.study import selection

VARIANTS = 7
SKEWNESS = 0.5
SHARED = 0.5
# Unpaired studies whose permutations are held at once.
BATCH = 250
# Looks: from the first number of seeds to the planned one.
FIRST, PLANNED = 3, 12
# Points of a search.
POINTS = 8


@dataclass(frozen=True)
class Design:
    """How a study is made: seeds, whether the noise is skewed, whether seeds are shared, how many
    variants stand beside the baseline. Unpaired ones may have `n_baseline` seeds of the baseline
    (n unless given), and variants of another `spread`, their sd, than the baseline's 1."""

    n: int
    skewed: bool = False
    paired: bool = True
    variants: int = VARIANTS
    n_baseline: int | None = None
    spread: float = 1.0


def noise(rng: np.random.Generator, shape: Sequence[int], skewed: bool) -> np.ndarray:
    """Returns random numbers of `shape` with mean 0 and sd 1; skewed: from a gamma distribution of
    shape 4 / skewness^2."""
    if not skewed:
        return rng.standard_normal(shape)
    k = 4 / SKEWNESS**2
    return (rng.standard_gamma(k, shape) - k) / math.sqrt(k)


def studies(
    rng: np.random.Generator, design: Design, runs: int, effects: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the variants' numbers [runs, variants, n], whose means are `effects` [variants], and
    the baseline's [runs, 1, n or n_baseline] with mean 0."""
    if not design.paired:
        values = design.spread * noise(rng, (runs, design.variants, design.n), design.skewed)
        baseline = noise(rng, (runs, 1, design.n_baseline or design.n), design.skewed)
        return values + effects[:, None], baseline
    common = noise(rng, (runs, 1, design.n), design.skewed)
    own = noise(rng, (runs, design.variants + 1, design.n), design.skewed)
    values = math.sqrt(SHARED) * common + math.sqrt(1 - SHARED) * own
    return values[:, 1:] + effects[:, None], values[:, :1]


def verdicts(
    rng: np.random.Generator, design: Design, runs: int, effects: np.ndarray
) -> np.ndarray:
    """Returns the verdicts [runs, variants], lower being better, after Holm's correction."""
    found = []
    size = runs if design.paired else BATCH
    for start in range(0, runs, size):
        count = min(size, runs - start)
        variants, baseline = studies(rng, design, count, effects)
        if design.paired:
            p = comparisons.paired_p(variants - baseline)
        else:
            shape = (*variants.shape[:-1], baseline.shape[-1])
            p = comparisons.unpaired_p(variants, np.broadcast_to(baseline, shape))
        difference = variants.mean(axis=-1) - baseline.mean(axis=-1)
        found.append(np.vectorize(comparisons.verdict)(difference, comparisons.holm(p), True))
    return np.concatenate(found)


def false_positives(
    rng: np.random.Generator, design: Design, runs: int, real: float = 0.0, count: int = 0
) -> float:
    """Returns the share of studies in which any variant without an effect is told apart from the
    baseline, while the first `count` variants have the effect `real`."""
    effects = np.where(np.arange(design.variants) < count, real, 0.0)
    told = verdicts(rng, design, runs, effects)[:, count:] != "cannot tell"
    return float(told.any(axis=1).mean())


def stopped_early(
    rng: np.random.Generator, design: Design, runs: int, declared: tuple[int, ...] = ()
) -> float:
    """Returns the share of studies without a difference that give a verdict at some look, each
    look being the test of all seeds until then: at those that are `declared`, by their thresholds,
    else after each seed from FIRST, by Holm's."""
    told = np.zeros(runs, bool)
    variants, baseline = studies(rng, design, runs, np.zeros(design.variants))
    by_look = looks.thresholds(declared, comparisons.ALPHA / design.variants)
    for n, threshold in (by_look or dict.fromkeys(range(FIRST, design.n + 1), 0.0)).items():
        p = comparisons.paired_p((variants - baseline)[..., :n])
        told |= (comparisons.corrected(p, 0, threshold) < comparisons.ALPHA).any(axis=1)
    return float(told.mean())


def searched(
    rng: np.random.Generator, tuning: int, n: int, runs: int, fresh: bool
) -> tuple[float, float, float]:
    """Returns the shares of studies without a difference in which a variant is called worse, and
    better, and the mean of the baseline's compared numbers (its bias, in SDs of one seed's noise).

    `fresh`: the `n` compared seeds lie behind the `tuning` seeds. Half of the noise is common to
    all variants and points of a seed, the rest is a trial's own; validation is test, the worst
    case.
    """
    seeds = tuning + n
    common = rng.standard_normal((runs, 1, seeds))
    own = rng.standard_normal((runs, POINTS + VARIANTS, seeds))
    values = math.sqrt(SHARED) * common + math.sqrt(1 - SHARED) * own
    searches = values[:, :POINTS, :tuning].tolist()
    chosen = [selection.best_point(dict(enumerate(points)), "min") for points in searches]
    baseline = values[np.arange(runs), chosen][:, None, :]
    compared = slice(tuning, None) if fresh else slice(0, n)
    differences = (values[:, POINTS:] - baseline)[..., compared]
    p = comparisons.holm(comparisons.paired_p(differences))
    told = np.vectorize(comparisons.verdict)(differences.mean(axis=-1), p, True)
    shares = [float((told == word).any(axis=1).mean()) for word in ("worse", "better")]
    bias = float(baseline[..., compared].mean()) / math.sqrt(1 - SHARED)
    return shares[0], shares[1], bias


def power_reached(rng: np.random.Generator, design: Design, runs: int) -> float:
    """Returns the share of studies in which the one variant with the detectable effect is judged
    better, the others having none. Seeds are paired."""
    alpha = comparisons.ALPHA / design.variants
    effect = sensitivity.detectable(math.sqrt(2 * (1 - SHARED)), design.n, alpha)
    effects = np.where(np.arange(design.variants) == 0, -effect, 0.0)
    return float((verdicts(rng, design, runs, effects)[:, 0] == "better").mean())


def monte_carlo_error(share: float, runs: int) -> float:
    """Returns three standard errors of a share that `runs` simulations estimate."""
    return 3 * math.sqrt(share * (1 - share) / runs)


def main() -> None:
    """Prints the rate of false verdicts of each design; permutations cost a thousand times t."""
    for skewed, n, paired in itertools.product((False, True), (3, 5, 10, 20), (True, False)):
        rng, design = np.random.default_rng([0, skewed, n, paired]), Design(n, skewed, paired)
        wrong = false_positives(rng, design, 20_000 if paired else 400)
        print(f"{'skewed' if skewed else 'normal'} {n:2d} {'paired' if paired else ''} {wrong:.1%}")


if __name__ == "__main__":
    main()
