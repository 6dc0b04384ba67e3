"""What these seeds can tell: detectable differences and seeds needed, as a table and a sentence."""

import math
from collections.abc import Iterable, Mapping, Sequence

from analysis.compare import sensitivity
from analysis.compare.error_table import ErrorTable
from analysis.compare.sensitivity import ExpectedEffect, Sensitivity
from analysis.render import pages
from analysis.render.pages import NONE, Cell, Page, Table
from analysis.statistics.comparisons import ALPHA
from analysis.statistics.power import MOST_SEEDS, POWER
from attention import table as variants

CAPTION = "What these seeds can tell"
SD_HEADINGS: dict[tuple[bool, ...], str] = {(True,): "SD of\ndifferences", (False,): "Pooled\nSD"}
HEADINGS = ("Detectable\n(80% power)", "Effect\nasked for", "Seeds\nneeded")


def page(table: ErrorTable, effect: float | None = None) -> Page:
    """Returns what the study's seeds can tell on its deciding split, as one table with notes;
    none where nothing is compared. `effect` is a difference of the table's metric; what stands in
    for None, and what is raised: `sensitivity.expected`."""
    split = table.decisive
    expected = sensitivity.expected(table, split, effect)
    told = sensitivity.of_table(table, split, expected)
    title = f"{table.study.name}: {CAPTION[0].lower()}{CAPTION[1:]}"
    if not told:
        return Page(title, ())
    digits = table.metric.digits
    cells = [
        (Cell(row.label), *_cells(told[row.variant], digits))
        for row in table.rows
        if row.variant in told
    ]
    designs = {each.is_paired for each in told.values() if each.sd >= 0}
    spread = SD_HEADINGS.get(tuple(designs), "SD")
    columns = pages.columns("Variant", "n", spread, *HEADINGS)
    shown = Table(f"{CAPTION}, on {split}", columns, (tuple(cells),))
    return Page(title, (shown,), tuple(_notes(told, expected)), ())


def _cells(told: Sensitivity, digits: int) -> Iterable[Cell]:
    unreachable = math.isinf(told.detectable)
    yield Cell(told.n)
    yield pages.number(told.sd, digits)
    yield Cell("none") if unreachable else pages.number(told.detectable, digits)
    yield pages.number(told.effect, digits)
    yield NONE if told.seeds is None else Cell(seeds_text(told.seeds))


def seeds_text(seeds: float) -> str:
    """Returns a number of seeds as words have it: `1,234`, or `> 10,000` for inf."""
    return f"> {MOST_SEEDS:,}" if math.isinf(seeds) else f"{seeds:,}"


def _notes(by_name: Mapping[str, Sensitivity], expected: ExpectedEffect) -> Iterable[str]:
    told = list(by_name.values())
    if any(each.sd >= 0 for each in told):
        yield (
            f"{CAPTION}: detectable is the smallest true difference that is found with {POWER:.0%} "
            "power at these n and sd; seeds needed find the effect asked for with that power. "
            f"Two-sided t-test at {_level(told[0].alpha)}, normal noise."
        )
    yield f"Effect asked for: {expected.source}."
    others = [variants.label(name) for name in by_name if name not in expected.sizes]
    if expected.sizes and others:
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
    compared = round(ALPHA / alpha)
    if compared == 1:
        return f"{alpha}"
    step = f"{ALPHA} / {compared} = {alpha:.2g}"
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


def sentence(table: ErrorTable) -> str:
    """Returns the smallest true differences that 80% of such studies would find, and the seeds
    that the expected effect needs; says so where one seed can tell nothing, empty where nothing
    is compared."""
    expected = sensitivity.expected(table, table.decisive)
    told = sensitivity.of_table(table, table.decisive, expected)
    if not told:
        return ""
    found = [each.detectable for each in told.values() if math.isfinite(each.detectable)]
    if not found:
        return "These seeds are too few to find a difference of any size."
    digits = table.metric.digits
    low, high = (pages.number(bound, digits).text for bound in (min(found), max(found)))
    spread = low if low == high else f"{low} to {high}, by variant"
    said = (
        "Smallest true difference that 80% of studies of these seeds and this noise would find: "
        f"{spread}."
    )
    seeds = [each.seeds for each in told.values() if each.seeds is not None]
    if not seeds:
        return said
    few, many = min(seeds), max(seeds)
    low, high = (seeds_text(bound) for bound in (few, many))
    needed = low if few == many else f"{low} to {high}"
    return f"{said} The effect asked for ({expected.source}) takes {needed} seeds."
