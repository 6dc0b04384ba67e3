"""Several studies on one page: variants by workloads, each variant over all of them, and what these
seeds could have seen."""

import csv
import io
import math
from collections.abc import Iterable
from typing import Any

from matplotlib.figure import Figure

from analysis.compare import sensitivity
from analysis.compare.error_table import ErrorTable
from analysis.compare.summary import Improvement, Line, Summary
from analysis.render import pages, printing, style
from analysis.render.pages import NONE, NOTHING, Cell, Page, Row, Table
from analysis.render.pictures import Plot
from analysis.statistics import across
from analysis.statistics.results import Comparison, Estimate
from analysis.views.table import notes, power
from attention import table as variants

MARKS = {"better": "▲", "worse": "▼", "cannot tell": "≈", "withheld": "○"}
DECIDED = {"better": style.GREEN, "worse": style.VERMILLION}


def page(found: Summary) -> Page:
    """Returns three tables: improvements by variant and workload; a line for each variant over all
    of them; the smallest differences that the seeds can see."""
    tables = (_by_workload(found), _over_all(found), _power(found))
    own = sum(table.baseline == found.baseline for table in found.tables)
    title = f"{own} {'study' if own == 1 else 'studies'} against {variants.label(found.baseline)}"
    if own < len(found.tables):
        title += f", {len(found.tables) - own} against another baseline"
    problems = dict.fromkeys(problem for table in found.tables for problem in table.problems)
    shown = tuple(each for each in tables if each.sections)
    return Page(title, shown, tuple(_notes(found)), (*found.without_column, *problems))


def _by_workload(found: Summary) -> Table:
    headings = []
    for heading, table in zip(found.headings, found.tables, strict=True):
        against = "" if table.baseline == found.baseline else f"\nagainst {table.baseline_label}"
        unfinished = "\n(unfinished)" if _is_unfinished(table) else ""
        headings.append(f"{heading}\n{table.what}{against}{unfinished}")
    rows = []
    for line in found.lines:
        cells = zip(line.cells, found.tables, strict=True)
        rows.append((Cell(line.label), *(_cell(each, line, table) for each, table in cells)))
    caption = "Improvement in % of the baseline's mean [95% interval]: + is better"
    return Table(caption, pages.columns("Variant", *headings), (tuple(rows),))


def _is_unfinished(table: ErrorTable) -> bool:
    return any(row.unfinished for row in table.rows)


def _cell(each: Improvement | None, line: Line, table: ErrorTable) -> Cell:
    if line.variant == table.baseline:
        return Cell("baseline")
    if each is None or math.isnan(each.percent.value):
        return NONE
    word = _word(each.comparison)
    bounds = "" if math.isnan(each.percent.low) else f" {_interval(each.percent, 1)}"
    text = f"{pages.number(each.percent.value, 1, signed=True).text}{bounds} {MARKS[word]}"
    return Cell(text, tone=word if word in DECIDED else "")


def _word(comparison: Comparison) -> str:
    return "withheld" if comparison.withheld else comparison.verdict


def _interval(estimate: Estimate, digits: int) -> str:
    return pages.bounds(estimate.low, estimate.high, digits, signed=True).text


def _over_all(found: Summary) -> Table:
    rows: list[Row] = []
    for line in found.lines:
        failed = Cell(f"{line.failed.count} of {line.failed.n}") if line.failed else NONE
        if line.variant == found.baseline:
            rows.append((Cell(line.label), *[NONE] * 4, failed, NONE))
        elif line.over:
            effect = _estimate(line.effect, 2, signed=True)
            if effect != NONE:
                effect = Cell(f"{line.effect_kind} {effect.text}")
            estimates = ((line.iqm, 1, True), (line.improvement, 2, False))
            rows.append(
                (
                    *(Cell(line.label), Cell(_numbers(line.over)), effect),
                    *(_estimate(each, digits, signed) for each, digits, signed in estimates),
                    failed,
                    _estimate(line.step_time, 2, signed=False),
                )
            )
    if len(rows) < 2:  # the baseline alone
        return Table("", (), ())
    headings = ("Columns", "Mean effect\n[95%]", "IQM of runs\nless baseline's, %")
    more = ("P(better run)\n[95%]", "Failed\nto train", "Step time\n÷ baseline's")
    columns = pages.columns("Variant", *headings, *more)
    return Table("Over all workloads, not corrected for the variants", columns, (tuple(rows),))


def _numbers(over: tuple[int, ...]) -> str:
    """Returns which columns above, by their numbers from 1: `1, 2`."""
    return ", ".join(str(number + 1) for number in over)


def _estimate(each: Estimate, digits: int, signed: bool) -> Cell:
    if math.isnan(each.value):
        return NONE
    middle = pages.number(each.value, digits, signed).text
    if math.isnan(each.low):
        return Cell(middle)
    return Cell(f"{middle} {pages.bounds(each.low, each.high, digits, signed).text}")


def _power(found: Summary) -> Table:
    headings = ("Workload", "Seeds", "Smallest difference\nfound (80% power), %")
    pairs = zip(found.headings, found.tables, strict=True)
    rows = [_power_row(heading, table) for heading, table in pairs]
    columns = pages.columns(
        *headings, "Paper's effect\nof LASER, %", "Seeds it needs\n(LASER)", words=("Workload",)
    )
    return Table("What these seeds can see", columns, (tuple(rows),))


