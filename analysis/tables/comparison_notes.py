"""What stands below a table of comparisons: which test ran, what it can reach, what g is."""

from collections.abc import Iterable, Sequence

from analysis.documents import variants
from analysis.results import withheld
from analysis.results.error_table import ErrorTable
from analysis.statistics import permutation
from analysis.statistics.statistics import ALPHA, Comparison

# `simulation.false_positives` of one variant where the few seeds' sd is 4 times the many's, about
# the worst ratio (Welch's test alone: 11% of 2 v 8), and of 5 variants at 3 v 9.
TOLD_OF_FEW = {"2 v 8": 0.08, "3 v 9": 0.07}
FAMILY, TOLD_OF_FAMILY = 5, 0.10


def footnotes(table: ErrorTable) -> Iterable[str]:
    """Yields one sentence or two on each thing to know about the comparisons of the deciding
    split, or on why there are none."""
    if not table.has_baseline:
        yield from _no_baseline(table)
    of_split = [row.splits[table.decisive].comparison for row in table.rows]
    found = [comparison for comparison in of_split if comparison is not None]
    if not found:
        return
    tested = [comparison for comparison in found if comparison.is_tested]
    yield _verdicts(table, len(tested))
    if any(comparison.test == "t" for comparison in found):
        yield "n seeds that both have: paired t-test, two-sided, and the interval of that test."
    if any(comparison.test == "sign" for comparison in found):
        yield "All differences equal, t undefined: p is the exact sign-flip test's, 2 / 2^n."
    yield from _permutation_notes(table, tested)
    yield from withheld.footnotes(table)
    yield from _effect_notes(tested)
    if len(tested) < len(found):
        yield "Fewer than 2 shared seeds, or than 2 seeds of one: no test, so cannot tell."


def _no_baseline(table: ErrorTable) -> Iterable[str]:
    names = ", ".join(row.variant for row in table.rows)
    if len(table.rows) > 1:
        yield (
            f"No comparison: no variant here is called {table.baseline!r}; --baseline=NAME takes "
            f"one of {names}."
        )


def _verdicts(table: ErrorTable, tested: int) -> str:
    differences = f"Differences: mean of variant - {variants.label(table.baseline)}"
    if not tested:
        return f"{differences}."
    return (
        f"{differences}, with its 95% interval (not corrected); p (Holm): corrected for the "
        f"{tested} tested within a split; verdict at p (Holm) < {ALPHA}."
    )


def _permutation_notes(table: ErrorTable, tested: Sequence[Comparison]) -> Iterable[str]:
    """Says how the permutation test was made, and where it cannot give a verdict at all."""
    found = [comparison for comparison in tested if comparison.test == "permutation"]
    if not found:
        return
    sizes = sorted({(comparison.n, comparison.n_baseline) for comparison in found})
    reach = "; ".join(_reach(n, m) for n, m in sizes)
    yield (
        f"n v m seeds, not paired{_reason(table)}: two-sided permutation test of Welch's t, all "
        f"deals of the seeds up to {permutation.PERMUTATIONS:,}, else as many seeded ones; "
        "p is the larger of its p and Welch's t-test's, which also holds where one variant's seeds "
        f"vary more; interval: Welch's. Smallest p: {reach}."
    )
    if any(n != m and min(n, m) in (2, 3) for n, m in sizes):
        cases = ", ".join(f"{share:.0%} of {n}" for n, share in TOLD_OF_FEW.items())
        yield (
            "2 or 3 seeds against more say little of their own spread: of simulated normal seeds "
            f"without a difference, {cases} are told apart at the worst ratio of the two sds, not "
            f"5%, and one of {FAMILY} variants in {TOLD_OF_FAMILY:.0%} of studies of 3 v 9."
        )
    if least := _out_of_reach(found, len(tested)):
        yield least


def _reason(table: ErrorTable) -> str:
    if table.study.shares_seeds:
        return " (fewer than 2 seeds are in both)"
    return " (a seed's number is all that these runs share)"


def _reach(n: int, m: int) -> str:
    if permutation.is_exact(n, m):
        return f"2 / {permutation.deals(n, m):,} = {permutation.smallest_p(n, m):.2g} for {n} v {m}"
    return f"{permutation.smallest_p(n, m):.2g} for {n} v {m}"


def _out_of_reach(found: Sequence[Comparison], m: int) -> str:
    blocked = [comparison for comparison in found if comparison.smallest_p * m >= ALPHA]
    if not blocked:
        return ""
    least = max(comparison.smallest_p for comparison in blocked) * m
    seeds = permutation.seeds_to_reach(ALPHA / m)
    enough = f"; {seeds} seeds of each can" if seeds else ""
    whom = f"{len(blocked)} of {m} comparisons cannot"
    if len(blocked) == m:
        whom = "no comparison can"
    return (
        f"Holm's first step over {m} makes the smallest p {min(1.0, least):.2g}: {whom} reach "
        f"{ALPHA} there, whatever the numbers are{enough}."
    )


def _effect_notes(tested: Sequence[Comparison]) -> Iterable[str]:
    if not tested:
        return
    kinds = {comparison.is_paired for comparison in tested}
    units = {True: "the sd of the paired differences", False: "the pooled sd over seeds"}
    unit = " or, not paired, ".join(units[kind] for kind in sorted(kinds, reverse=True))
    yield (
        f"g: Hedges' effect size, the difference in units of {unit}, corrected for few seeds; "
        "2 paired ones give none."
    )
