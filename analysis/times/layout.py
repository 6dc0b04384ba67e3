"""Lays the times to a target out: which columns, in which unit, which notes below."""

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

from analysis.documents import grid, variants
from analysis.documents.grid import Cell, Column, Document, Grid
from analysis.results.error_table import ErrorTable
from analysis.times import crossings, hours_to_loss
from analysis.times.crossings import Crossing, Median
from analysis.times.speed_up import SpeedUp

if TYPE_CHECKING:
    from analysis.times.target_times import TargetTimes, VariantTimes

NONE = Cell(grid.NOTHING)
HOUR = 3600.0
# What is said of the rule by which trials stand for seeds.
RULES = {
    "chosen": "Rule: of each variant the trials at the hyperparameter point that validation chose "
    "over all seeds. AlgoPerf scores otherwise: --points=fastest.",
    "fastest": "Rule: AlgoPerf's scoring: of each seed (study) the trial, of all its points, that "
    "reaches the target at the earliest evaluation, the least time on ties; more points make it "
    "faster.",
    "all": "Rule: every hyperparameter point is a row of its own.",
}
# From here on a budget is told in hours: 2 h.
LONG = 2 * HOUR


def document(times: "TargetTimes", table: ErrorTable) -> Document:
    """Returns two grids, medians with speed-ups and every seed, and a third for the paper's
    hours where `table` is of the model that it gives them for."""
    paper = hours_to_loss.grid_of(table)
    notes = (*_notes(times), *(hours_to_loss.NOTES if paper else ()))
    return Document(
        title=f"{times.name}: time to {times.target.words} on {times.workload}",
        grids=(_medians(times), *((paper,) if paper else ()), _seeds(times)),
        notes=notes,
        problems=times.problems,
    )


def unit(times: "TargetTimes") -> tuple[float, str]:
    """Returns the seconds of one unit of time and its name: hours for long budgets."""
    longest = max(
        (each.last_seconds for row in times.rows for each in row.crossings
         if math.isfinite(each.last_seconds)), default=0.0
    )  # fmt: skip
    return (HOUR, "h") if longest >= LONG else (1.0, "s")


def has_points(times: "TargetTimes") -> bool:
    """Returns whether a variant has several points, so that rows must name theirs."""
    return len({row.variant for row in times.rows}) < len(times.rows)


def label(times: "TargetTimes", row: "VariantTimes") -> str:
    """Returns the row's name: the variant, and its point where several are shown."""
    name = variants.label(row.variant)
    return f"{name}, point {row.point}" if has_points(times) else name


def _medians(times: "TargetTimes") -> Grid:
    seconds, name = unit(times)
    has_ratios = any(row.by_steps for row in times.rows)
    ratios = (Column("Speed-up\nin steps"), Column("Speed-up\nin time")) if has_ratios else ()
    pairs = (Column("Pairs"),) if has_ratios and times.paired else ()
    return Grid(
        caption="Median over seeds until the target is first reached",
        columns=(
            Column("Variant", numeric=False), Column("Seeds\nreached"), Column("Steps"),
            Column(f"Time\n({name})"), *pairs, *ratios,
        ),
        sections=(tuple(_row(times, row, seconds, has_ratios) for row in times.rows),),
    )  # fmt: skip


def _row(
    times: "TargetTimes", row: "VariantTimes", seconds: float, has_ratios: bool
) -> tuple[Cell, ...]:
    reached = sum(each.is_reached for each in row.crossings)
    time = crossings.seconds(row.crossings)
    cells = (
        Cell(label(times, row)),
        Cell(f"{reached} of {len(row.crossings)}"),
        _median(crossings.steps(row.crossings), 0),
        _median(Median(time.value / seconds, time.is_bound), 2 if seconds > 1 else 1),
    )
    if not has_ratios:
        return cells
    pairs = (Cell(str(row.by_steps.n)) if row.by_steps else NONE,) if times.paired else ()
    return (*cells, *pairs, _ratio(row.by_steps), _ratio(row.by_seconds))


def in_words(times: "TargetTimes", row: "VariantTimes") -> str:
    """Returns the row's medians: `LASER 300 steps, 10.5 s (3 of 3 seeds)`."""
    seconds, name = unit(times)
    variant, reached, steps, time, *_ = _row(times, row, seconds, False)
    medians = [f"{steps.text} steps", f"{time.text} {name}" if time != NONE else ""]
    if not any(each.is_reached for each in row.crossings):
        medians = ["never"]
    return f"{variant.text} {', '.join(filter(None, medians))} ({reached.text} seeds)"


def _median(median: Median, digits: int) -> Cell:
    if math.isnan(median.value):
        return NONE
    return Cell(f"{'> ' if median.is_bound else ''}{median.value:,.{digits}f}")


def _ratio(ratio: SpeedUp | None) -> Cell:
    if ratio is None:
        return Cell("baseline")
    if ratio.method in ("none", "units"):
        return NONE
    if math.isnan(ratio.low):
        return Cell(f"{ratio.ratio:.3f} (no interval)")
    if ratio.low == ratio.high:
        return Cell(f"{ratio.ratio:.3f} (all equal)")
    return Cell(f"{ratio.ratio:.3f} [{ratio.low:.3f}, {ratio.high:.3f}]")


