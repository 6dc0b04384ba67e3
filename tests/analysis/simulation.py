"""Simulated studies whose truth is known, through the functions that the tables call.

  python -m tests.analysis.simulation [--runs=20000] [--seed=0]

prints how often the 95% intervals hold what they should, how often a study without any difference
gives a verdict, and how often the difference that `sensitivity.detectable` names is found. A study
is a baseline and 7 variants over n seeds; its noise is normal or mildly skewed (skewness 0.5, a
gamma distribution's), half of its variance common to all variants of a seed, so that the paired
differences have sd 1. Unpaired designs are the same without the common part; in some of them the
variants have fewer seeds than the baseline, of another sd (UNEQUAL).
"""

import argparse
import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from analysis.compare import sensitivity
from analysis.statistics import comparisons, intervals
from workloads import arguments

SEEDS = (3, 5, 10, 20)
VARIANTS = 7
SKEWNESS = 0.5
SHARED = 0.5
RUNS = 20_000
# Seeds of a variant and of the baseline, and the variants' sd (the baseline's is 1).
UNEQUAL = ((5, 5, 10.0), (3, 9, 10.0), (3, 9, 0.1), (4, 12, 10.0), (2, 8, 4.0))
# Permutations cost thousands of times what t does.
SLOW_RUNS = {"exact": 2_000, "random": 400}
BATCH = 250


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

    @property
    def sd(self) -> float:
        """Returns the true sd that `power` is asked with: of paired differences, or of a group."""
        return math.sqrt(2 * (1 - SHARED)) if self.paired else 1.0


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


def coverage_of_mean(rng: np.random.Generator, design: Design, runs: int) -> float:
    """Returns how often the interval of the mean holds the true one."""
    return _held(*intervals.t_interval(noise(rng, (runs, design.n), design.skewed)), 0.0)


def coverage_of_difference(
    rng: np.random.Generator, design: Design, runs: int, effect: float = 1.0
) -> float:
    """Returns how often the interval of a difference holds the true one, `effect`."""
    effects = np.full(design.variants, effect)
    variants, baseline = studies(rng, design, runs, effects)
    bounds = (
        intervals.t_interval(variants - baseline)
        if design.paired
        else comparisons.welch_interval(variants, baseline)
    )
    return _held(*bounds, effect)


def verdicts(
    rng: np.random.Generator, design: Design, runs: int, effects: np.ndarray
) -> np.ndarray:
    """Returns the verdicts [runs, variants], lower being better, after Holm's correction."""
    found = []
    for count in _batches(runs, runs if design.paired else BATCH):
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


def power_reached(rng: np.random.Generator, design: Design, runs: int) -> float:
    """Returns the share of studies in which the one variant with the detectable effect is judged
    better, the others having none."""
    alpha = comparisons.ALPHA / design.variants
    effect = sensitivity.detectable(design.sd, design.n, alpha, paired=design.paired)
    effects = np.where(np.arange(design.variants) == 0, -effect, 0.0)
    return float((verdicts(rng, design, runs, effects)[:, 0] == "better").mean())


def monte_carlo_error(share: float, runs: int) -> float:
    """Returns three standard errors of a share that `runs` simulations estimate."""
    return 3 * math.sqrt(share * (1 - share) / runs)


def _held(low: np.ndarray, high: np.ndarray, truth: float) -> float:
    return float(((low <= truth) & (truth <= high)).mean())


def _batches(runs: int, size: int) -> Iterable[int]:
    yield from [size] * (runs // size)
    if runs % size:
        yield runs % size


def lines(seed: int, runs: int) -> Iterable[str]:
    """Yields the table, line by line: `runs` studies for what is fast, fewer for the rest."""
    yield f"{runs:,} studies; fewer (in brackets) for permutations; +- is 3 standard errors"
    yield "noise   n  design    t mean   diff.  false pos.     with 3 real  power"
    for skewed in (False, True):
        for n in SEEDS:
            for paired in (True, False):
                rng = np.random.default_rng([seed, skewed, n, paired])
                yield _line(rng, Design(n, skewed, paired), runs)
    yield "unpaired, 1 variant of another sd than the baseline's 1: false positives"
    for n, m, spread in UNEQUAL:
        design = Design(n, paired=False, variants=1, n_baseline=m, spread=spread)
        count = min(runs, SLOW_RUNS["exact"])
        wrong = false_positives(np.random.default_rng([seed, n, m]), design, count)
        error = monte_carlo_error(0.05, count)
        yield f"{n} v {m:2d}, sd {spread:4g}: {wrong:5.1%} +- {error:.1%} ({count:,})"


def _line(rng: np.random.Generator, design: Design, runs: int) -> str:
    is_exact = math.comb(2 * design.n, design.n) <= comparisons.PERMUTATIONS
    kind = "exact" if is_exact else "random"
    tested = runs if design.paired else min(runs, SLOW_RUNS[kind])
    parts = [f"{'skewed' if design.skewed else 'normal'} {design.n:2d}"]
    parts.append("paired  " if design.paired else "unpaired")
    if design.paired:
        parts.append(f"{coverage_of_mean(rng, design, runs):6.1%}")
    else:
        parts.append(" " * 6)
    parts.append(f"{coverage_of_difference(rng, design, runs):6.1%}")
    wrong = false_positives(rng, design, tested)
    parts.append(f"{wrong:5.1%} +- {monte_carlo_error(0.05, tested):.1%} ({tested:,})")
    parts.append(f"{false_positives(rng, design, tested, 3.0, 3):5.1%}")
    parts.append(f"{power_reached(rng, design, tested):5.1%}")
    return "  ".join(parts)


def main(given: Sequence[str] | None = None) -> int:
    """Prints the table."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--runs", type=arguments.whole(), default=RUNS, help=f"default: {RUNS:,}")
    parser.add_argument("--seed", type=arguments.whole(least=0), default=0)
    options = parser.parse_args(given)
    for line in lines(options.seed, options.runs):
        print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