def _power_row(heading: str, table: ErrorTable) -> Row:
    expected = sensitivity.expected(table, table.decisive)
    paper = expected.sizes.get("laser", math.nan)
    told = sensitivity.of_table(table, table.decisive, expected)
    base = table.baseline_row
    summary = table.of(base).summary if base else None
    scale = 100 / abs(summary.mean) if summary and summary.mean else math.nan
    seen = [scale * each.detectable for each in told.values() if not math.isnan(each.detectable)]
    spread = NONE
    if seen:
        texts = [
            "none" if math.isinf(x) else pages.number(x, 1).text for x in (min(seen), max(seen))
        ]
        spread = Cell(" to ".join(dict.fromkeys(texts)))
    laser = told.get("laser")
    needed = NONE if laser is None or laser.seeds is None else Cell(power.seeds_text(laser.seeds))
    # The paper's share is of the baseline's median (`sensitivity`).
    share = 100 * paper / abs(summary.median) if summary and summary.median else math.nan
    return (
        *(Cell(heading), Cell(seeds_of(table)), spread),
        pages.number(share, 1),
        needed,
    )


def seeds_of(table: ErrorTable) -> str:
    """Returns how many seeds the variants have: `12`, or `9 to 12`."""
    counts = sorted({row.n for row in table.rows if row.n})
    return " to ".join(map(str, dict.fromkeys((counts[0], counts[-1])))) if counts else NOTHING


def _notes(found: Summary) -> Iterable[str]:
    base = variants.label(found.baseline)
    yield (
        "▲ better, ▼ worse, ≈ cannot tell: by the study's own test against its baseline on its "
        "deciding split, after Holm's correction for its variants; intervals are the differences' "
        "own, not corrected, and the baseline's mean that they are in % of is taken as known. "
        "`python -m analysis table` has each test."
    )
    withheld = {
        reason
        for line in found.lines
        for each in line.cells
        if each and (reason := each.comparison.withheld)
    }
    if withheld:
        reasons = {"lost seeds": "seeds were lost that may have been worse"}
        told = " or ".join(sorted(reasons.get(each, "runs differ in length") for each in withheld))
        yield f"○ no verdict, whatever p is: {told}."
    for heading, table in zip(found.headings, found.tables, strict=True):
        yield from (f"{heading}: {note}" for note in notes.left_out(table))
    if any(map(_is_unfinished, found.tables)):
        yield "(unfinished): an interim look; the test is planned for all seeds."
    if any(table.baseline != found.baseline for table in found.tables):
        yield f"Columns against another baseline than {base} do not enter the lines over all."
    left_out = [
        f"{line.label}: {'; '.join(line.left_out)}" for line in found.lines if line.left_out
    ]
    if left_out:
        yield f"Not in the lines over all. {'. '.join(left_out)}."
    if any(line.over for line in found.lines):
        yield (
            "Over all, of the columns named and of the runs that their tests compare: mean effect: "
            "improvement in units of noise, d_z (sd of paired differences) or g (pooled sd, not "
            "paired), each workload counting alike; no mean of both kinds; its interval needs 4 "
            "pairs on each. IQM: mean of the middle half of all runs' improvements; P(better run): "
            "chance that a run beats one of the baseline's on the same workload, 0.5 for equals; "
            "both with stratified bootstrap intervals (Agarwal et al. 2021) from "
            f"{across.LEAST_RUNS} seeds on. Lines over different columns do not compare."
        )
        yield (
            "Step time: training seconds over updates, ratios paired by seed, geometric mean with "
            "t interval; trials that ran at other times met other load, which no interval knows."
        )
    names = [table.workload for table in found.tables if table.baseline == found.baseline]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        yield (
            f"In several studies, so counted as often, though not independent: {', '.join(twice)}; "
            "the lines over all are for studies of different workloads."
        )


def to_csv(found: Summary) -> str:
    """Returns one line for each variant and column, and one for each over all (`study` empty):
    numbers at full precision, empty where undefined."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(
        ("variant", "study", "workload", "quantity", *("value", "low", "high"), "verdict")
    )
    for line in found.lines:
        for each, table in zip(line.cells, found.tables, strict=True):
            if each is not None:
                place = (line.variant, table.study.name, table.workload, "improvement_percent")
                _write(writer, place, each.percent, _word(each.comparison))
        over = {f"effect_{line.effect_kind}": line.effect, "iqm": line.iqm}
        over |= {"improvement": line.improvement, "step_time": line.step_time}
        for name, estimate in over.items() if line.over else ():
            _write(writer, (line.variant, "", _numbers(line.over), name), estimate, "")
        if line.failed is not None:
            share = line.failed.count / line.failed.n
            rate = Estimate(share, line.failed.low, line.failed.high)
            _write(writer, (line.variant, "", "", "failed_to_train"), rate, "")
    return out.getvalue()


def _write(writer: Any, place: tuple[str, ...], each: Estimate, verdict: str) -> None:
    numbers = ("" if math.isnan(x) else x for x in (each.value, each.low, each.high))
    writer.writerow((*map(printing.cell_text, place), *numbers, verdict))


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
                word = _word(each.comparison)
                mark = MARKS[word] if word in DECIDED else ""
                bounds = (each.percent.low, each.percent.high)
                where = (axes, height, line.variant, each.percent.value, bounds)
                style.interval_row(*where, None, mark, color=DECIDED.get(word, style.BLACK))
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
            f"{_interval(each.percent, 1)} {_word(each.comparison)}"
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
