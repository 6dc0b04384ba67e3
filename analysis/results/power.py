"""Power: the smallest difference that n seeds can show, and the seeds that a difference needs.

Exact for normal noise, by the noncentral t distribution: Cohen (1988), "Statistical power analysis
for the behavioral sciences", chapter 2; as in statsmodels' TTestPower and TTestIndPower, which
give nan at some shifts (effect in standard errors) above 3.6.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from analysis.documents import grid, variants
from analysis.documents.grid import Cell, Column, Document, Grid
from analysis.results import expected_effect
from analysis.results.error_table import ErrorTable
from analysis.results.expected_effect import ExpectedEffect
from analysis.statistics import permutation, statistics
from analysis.statistics.statistics import Comparison

POWER = 0.8
# More are more than anybody trains, and far more make scipy's t distribution overflow.
MOST_SEEDS = 10_000
# In standard errors: beyond it power is 1 at any level of ours, and from 1e12 scipy gives nan.
_LARGEST_SHIFT = 1e9
CAPTION = "What these seeds can tell"
SD_HEADINGS: dict[tuple[bool, ...], str] = {(True,): "SD of\ndifferences", (False,): "Pooled\nSD"}
COLUMNS = (
    Column("Detectable\n(80% power)"),
    Column("Effect\nasked for"),
    Column("Seeds\nneeded"),
)


@dataclass(frozen=True)
class Sensitivity:
    """What a variant's comparison with the baseline can see. `sd` is as in Comparison, `degrees`
    its degrees of freedom, `alpha` 0.05 divided by the number of variants compared. `detectable`
    is the smallest true difference that is found with 80% power, `effect` the one asked for,
    `seeds` how many seeds would find it; nan, nan and None where undefined. `detectable` is inf
    where no difference can be found at these n, `seeds` where MOST_SEEDS do not find the effect."""

    n: str
    is_paired: bool
    degrees: int
    sd: float
    alpha: float
    detectable: float
    effect: float
    seeds: float | None


def power_at(
    effect: float,
    sd: float,
    n: int,
    alpha: float,
    paired: bool = True,
    n_baseline: int | None = None,
) -> float:
    """Returns the probability that the two-sided t-test at `alpha` finds a true difference.

    `effect` and `sd` have the same unit. Paired: `sd` is that of the differences over `n` seeds.
    Not paired: that of either group, of `n` and `n_baseline` seeds (`n` unless given). Raises
    ValueError where `n` is below 2, `sd` is not above 0, or the power is undefined (an `effect` or
    `alpha` that is nan).
    """
    from scipy import stats

    m = n_baseline or n
    if min(n, m) < 2 or not sd > 0:
        raise ValueError(f"power needs n > 1 seeds and sd > 0; it was given n = {n}, sd = {sd}")
    degrees = n - 1 if paired else n + m - 2
    shift = abs(effect) / (sd * math.sqrt(1 / n if paired else 1 / n + 1 / m))
    limit = stats.t.isf(alpha / 2, degrees)
    # Of -effect, whose power is the same: of a positive shift scipy's lower tail is nan from 3.6 on
    # and its upper one at some from 37 on, of a negative one neither.
    mirrored = -min(shift, _LARGEST_SHIFT)
    found = float(stats.nct.cdf(-limit, degrees, mirrored) + stats.nct.sf(limit, degrees, mirrored))
    if math.isnan(found):
        raise ValueError(f"no power for effect = {effect}, sd = {sd}, n = {n}, alpha = {alpha}")
    return found


def detectable(
    sd: float,
    n: int,
    alpha: float,
    power: float = POWER,
    paired: bool = True,
    n_baseline: int | None = None,
) -> float:
    """Returns the smallest true difference, in the unit of `sd`, that the test finds with
    probability `power`; arguments and errors as for the function `power`."""
    from scipy import optimize

    def missing(effect: float) -> float:
        return power_at(effect, 1.0, n, alpha, paired, n_baseline) - power

    if not sd > 0:
        raise ValueError(f"a detectable difference needs sd > 0; it was given {sd}")
    most = 1.0
    while missing(most) < 0:
        most *= 2
    return sd * float(optimize.brentq(missing, 0.0, most, xtol=1e-12))


def seeds_needed(
    effect: float, sd: float, alpha: float, power: float = POWER, paired: bool = True
) -> int | None:
    """Returns the fewest seeds (not paired: of either group) with which the test finds a true
    difference of `effect` with probability `power`, at least 2; None where MOST_SEEDS do not.

    Raises ValueError for an effect of 0, which no number of seeds finds, and as `power` does.
    """
    if not abs(effect) > 0:
        raise ValueError(f"no number of seeds finds a difference of {effect}")

    def enough(n: int) -> bool:
        return power_at(effect, sd, n, alpha, paired) >= power

    if not enough(MOST_SEEDS):
        return None
    least, most = 2, MOST_SEEDS
    while least < most:
        middle = (least + most) // 2
        least, most = (least, middle) if enough(middle) else (middle + 1, most)
    return most


def of_table(table: ErrorTable, split: str, expected: ExpectedEffect) -> dict[str, Sensitivity]:
    """Returns the sensitivity of each variant that is compared with the baseline on `split`, by
    its name: to the effect that is `expected` of it, if any is."""
    compared = {row.variant: row.splits[split].comparison for row in table.rows}
    there = {name: each for name, each in compared.items() if each is not None}
    alpha = statistics.ALPHA / max(1, sum(each.is_tested for each in there.values()))
    return {name: _sensitivity(each, alpha, expected.of(name)) for name, each in there.items()}


def _sensitivity(comparison: Comparison, alpha: float, effect: float) -> Sensitivity:
    paired, sd = comparison.is_paired, comparison.sd
    n, m = comparison.n, comparison.n_baseline
    degrees = comparison.pairs - 1 if paired else n + m - 2
    found, seeds = math.nan, None
    if sd > 0:
        found, seeds = math.inf, _seeds(effect, sd, alpha, paired)
        if comparison.smallest_p < alpha:
            count = comparison.pairs if paired else n
            found = detectable(sd, count, alpha, paired=paired, n_baseline=m)
    return Sensitivity(comparison.seeds, paired, degrees, sd, alpha, found, effect, seeds)


def _seeds(effect: float, sd: float, alpha: float, paired: bool) -> float | None:
    """A permutation test also needs enough seeds to reach `alpha` at all."""
    if not abs(effect) > 0:
        return None
    seeds = seeds_needed(effect, sd, alpha, paired=paired)
    least = 2 if paired else permutation.seeds_to_reach(alpha)
    return math.inf if seeds is None or least is None else max(seeds, least)


def document(table: ErrorTable, effect: float | None = None) -> Document:
    """Returns what the study's seeds can tell on its deciding split, as one grid with notes; no
    grid where nothing is compared. `effect` is a difference of the table's metric; what stands in
    for None, and what is raised: `expected_effect.of_table`."""
    split = table.decisive
    expected = expected_effect.of_table(table, split, effect)
    told = of_table(table, split, expected)
    title = f"{table.study.name}: {CAPTION[0].lower()}{CAPTION[1:]}"
    if not told:
        return Document(title, (), (), ())
    digits = table.metric.digits
    cells = [
        (Cell(row.label), *_cells(told[row.variant], digits))
        for row in table.rows
        if row.variant in told
    ]
    designs = {each.is_paired for each in told.values() if each.sd >= 0}
    spread = Column(SD_HEADINGS.get(tuple(designs), "SD"))
    columns = (Column("Variant", numeric=False), Column("n"), spread, *COLUMNS)
    shown = Grid(f"{CAPTION}, on {split}", columns, (tuple(cells),))
    return Document(title, (shown,), tuple(_notes(told, expected, digits)), ())


def _cells(told: Sensitivity, digits: int) -> Iterable[Cell]:
    unreachable = math.isinf(told.detectable)
    yield Cell(told.n)
    yield grid.number(told.sd, digits)
    yield Cell("none") if unreachable else grid.number(told.detectable, digits)
    yield grid.number(told.effect, digits)
    yield Cell(grid.NOTHING if told.seeds is None else seeds_text(told.seeds))


def seeds_text(seeds: float) -> str:
    """Returns a number of seeds as words have it: `1,234`, or `> 10,000` for inf."""
    return f"> {MOST_SEEDS:,}" if math.isinf(seeds) else f"{seeds:,}"


def _notes(
    by_name: Mapping[str, Sensitivity], expected: ExpectedEffect, digits: int
) -> Iterable[str]:
    told = list(by_name.values())
    if any(each.sd >= 0 for each in told):
        yield (
            f"{CAPTION}: detectable is the smallest true difference that is found with {POWER:.0%} "
            "power at these n and sd; seeds needed find the effect asked for with that power. "
            f"Two-sided t-test at {_level(told[0].alpha)}, normal noise."
        )
    size = "" if math.isnan(expected.size) else f"{expected.size:.{digits + 1}f}, "
    yield f"Effect asked for: {size}{expected.source}."
    others = [variants.label(name) for name in by_name if math.isnan(expected.of(name))]
    if size and others:
        yield f"Not in the paper, so not asked for its effect: {', '.join(others)}."
    known = [each for each in told if each.sd > 0]
    if known:
        yield _spread_of_sd(known)
    if any(not each.is_paired for each in known):
        yield (
            "n v m, not paired: sd is the pooled one, seeds needed are those of each of the two. "
            "The power is the t-test's; that of the verdict's test is up to 18 points lower where "
            "its smallest p is near the level (62% for 4 v 4, 79% for 6 v 6)."
        )
    if any(math.isinf(each.detectable) for each in told):
        yield "none: at these n no difference, however large, has a p-value below that level."
    if any(math.isnan(each.sd) for each in told):
        yield "Fewer than 2 seeds: no sd, so nothing can be said of what they can tell."
    if any(each.sd == 0 for each in told):
        yield "sd 0: all differences are equal, which says nothing of the noise."


def _level(alpha: float) -> str:
    compared = round(statistics.ALPHA / alpha)
    if compared == 1:
        return f"{alpha}"
    step = f"{statistics.ALPHA} / {compared} = {alpha:.2g}"
    return f"{step}, Holm's first step over the variants compared ({compared})"


def _spread_of_sd(known: Sequence[Sensitivity]) -> str:
    """The interval of a normal sd by the chi-square distribution of (n - 1) s^2 / sigma^2."""
    from scipy import stats

    degrees = min(each.degrees for each in known)
    low, high = (math.sqrt(degrees / stats.chi2.ppf(share, degrees)) for share in (0.975, 0.025))
    freedom = f"{degrees} degree{'s' if degrees > 1 else ''} of freedom"
    return (
        f"The sd is an estimate, too: with {freedom} the true one is between "
        f"{low:.2f} and {high:.1f} times it (95%), and seeds needed grow with its square."
    )
