"""The time to a target: steps and seconds per variant and seed, speed-ups; time_to_target.png."""

import math
from collections.abc import Iterable
from typing import Literal

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from analysis.compare import crossings, target_times
from analysis.compare.crossings import Median
from analysis.compare.error_table import ErrorTable, VariantResult
from analysis.compare.target_times import TargetTimes, VariantTimes
from analysis.load import metrics, paper
from analysis.load.targets import Target, UnknownTargetError
from analysis.render import pages, style
from analysis.render.pages import NONE, Cell, Page, Row, Table
from analysis.render.pictures import Plot
from analysis.statistics.speed_up import SpeedUp
from attention import table as variants
from sweeps.records import layout

Quantity = Literal["step", "seconds"]
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
# The paper's hours until the 2.2 B language model reaches a test loss.
PAPER_WORKLOAD, PAPER_LOSS, PAPER_SPLIT = "c4_lm_2b", 2.327, "test"
PAPER_FILE, PAPER_MODEL = "text_hours_to_loss.csv", "decoder-LM-2.2B"
PAPER_HEADING = f"hours to test loss {PAPER_LOSS} on TPU v5"
PAPER_NOTES = (
    f"paper: {paper.SOURCE}, text on the time to test loss {PAPER_LOSS}, on TPU v5; our hours are "
    "those of accumulated_submission_time on the machines that the trials ran on.",
    "The paper's 9.4 % is the ratio of its hours minus one, 27.22/24.88 - 1; the time saved is "
    "8.6 %, 1 - 24.88/27.22. It gives 2.344 and 2.347, too, as Standard's loss of this model, "
    "which does not agree with reaching 2.327.",
)


def page(table: ErrorTable) -> Page | None:
    """Returns the times at the points that validation chose and the target that the trials or
    AlgoPerf state, None where no run has an evaluation or nothing states a target."""
    try:
        return page_of(target_times.build(table))
    except UnknownTargetError:
        return None


def without_target(table: ErrorTable, why: UnknownTargetError) -> Page:
    """Returns the page of a study whose target nothing states."""
    title = f"{table.study.name}: time to a target on {table.workload}"
    return Page(title, (), (), (str(why), *table.problems))


def page_of(times: TargetTimes) -> Page:
    """Returns two tables, medians with speed-ups and every seed, and a third for the paper's
    hours where the study is of the model that it gives them for."""
    hours = _paper_hours(times.table)
    notes = (*_notes(times), *(PAPER_NOTES if hours else ()))
    return Page(
        title=f"{times.name}: time to {times.target.words} on {times.table.workload}",
        tables=(_medians(times), *((hours,) if hours else ()), _seeds(times)),
        notes=notes,
        problems=times.problems,
    )


def _unit(times: TargetTimes) -> tuple[float, str]:
    """Returns the seconds of one unit of time and its name: hours for long budgets."""
    longest = max(
        (each.last_seconds for row in times.rows for each in row.crossings
         if math.isfinite(each.last_seconds)), default=0.0
    )  # fmt: skip
    return (HOUR, "h") if longest >= LONG else (1.0, "s")


def _has_points(times: TargetTimes) -> bool:
    """Returns whether a variant has several points, so that rows must name theirs."""
    return len({row.variant for row in times.rows}) < len(times.rows)


def _label(times: TargetTimes, row: VariantTimes) -> str:
    """Returns the row's name: the variant, and its point where several are shown."""
    name = variants.label(row.variant)
    return f"{name}, point {row.point}" if _has_points(times) else name


def _medians(times: TargetTimes) -> Table:
    seconds, name = _unit(times)
    has_ratios = any(row.by_steps for row in times.rows)
    headings = ["Variant", "Seeds\nreached", "Steps", f"Time\n({name})"]
    if has_ratios:
        headings += [*["Pairs"] * times.is_paired, "Speed-up\nin steps", "Speed-up\nin time"]
    return Table(
        caption="Median over seeds until the target is first reached",
        columns=pages.columns(*headings),
        sections=(tuple(_row(times, row, seconds, has_ratios) for row in times.rows),),
    )


