"""What the tables promise, on simulated studies whose truth is known; seeds are fixed.

Shares are held to the bounds that the issue of a study's analysis sets: 93 to 97 % for 95 %
intervals; false positives at most 5 % and power 77 to 83 % about its 80 %, plus three standard
errors of the simulation where it is small.
"""

import math
import pathlib
import re

import numpy as np
import pytest

from analysis.statistics import comparisons
from tests.analysis import simulation
from tests.analysis.simulation import Design

RUNS = 10_000
UNPAIRED_RUNS = 800
each_noise = pytest.mark.parametrize(
    ("n", "skewed"), [(3, False), (10, True)], ids=["normal", "skewed"]
)


def test_the_pages_give_one_rate_of_false_verdicts() -> None:
    root = pathlib.Path(__file__).parents[2]
    pages = [(root / page).read_text("utf-8") for page in ("README.md", "docs/analysis.md")]
    rates = [re.findall(r"false verdict among[^%]*?([\d.]+ to [\d.]+) %", page) for page in pages]
    assert rates == [["3.8 to 5.1"]] * 2


@each_noise
def test_without_a_difference_5_percent_of_paired_studies_give_a_verdict(n, skewed) -> None:
    """Among 7 variants; and among the 4 of them that have none while 3 do."""
    rng = np.random.default_rng([2, n, skewed])
    bound = 0.05 + simulation.monte_carlo_error(0.05, RUNS)
    assert simulation.false_positives(rng, Design(n, skewed), RUNS) <= bound
    assert simulation.false_positives(rng, Design(n, skewed), RUNS, real=3.0, count=3) <= bound


@pytest.mark.parametrize(("n", "variants", "skewed"), [(5, 1, False), (6, 7, True)])
def test_without_a_difference_5_percent_of_unpaired_studies_give_one(n, variants, skewed) -> None:
    rng = np.random.default_rng([3, n, skewed])
    design = Design(n, skewed, paired=False, variants=variants)
    bound = 0.05 + simulation.monte_carlo_error(0.05, UNPAIRED_RUNS)
    assert simulation.false_positives(rng, design, UNPAIRED_RUNS) <= bound


@pytest.mark.parametrize(
    ("n", "m", "spread", "variants"),
    [(5, 5, 10, 1), (5, 5, 0.1, 5), (3, 9, 10, 1)],
)
def test_seeds_of_unequal_spread_give_no_more_verdicts(n, m, spread, variants) -> None:
    """By the permutation test alone 10% of 5 v 5 with one variant, and more of 3 v 9."""
    rng = np.random.default_rng([9, n, m, variants])
    design = Design(n, paired=False, variants=variants, n_baseline=m, spread=spread)
    bound = 0.05 + simulation.monte_carlo_error(0.05, UNPAIRED_RUNS)
    assert simulation.false_positives(rng, design, UNPAIRED_RUNS) <= bound


@pytest.mark.parametrize(("n", "m", "variants", "stated"), [(3, 9, 5, 0.10)])
def test_few_seeds_against_more_are_told_apart_as_often_as_the_page_says(
    n, m, variants, stated
) -> None:
    """Where their sds differ by a factor of 4, about the worst ratio (docs/analysis.md)."""
    design = Design(n, paired=False, variants=variants, n_baseline=m, spread=4.0)
    share = simulation.false_positives(np.random.default_rng(10), design, 1_500)
    assert abs(share - stated) <= simulation.monte_carlo_error(stated, 1_500)


def test_the_detectable_difference_is_found_in_80_percent_of_studies() -> None:
    share = simulation.power_reached(np.random.default_rng([5, 5]), Design(5), RUNS)
    assert 0.77 <= share <= 0.83


@pytest.mark.parametrize(
    ("looks", "n", "variants", "share"),
    [
        ((), simulation.PLANNED, simulation.VARIANTS, 0.20),
        *(((6, 12), 12, 7, 0.045), ((3, 6), 6, 1, 0.05), ((2, 3, 4, 5), 5, 3, 0.05)),
    ],
)
def test_looking_again_gives_as_many_false_verdicts_as_the_page_says(
    looks, n, variants, share
) -> None:
    """After each seed, and at declared looks."""
    design = Design(n, variants=variants)
    early = simulation.stopped_early(np.random.default_rng(12), design, RUNS, looks)
    assert abs(early - share) <= simulation.monte_carlo_error(share, RUNS)


def test_a_difference_as_large_as_the_margin_is_equal_in_5_percent() -> None:
    """In no more of the studies of three variants with five seeds."""
    design, runs = Design(5, variants=3), 1_000
    drawn = simulation.studies(np.random.default_rng(16), design, runs, np.full(3, 8.0))
    told = 0
    for variants, baseline in zip(*drawn, strict=True):
        values = {str(name): dict(enumerate(x)) for name, x in enumerate([*baseline, *variants])}
        compared = comparisons.compare_all(values, "0", True, True, margin="8")
        told += any(each.verdict == "equal" or each.within for each in compared.values())
    assert told / runs <= 0.05 + simulation.monte_carlo_error(0.05, runs)


@pytest.mark.parametrize(("tuning", "n"), [(3, 12)])
def test_the_tuning_seeds_are_not_compared(tuning, n) -> None:
    """Compared again, the baseline's seeds enter with the luck that chose them: `worse` 4 to 9 %,
    `better` below 1 %."""
    again = simulation.searched(np.random.default_rng(13), tuning, n, 2_000, fresh=False)
    worse, better, bias = simulation.searched(np.random.default_rng(14), tuning, n, 2_000, True)
    assert again[0] > 2 * again[1]
    assert again[2] < -0.1
    error = simulation.monte_carlo_error(0.025, 2_000)
    assert abs(worse - 0.022) <= error
    assert abs(better - 0.022) <= error
    assert abs(bias) <= 3 * math.sqrt(2 / (n * 2_000))
