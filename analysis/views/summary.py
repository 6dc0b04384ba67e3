"""Several studies on one page: variants by workloads, each variant over all of them, and what these
seeds could have seen."""

import math
from collections.abc import Iterable

from analysis.compare import sensitivity
from analysis.compare.error_table import ErrorTable
from analysis.compare.summary import Improvement, Line, Summary
from analysis.render import pages
from analysis.render.pages import NONE, Cell, Page, Row, Table
from analysis.statistics.results import Estimate
from analysis.views.table import power
from attention import table as variants

MARKS = {"better": "▲", "worse": "▼", "cannot tell": "≈"}


def page(found: Summary) -> Page:
    """Returns three tables: improvements by variant and workload; a line for each variant over all
    of them; the smallest differences that the seeds can see."""
    tables = (_by_workload(found), _over_all(found), _power(found))
    title = (
        f"{_count(len(found.tables), 'study', 'studies')} against {variants.label(found.baseline)}"
    )
    problems = tuple(problem for table in found.tables for problem in table.problems)
    return Page(title, tuple(each for each in tables if each.sections), _notes(found), problems)


def _count(number: int, one: str, several: str) -> str:
    return f"{number} {one if number == 1 else several}"


def _by_workload(found: Summary) -> Table:
    headings = []
    for heading, table in zip(found.headings, found.tables, strict=True):
        against = "" if table.baseline == found.baseline else f"\nagainst {table.baseline_label}"
        headings.append(f"{heading}\n{table.what}{against}")
    rows = []
    for line in found.lines:
        cells = (
            _cell(each, line, table) for each, table in zip(line.cells, found.tables, strict=True)
        )
        rows.append((Cell(line.label), *cells))
    caption = "Improvement in % of the baseline's mean [95% interval]: + is better"
    return Table(caption, pages.columns("Variant", *headings), (tuple(rows),))


def _cell(each: Improvement | None, line: Line, table: ErrorTable) -> Cell:
    if line.variant == table.baseline:
        return Cell("baseline")
    if each is None or math.isnan(each.percent.value):
        return NONE
    verdict = each.comparison.verdict
    bounds = "" if math.isnan(each.percent.low) else f" {_interval(each.percent, 1)}"
    text = f"{pages.number(each.percent.value, 1, signed=True).text}{bounds} {MARKS[verdict]}"
    return Cell(text, tone=verdict if verdict != "cannot tell" else "")


def _interval(estimate: Estimate, digits: int) -> str:
    return pages.bounds(estimate.low, estimate.high, digits, signed=True).text


def _over_all(found: Summary) -> Table:
    headings = (
        "Workloads",
        "Mean effect g\n[95%]",
        "IQM of runs, %\n[95%]",
        "P(better run)\n[95%]",
    )
    rows: list[Row] = []
    for line in found.lines:
        if not line.columns:
            continue
        estimates = ((line.effect, 2, True), (line.iqm, 1, True), (line.improvement, 2, False))
        rows.append(
            (
                *(Cell(line.label), Cell(str(line.columns))),
                *(_estimate(each, digits, signed) for each, digits, signed in estimates),
                Cell(f"{line.failed.count} of {line.failed.n}") if line.failed else NONE,
                pages.number(line.step_time, 2),
            )
        )
    if len(rows) < 2:  # the baseline alone
        return Table("", (), ())
    columns = pages.columns("Variant", *headings, "Failed\nto train", "Step time\n÷ baseline's")
    return Table("Over all workloads", columns, (tuple(rows),))


def _estimate(each: Estimate, digits: int, signed: bool) -> Cell:
    if math.isnan(each.value):
        return NONE
    middle = pages.number(each.value, digits, signed).text
    if math.isnan(each.low):
        return Cell(middle)
    return Cell(f"{middle} {pages.bounds(each.low, each.high, digits, signed).text}")


def _power(found: Summary) -> Table:
    headings = ("Workload", "Seeds", "Smallest difference\nfound (80% power), %")
    rows = [
        _power_row(heading, table)
        for heading, table in zip(found.headings, found.tables, strict=True)
    ]
    columns = pages.columns(
        *headings, "Paper's effect, %", "Seeds it needs\n(LASER)", words=("Workload",)
    )
    return Table("What these seeds can see", columns, (tuple(rows),))


def _power_row(heading: str, table: ErrorTable) -> Row:
    expected = sensitivity.expected(table, table.decisive)
    told = sensitivity.of_table(table, table.decisive, expected)
    base = table.baseline_row
    summary = table.of(base).summary if base else None
    scale = 100 / abs(summary.mean) if summary and summary.mean else math.nan
    seen = [scale * each.detectable for each in told.values() if math.isfinite(each.detectable)]
    spread = NONE
    if seen:
        low, high = (pages.number(bound, 1).text for bound in (min(seen), max(seen)))
        spread = Cell(low if low == high else f"{low} to {high}")
    laser = told.get("laser")
    needed = NONE if laser is None or laser.seeds is None else Cell(power.seeds_text(laser.seeds))
    counts = sorted({row.n for row in table.rows if row.n})
    seeds = "–" if not counts else f"{counts[0]}" + (f" to {counts[-1]}" if counts[1:] else "")
    return (
        *(Cell(heading), Cell(seeds), spread),
        pages.number(scale * expected.size, 1),
        needed,
    )


def _notes(found: Summary) -> tuple[str, ...]:
    return tuple(_sentences(found))


def _sentences(found: Summary) -> Iterable[str]:
    base = variants.label(found.baseline)
    yield (
        f"▲ better, ▼ worse, ≈ cannot tell: by the study's own test against {base} on its deciding "
        "split, after Holm's correction for its variants; intervals are not corrected. "
        "`python -m analysis table` has each test."
    )
    if any(table.baseline != found.baseline for table in found.tables):
        yield f"Columns against another baseline than {base} do not enter the lines over all."
    if any(line.columns > 0 for line in found.lines):
        yield (
            "Mean effect: Hedges' g (improvement in units of the sd of paired differences, else of "
            "the pooled sd), averaged over workloads, each counting alike; its interval needs 4 "
            "pairs on each. IQM: mean of the middle half of all runs' improvements; P(better run): "
            "chance that a run beats one of the baseline's on the same workload, 0.5 for equals; "
            "both with stratified bootstrap intervals (Agarwal et al. 2021). None of these is "
            "corrected for the number of variants."
        )
        yield (
            "Step time: seconds of training over updates, median over seeds, geometric mean over "
            "workloads, on the machines that the trials ran on."
        )
    names = [table.workload for table in found.tables if table.baseline == found.baseline]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        yield f"In several studies, so counted as often in the lines over all: {', '.join(twice)}."