def _row(times: TargetTimes, row: VariantTimes, seconds: float, has_ratios: bool) -> Row:
    reached = sum(each.is_reached for each in row.crossings)
    time = crossings.median_of(row.crossings, "seconds")
    cells = (
        Cell(_label(times, row)),
        Cell(f"{reached} of {len(row.crossings)}"),
        _median(crossings.median_of(row.crossings, "step"), 0),
        _median(Median(time.value / seconds, time.is_bound), 2 if seconds > 1 else 1),
    )
    if not has_ratios:
        return cells
    ratio = row.by_steps
    pairs = (Cell(str(ratio.n)) if ratio and ratio.method != "Welch" else NONE,)
    return (*cells, *pairs * times.is_paired, _ratio(ratio), _ratio(row.by_seconds))


def _in_words(times: TargetTimes, row: VariantTimes) -> str:
    """Returns the row's medians: `LASER 300 steps, 10.5 s (3 of 3 seeds)`."""
    seconds, name = _unit(times)
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


def _seeds(times: TargetTimes) -> Table:
    seconds, name = _unit(times)
    point = ["Point"] if times.rule == "fastest" else []
    rows = tuple(
        (
            Cell(_label(times, row)),
            Cell(str(each.seed)),
            # Which of a seed's trials was the fastest; none where none reached the target.
            *([Cell(str(each.point)) if each.is_reached else NONE] if point else ()),
            _when(each.step, each.last_step, 0),
            _when(each.seconds / seconds, each.last_seconds / seconds, 2 if seconds > 1 else 1),
            Cell(each.state),
        )
        for row in times.rows
        for each in row.crossings
    )
    headings = ("Variant", "Seed", *point, "Steps", f"Time ({name})", "State")
    return Table("Every seed", pages.columns(*headings, words=("Variant", "State")), (rows,))


def _when(value: float, budget: float, digits: int) -> Cell:
    if math.isnan(value):
        return NONE
    if math.isfinite(value):
        return Cell(f"{value:,.{digits}f}")
    return Cell(f"not in {budget:,.{digits}f}")


def _notes(times: TargetTimes) -> Iterable[str]:
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


def _lost(times: TargetTimes) -> Iterable[str]:
    """Names the seeds that ended early and those that have not ended."""
    names = [
        f"{_label(times, row)} seed {each.seed} ({each.state})"
        for row in times.rows
        for each in row.crossings
        if each.state in layout.LOST and not each.is_reached
    ]
    if names:
        yield f"Ended without reaching the target, counted as never: {', '.join(names)}."
    point = " point {0.point}" if _has_points(times) else ""
    waiting = [
        f"{variants.label(run.variant)}{point.format(run)} seed {run.seed} ({run.state})"
        for run in times.left_out
    ]
    if waiting:
        yield f"Left out, as they may yet reach the target: {', '.join(waiting)}."


def _spacing(times: TargetTimes) -> str:
    apart = {
        _label(times, row): max((e.apart for e in row.crossings if e.apart == e.apart), default=0.0)
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


def _ratio_notes(times: TargetTimes) -> Iterable[str]:
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
            "[a, b]: 95% Welch interval of the difference of mean logs, where most seeds are not "
            "shared; the ratio is that of geometric means."
        )
    if "medians" in methods:
        yield (
            "no interval: a seed never reached the target, or there are fewer than 2"
            f"{' pairs' if times.is_paired else ''}; the ratio is that of the medians over seeds."
        )
    if times.is_paired:
        yield "Pairs: seeds that the baseline has, too; without one a seed is in no paired ratio."
    base = next(each for each in times.rows if each.by_steps is None)
    for row in times.rows:
        if row.by_steps and row.by_steps.method == "units":
            yield (
                f"No speed-up in steps of {_label(times, row)}: one of its steps took "
                f"{row.step_seconds:.3g} s, one of {_label(times, base)}'s {base.step_seconds:.3g} "
                "s; they count different things."
            )
    if "none" in methods:
        yield f"{pages.NOTHING}: a median is not reached, so there is no ratio."


