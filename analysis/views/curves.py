"""learning_curves.png: the validation metric by step, one panel per modifier."""

import functools

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter

from analysis.compare.diagnostics import families
from analysis.compare.error_table import ErrorTable
from analysis.load.files.measurements import STEP
from analysis.load.selection import VALIDATION
from analysis.render import pages, style
from analysis.render.pictures import Plot
from attention import table as variants

Curve = tuple[np.ndarray, np.ndarray]
# The share of training whose evaluations need not be seen.
START = 0.1
# From so many seeds on the band is their middle half: the range of many is that of their worst.
QUARTILES_FROM = 8


def draw(table: ErrorTable) -> Figure | None:
    """Returns the figure, None where no trial of the table has a curve.

    Every panel holds the mixers with one set of modifiers, so that Standard and LASER lie side
    by side: line = median over seeds, band = smallest to largest, of many the middle half.
    """
    curves = {row.variant: curve for row in table.rows if (curve := _curve(table, row.variant))}
    if not curves:
        return None
    panels = families(curves)
    figure, grid = style.grid(
        len(panels),
        2,
        lambda down, across: (7.2 if across == 1 else 10.0, 0.9 + 3.0 * down + (down == 1)),
        sharex=True,
        sharey=True,
    )
    for axes, (title, names) in zip(grid.flat, panels.items(), strict=False):
        of_panel = {name: curves[name] for name in names}
        _panel(axes, title if len(panels) > 1 else "", of_panel, table)
    _finish(figure, grid, table, curves)
    figure.draw_without_rendering()  # labels are moved apart where the axes have come to lie
    for axes, names in zip(grid.flat, panels.values(), strict=False):
        style.line_labels(axes, [end for name in names for end in _end(name, curves[name])])
    return figure


def _end(name: str, curve: Curve) -> list[tuple[float, float, str, str]]:
    """Returns where a curve's median is seen last, its label and colour; nothing where it never
    is."""
    steps, values = curve
    middle = np.median(values, axis=0)
    seen = np.flatnonzero(np.isfinite(middle))
    label, colour = variants.mixer_label(name), style.look(name)[0]
    return [(float(steps[seen[-1]]), float(middle[seen[-1]]), label, colour)] if seen.size else []


def _curve(table: ErrorTable, variant: str) -> Curve | None:
    """Returns steps [N] and the numbers [seeds, N] over the steps that every seed trained."""
    column = table.metric.column(VALIDATION)
    measured = [
        (run.evals[STEP], table.metric.shown(run.evals[column]))
        for run in table.runs(table.by_variant[variant], ("done",))
        if column in run.evals and len(run.evals[STEP])
    ]
    if not measured:
        return None
    steps = _steps([steps for steps, _ in measured])
    if not steps.size:
        return None
    return steps, np.stack([np.interp(steps, *own) for own in measured])


def _steps(evaluated: list[np.ndarray]) -> np.ndarray:
    """Returns the steps to draw: those that every seed evaluated. Where these are under half of
    a seed's own, as in AlgoPerf's logs, which are evaluated by the clock, all steps between the
    last first and the first last: numbers are then interpolated between evaluations."""
    shared = functools.reduce(np.intersect1d, evaluated)
    if 2 * len(shared) >= max(map(len, evaluated)):
        return shared
    begin, end = max(steps[0] for steps in evaluated), min(steps[-1] for steps in evaluated)
    every = np.unique(np.concatenate(evaluated))
    return every[(begin <= every) & (every <= end)]


def _panel(axes: Axes, title: str, curves: dict[str, Curve], table: ErrorTable) -> None:
    style.tidy(axes)
    axes.set_title(title, fontsize=11, loc="left")
    for name, (steps, values) in curves.items():
        share = 0.25 if len(values) >= QUARTILES_FROM else 0.0
        # Of numbers that are there: between two infinite ones nothing can be interpolated.
        low, high = np.quantile(values, (share, 1 - share), axis=0, method="nearest")
        middle = np.median(values, axis=0)
        style.band(axes, steps, (low, middle, high), name, ms=5, lw=1.6)
    for reference, dashes in zip(table.references, style.REFERENCE_LINES, strict=False):
        if (value := reference.values[VALIDATION]) is not None:
            axes.axhline(value, color=style.GREY, linestyle=dashes, linewidth=1.1)


def _worth_showing(table: ErrorTable, curves: dict[str, Curve]) -> np.ndarray:
    """Returns the finite numbers that the y axis must hold.

    Before training a loss is log(vocabulary) and a WER may be above 1, far from where variants
    differ: of such metrics the first tenth of the steps may leave the axes, given that at least
    two evaluations are left.
    """
    chosen = []
    for steps, values in curves.values():
        late = steps >= START * steps[-1]
        whole = table.metric.is_bounded or late.sum() < 2
        chosen.append(values.ravel() if whole else values[:, late].ravel())
    numbers = np.concatenate(chosen)
    return numbers[np.isfinite(numbers)]


def _finish(figure: Figure, grid: np.ndarray, table: ErrorTable, curves: dict[str, Curve]) -> None:
    # The y axis, which the panels share: its scale and, for what has no worst, its ends.
    shown = _worth_showing(table, curves)
    logarithmic = style.spans_decades(shown)
    if shown.size and not table.metric.is_bounded:
        grid.flat[0].set_ylim(*style.around(shown, logarithmic))
    if logarithmic:
        style.log_axis(grid.flat[0].yaxis)
    figure.supylabel(f"validation {table.metric.axis(table.workload)}", fontsize=10)
    for axes in grid[-1]:
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        axes.set_xlabel("training step", fontsize=10)
    most = max(len(values) for _, values in curves.values())
    band = "middle half" if most >= QUARTILES_FROM else "range"
    seeds = style.seeds_in_words(f"median and {band} of", most)
    style.title(figure, f"{table.study.name}: {table.workload}, {seeds}")
    references = reference_handles(table, VALIDATION, grid.flat[0].get_ylim())
    unseen = [name for name, curve in curves.items() if not _end(name, curve)]
    if handles := [*style.mixer_keys(unseen, ms=5, ls="-"), *references]:
        style.legend(figure, handles)


def reference_handles(table: ErrorTable, split: str, limits: tuple[float, float]) -> list[Line2D]:
    """Returns the legend's entries of the reference rows whose number on `split` lies within the
    axis' `limits`, with it: a line outside is not to be seen."""
    return [
        style.key(f"{reference.name} (reference) {value:.4g}", color=style.GREY, ls=dashes)
        for reference, dashes in zip(table.references, style.REFERENCE_LINES, strict=False)
        if (value := reference.values[split]) is not None and min(limits) <= value <= max(limits)
    ]


def words(table: ErrorTable) -> str:
    """Returns what the learning curves end at."""
    ends = medians_in_words(table, VALIDATION)
    what = f"validation {table.metric.label} by training step"
    return f"Learning curves: {what}, median and spread over seeds. At the chosen step: {ends}."


def medians_in_words(table: ErrorTable, split: str) -> str:
    """Returns every variant's median on a split: `Standard 0.2500; LASER 0.2400`."""
    found = ((row.label, row.splits[split].summary) for row in table.rows)
    digits = table.metric.digits
    return "; ".join(
        f"{label} {pages.number(each.median, digits).text}" for label, each in found if each
    )


PLOTS = (
    Plot(
        file="learning_curves.png",
        draw=draw,
        words=words,
        absent="no trial that is done has a curve",
        caption="Line: median over seeds. Band: smallest to largest seed; from "
        f"{QUARTILES_FROM} seeds on their middle half.",
    ),
)