def _seeds(times: "TargetTimes") -> Grid:
    seconds, name = unit(times)
    rows = tuple(
        (
            Cell(label(times, row)),
            Cell(str(each.seed)),
            *([_point(each)] if times.rule == "fastest" else ()),
            _when(each.step, each.last_step, 0),
            _when(each.seconds / seconds, each.last_seconds / seconds, 2 if seconds > 1 else 1),
            Cell(each.state),
        )
        for row in times.rows
        for each in row.crossings
    )
    words = (Column("Variant", numeric=False), Column("State", numeric=False))
    point = (Column("Point"),) if times.rule == "fastest" else ()
    when = (Column("Steps"), Column(f"Time ({name})"))
    return Grid("Every seed", (words[0], Column("Seed"), *point, *when, words[1]), (rows,))


def _point(crossing: Crossing) -> Cell:
    """Which of a seed's trials was the fastest; none of them where none reached the target."""
    return Cell(str(crossing.point)) if crossing.is_reached else NONE


def _when(value: float, budget: float, digits: int) -> Cell:
    if math.isnan(value):
        return NONE
    if math.isfinite(value):
        return Cell(f"{value:,.{digits}f}")
    return Cell(f"not in {budget:,.{digits}f}")


def _notes(times: "TargetTimes") -> Iterable[str]:
    target = times.target
    yield f"Target: {target.words}, {target.source}."
    if times.disagreement:
        yield f"{times.disagreement}; the trials' own value is used."
    yield (
        "Reached: the first evaluation at or past the target, so a time is known to one "
        f"evaluation only: {_spacing(times)}."
    )
    yield (
        "Time: accumulated_submission_time, training without evaluation and logging; it compares "
        "variants only where they ran on the same machines."
    )
    yield (
        "Seeds that are done, diverged or failed count; one that never reaches the target is later "
        "than its last evaluation. '> x': the median hangs on such seeds and lies above x."
    )
    yield RULES[times.rule]
    if times.unchosen:
        names = ", ".join(map(variants.label, times.unchosen))
        yield f"No trial of {names} is done, so no point was chosen: counted as never."
    yield from _lost(times)
    yield from _ratio_notes(times)


def _lost(times: "TargetTimes") -> Iterable[str]:
    """Names the seeds that ended early and those that have not ended."""
    names = [
        f"{label(times, row)} seed {each.seed} ({each.state})"
        for row in times.rows
        for each in row.crossings
        if each.state in crossings.LOST_STATES and not each.is_reached
    ]
    if names:
        yield f"Ended without reaching the target, counted as never: {', '.join(names)}."
    point = " point {0.point}" if has_points(times) else ""
    waiting = [
        f"{variants.label(run.variant)}{point.format(run)} seed {run.seed} ({run.state})"
        for run in times.left_out
    ]
    if waiting:
        yield f"Left out, as they may yet reach the target: {', '.join(waiting)}."


def _other_units(times: "TargetTimes", row: "VariantTimes") -> str:
    base = next(each for each in times.rows if each.by_steps is None)
    return (
        f"No speed-up in steps of {label(times, row)}: one of its steps took "
        f"{row.step_seconds:.3g} s, one of {label(times, base)}'s {base.step_seconds:.3g} s; they "
        "count different things."
    )


def _spacing(times: "TargetTimes") -> str:
    apart = {
        label(times, row): max((e.apart for e in row.crossings if e.apart == e.apart), default=0.0)
        for row in times.rows
    }
    values = sorted({round(value) for value in apart.values() if value})
    if not values:
        return "there is one evaluation"
    if len(values) == 1:
        return f"evaluations lie {values[0]:,} steps apart"
    return (
        f"evaluations lie {values[0]:,} to {values[-1]:,} steps apart, not the same for every "
        "row, which favours rows that are evaluated more often"
    )


def _ratio_notes(times: "TargetTimes") -> Iterable[str]:
    methods = {row.by_steps.method for row in times.rows if row.by_steps}
    if not methods:
        yield f"No speed-up: no row is the baseline, {times.baseline}."
        return
    name = variants.label(times.baseline)
    yield f"Speed-up: {name}'s over the variant's; above 1 the variant is faster."
    if "paired" in methods:
        yield (
            "[a, b]: 95% t interval of the mean log ratio over shared seeds; the ratio is the "
            "geometric mean."
        )
    if any(row.by_steps and row.by_steps.low == row.by_steps.high for row in times.rows):
        yield (
            "all equal: every seed has the same ratio, as evaluations this far apart allow; that "
            "is no interval of width 0."
        )
    if "Welch" in methods:
        yield (
            "[a, b]: 95% Welch interval of the difference of mean logs (seeds are not shared "
            "between published submissions); the ratio is that of geometric means."
        )
    if "medians" in methods:
        yield (
            "no interval: a seed never reached the target, or there are fewer than 2"
            f"{' pairs' if times.paired else ''}; the ratio is that of the medians over seeds."
        )
    if times.paired:
        yield "Pairs: seeds that the baseline has, too; without one a seed is in no paired ratio."
    for row in times.rows:
        if row.by_steps and row.by_steps.method == "units":
            yield _other_units(times, row)
    if "none" in methods:
        yield f"{grid.NOTHING}: a median is not reached, so there is no ratio."