def _paper_hours(table: ErrorTable) -> Table | None:
    """Returns the paper's hours beside the median over seeds of ours, None for another model."""
    if table.workload != PAPER_WORKLOAD:
        return None
    target = Target(metrics.get("loss"), PAPER_SPLIT, PAPER_LOSS, "the paper's")
    rows = tuple(_hours_cells(table, row, target) for row in table.rows)
    columns = pages.columns("Variant", "Seeds\nreached", "Hours\npaper", "Hours\nmeasured")
    return Table(f"Hours to test loss {PAPER_LOSS}", columns, (rows,))


def _hours_cells(table: ErrorTable, row: VariantResult, target: Target) -> Row:
    runs = table.runs(row, crossings.COUNTED_STATES)
    found = [each for run in runs if (each := crossings.of_run(run, target))]
    printed = paper.printed(PAPER_FILE, PAPER_MODEL, PAPER_HEADING, row.variant)
    hours = crossings.median_of(found, "seconds")
    return (
        Cell(row.label),
        Cell(f"{sum(each.is_reached for each in found)} of {len(found)}"),
        Cell(printed.text) if printed else NONE,
        _median(Median(hours.value / HOUR, hours.is_bound), 2),
    )


def draw(table: ErrorTable) -> Figure | None:
    """Returns the figure at the points and the target that `target_times.build` takes by
    default, None where no run has an evaluation or a target, or no seed reaches it.

    A dot is a seed, a bar the median; a hollow triangle at its budget is a seed that never
    reached the target.
    """
    try:
        times = target_times.build(table)
    except UnknownTargetError:
        return None
    if not any(each.is_reached for row in times.rows for each in row.crossings):
        return None
    has_time = any(math.isfinite(each.seconds) for row in times.rows for each in row.crossings)
    panels = 2 if has_time else 1
    of_rows = 0.8 + 0.38 * len(times.rows)
    drawn, grid = style.grid(
        panels, 2, lambda down, across: (5.2 * across, 1.5 + down * of_rows), sharey=True
    )
    axes = grid.ravel()
    _panel(axes[0], times, "step", 1.0, "training step")
    if has_time:
        seconds, name = _unit(times)
        _panel(axes[1], times, "seconds", seconds, f"training time ({name})")
    style.title(drawn, f"{times.name}: first {times.target.words} on {times.table.workload}")
    grey = style.GREY
    style.legend(
        drawn,
        [
            style.key("one seed", marker="o", markersize=5, color=grey),
            style.key("median", marker="|", markersize=12, mew=2.2, color=grey),
            style.key("not reached, at its budget", marker=">", mfc="none", color=grey),
        ],
    )
    return drawn


def _panel(axes: Axes, times: TargetTimes, what: Quantity, scale: float, label: str) -> None:
    style.tidy(axes)
    axes.grid(False, axis="y")
    for height, row in enumerate(times.rows):
        colour, marker = style.look(row.variant)
        for each in row.crossings:
            value = getattr(each, what)
            if math.isfinite(value):
                axes.plot(value / scale, height, marker, color=colour, ms=6, alpha=0.6, mew=0)
            elif not math.isnan(value):
                budget = getattr(each, f"last_{what}")
                axes.plot(budget / scale, height, ">", color=colour, mfc="none", ms=7)
        found = crossings.median_of(row.crossings, what)
        if not found.is_bound and math.isfinite(found.value):
            axes.plot(found.value / scale, height, "|", color=colour, ms=20, mew=2.4)
    axes.set_yticks(range(len(times.rows)), [_label(times, r) for r in times.rows])
    axes.set_ylim(len(times.rows) - 0.5, -0.5)
    axes.set_xlim(0, 1.03 * axes.get_xlim()[1])  # a triangle at the last budget is not cut
    axes.set_xlabel(label, fontsize=10)
    if what == "step":
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))


def words(table: ErrorTable) -> str:
    """Returns every variant's median steps and training time to the target, and how many of its
    seeds reach it."""
    times = target_times.build(table)
    rows = "; ".join(_in_words(times, row) for row in times.rows)
    return f"First {times.target.words} on {table.workload}, median over seeds: {rows}."


PLOTS = (
    Plot(
        file="time_to_target.png",
        draw=draw,
        words=words,
        absent="no target is known, or no seed reached it",
        caption="First evaluation at or past the target, one mark per seed.",
    ),
)
