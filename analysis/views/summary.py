"""Several studies on one page: variants by workloads, each variant over all of them, and what these
seeds could have seen."""

import math
from collections.abc import Iterable

from matplotlib.figure import Figure

from analysis.compare import sensitivity
from analysis.compare.error_table import ErrorTable
from analysis.compare.summary import Improvement, Line, Summary
from analysis.render import pages, style
from analysis.render.pages import NONE, Cell, Page, Row, Table
from analysis.render.pictures import Plot
from analysis.statistics.results import Estimate
from analysis.views.table import power
from attention import table as variants

MARKS = {"better": "▲", "worse": "▼", "cannot tell": "≈"}
DRAWN = {"better": ("▲", style.GREEN), "worse": ("▼", style.VERMILLION)}


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
    return (
        *(Cell(heading), Cell(seeds_of(table)), spread),
        pages.number(scale * expected.size, 1),
        needed,
    )


def seeds_of(table: ErrorTable) -> str:
    """Returns how many seeds the variants have: `12`, or `9 to 12`."""
    counts = sorted({row.n for row in table.rows if row.n})
    return (
        pages.NOTHING
        if not counts
        else " to ".join(map(str, dict.fromkeys(counts[:: max(1, len(counts) - 1)])))
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


def draw(found: Summary) -> Figure | None:
    """Returns the improvements with their intervals, a panel for each column, the variants' rows
    shared; what is decided has its verdict's mark."""
    lines = [line for line in found.lines if any(line.cells)]
    if not lines:
        return None
    figure, grid = style.grid(
        len(found.tables),
        3,
        lambda down, across: (2.2 + 3.1 * across, down * (1.3 + 0.34 * len(lines))),
        sharey=True,
    )
    for number, (axes, table) in enumerate(zip(grid.flat, found.tables, strict=False)):
        style.tidy(axes)
        axes.grid(False, axis="y")
        axes.axvline(0.0, color=style.BLACK, linewidth=1.0, zorder=1)
        for height, line in enumerate(lines):
            if (each := line.cells[number]) is not None and not math.isnan(each.percent.value):
                mark, colour = DRAWN.get(each.comparison.verdict, ("", style.BLACK))
                bounds = (each.percent.low, each.percent.high)
                where = (axes, height, line.variant, each.percent.value, bounds)
                style.interval_row(*where, None, mark, color=colour)
        axes.set_yticks(range(len(lines)), [style.row_label(line.label) for line in lines])
        axes.set_ylim(len(lines) - 0.4, -0.6)
        axes.set_title(f"{found.headings[number]}, {table.what}", fontsize=10, loc="left")
        against = f"% better than {table.baseline_label}"
        axes.set_xlabel(f"{against}, n = {seeds_of(table)}", fontsize=9)
    title = "Improvement over the baseline, mean over seeds, 95% interval (▲ better, ▼ worse)"
    style.title(figure, title)
    return figure


def words(found: Summary) -> str:
    """Returns every improvement with its interval and verdict."""
    told = []
    for number, heading in enumerate(found.headings):
        cells = [(line.label, line.cells[number]) for line in found.lines]
        shown = [
            f"{label} {pages.number(each.percent.value, 1, signed=True).text}% "
            f"{_interval(each.percent, 1)} {each.comparison.verdict}"
            for label, each in cells
            if each is not None
        ]
        told.append(f"{heading}: {'; '.join(shown)}")
    return f"Improvements over the baseline by workload. {'. '.join(told)}."


PLOTS = (
    Plot(
        file="summary.png",
        draw=draw,
        words=words,
        absent="no variant is compared with a baseline",
        caption="Improvement over the baseline's mean in %, to the right is better; the "
        "difference's own 95% interval, not corrected for the number of variants as the marks are.",
    ),
)
