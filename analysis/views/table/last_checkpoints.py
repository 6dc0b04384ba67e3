"""The last evaluations of each trial, as the paper's fluctuation table has them: mean and spread.

What the paper prints after "±" there is the mean of its tasks' standard deviations, not the
deviation of their mean; here, too, the deviation over checkpoints is the mean of the seeds' own,
and the deviation over seeds, which says how another run would differ, stands beside it.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from analysis.compare.error_table import ErrorTable, SplitResult, VariantResult
from analysis.render import pages
from analysis.render.pages import Cell, Page, Row, Table
from sweeps.records import layout


@dataclass(frozen=True)
class LastCheckpoints:
    """One variant on one split, over the last k evaluations of `n` trials: `mean` is that of the
    seeds' means; `over_checkpoints` the mean of the seeds' own standard deviations over their k
    evaluations, nan for k = 1; `over_seeds` the deviation of the seeds' means, nan for n = 1.
    `left_out` trials have fewer than k evaluations or one that is not finite among these."""

    n: int
    mean: float
    over_checkpoints: float
    over_seeds: float
    left_out: int


def of_split(result: SplitResult, last: int) -> LastCheckpoints | None:
    """Returns what the `last` evaluations that `result` keeps give; None where there are none."""
    if not result.last:
        return None
    tails = result.last.values()
    whole = [tail for tail in tails if len(tail) == last and np.isfinite(tail).all()]
    if not whole:
        return LastCheckpoints(0, math.nan, math.nan, math.nan, len(tails))
    values = np.array(whole)
    return LastCheckpoints(
        n=len(whole),
        mean=float(values.mean()),
        over_checkpoints=float(values.std(axis=1, ddof=1).mean()) if last > 1 else math.nan,
        over_seeds=float(values.mean(axis=1).std(ddof=1)) if len(whole) > 1 else math.nan,
        left_out=len(tails) - len(whole),
    )


def page(table: ErrorTable) -> Page:
    """Returns one table of the last `table.last` evaluations with notes, no table where no trial
    has that many."""
    found = {
        (row.variant, split): of_split(row.splits[split], table.last)
        for row in table.rows
        for split in layout.SPLITS
    }
    title = f"{table.study.name}: the last {table.last} evaluations"
    sections = pages.sections(table.groups, lambda row: _lines(table, row, found))
    columns = pages.columns(
        *("Variant", "Split", "n", f"Mean of\nlast {table.last}"),
        *("SD over\ncheckpoints", "SD over\nseeds"),
        words=("Variant", "Split"),
    )
    caption = f"{table.metric.title} over the last {table.last} evaluations"
    tables = (Table(caption, columns, sections),) if sections else ()
    return Page(title, tables, tuple(_notes(table, found, bool(sections))), ())


Found = dict[tuple[str, str], LastCheckpoints | None]


def _lines(table: ErrorTable, row: VariantResult, found: Found) -> Iterable[Row]:
    digits = table.metric.digits
    for split in layout.SPLITS:
        each = found[row.variant, split]
        if each is not None and each.n:
            numbers = (each.mean, each.over_checkpoints, each.over_seeds)
            shown = (pages.number(value, digits) for value in numbers)
            yield (Cell(row.label), Cell(split), Cell(str(each.n)), *shown)


def _notes(table: ErrorTable, found: Found, shown: bool) -> Iterable[str]:
    if shown:
        yield (
            f"Last {table.last} evaluations of each trial that is done, whatever validation chose: "
            "SD over checkpoints is the mean over seeds of each seed's own (successive checkpoints "
            "of one run are alike: it says nothing of another run), SD over seeds that of the "
            "seeds' means."
        )
    short = []
    for row in table.rows:
        of_splits = [found[row.variant, split] for split in layout.SPLITS]
        if count := max((each.left_out for each in of_splits if each), default=0):
            short.append(f"{count} of {row.label}")
    if short:
        yield (
            f"Left out of the last {table.last} evaluations: trials that have fewer, or one that "
            f"is not finite: {', '.join(short)}; --last=K takes another number."
        )
