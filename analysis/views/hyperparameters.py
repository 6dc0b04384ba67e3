"""hyperparameters.png: the validation metric of every tuned point, by each hyperparameter."""

import contextlib
import math
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.compare.error_table import ErrorTable
from analysis.load import selection
from analysis.load.metrics import MissingMetricError
from analysis.load.records import Run
from analysis.render import style
from analysis.render.pictures import Plot
from sweeps.records import layout

# Ranges of a decade or more are searched on a log scale, and a few points cover part of one;
# study.json does not repeat the search space.
LOG_RANGE = 4.0
# Up to this many values, shared by points, are shown as categories.
FEW = 4
# Letters of 9 points that fit between two of FEW labels of a panel.
LONG_LABEL = 8


def draw(table: ErrorTable) -> Figure | None:
    """Returns the figure, None where no hyperparameter varies among the tuning trials.

    One dot per trial at its best validation step; the chosen point is ringed; diverged and failed
    trials, which have no number, are crosses along the upper edge.
    """
    runs = tuning_runs(table)
    names = varying(runs)
    if not names or not any(math.isfinite(_value(table, run)) for run in runs):
        return None
    figure, grid = style.grid(
        len(names), 3, lambda down, across: (max(6.0, 3.5 * across), 1.1 + 2.9 * down), sharey=True
    )
    for axes, name in zip(grid.flat, names, strict=False):
        _panel(axes, name, runs, table)
    _finish(figure, grid, table, runs)
    return figure


def _tuning_stage(table: ErrorTable) -> str:
    chosen_from = (table.study.selection or {}).get("from_stage")
    return chosen_from or (table.study.stages[0] if table.study.stages else table.stage)


def tuning_runs(table: ErrorTable) -> list[Run]:
    """Returns the runs among which points were chosen that have evaluations, or are lost."""
    runs = table.study.stage(_tuning_stage(table))
    return [run for run in runs if run.evals or run.state in layout.LOST]


def varying(runs: list[Run]) -> list[str]:
    """Returns the numeric hyperparameters that take more than one value, in their own order."""
    values: dict[str, set[Any]] = {}
    for run in runs:
        for name, value in run.hyperparameters.items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                values.setdefault(name, set()).add(value)
    return [name for name, taken in values.items() if len(taken) > 1]


def _value(table: ErrorTable, run: Run) -> float:
    """Returns the number to show at the step that validation chose, nan where there is none."""
    row = None
    if run.state not in layout.LOST:
        with contextlib.suppress(MissingMetricError):
            row = selection.best_step(run, table.chosen_by.source)
    if row is None:
        return math.nan
    value = table.metric.shown(row.get(table.metric.column(selection.VALIDATION), math.nan))
    return value if math.isfinite(value) else math.nan


def _panel(axes: Axes, name: str, runs: list[Run], table: ErrorTable) -> None:
    style.tidy(axes)
    axes.set_xlabel(name, fontsize=10)
    shown = [run for run in runs if name in run.hyperparameters]
    positions = _positions(axes, name, shown)
    for run, position in zip(shown, positions, strict=True):
        value = _value(table, run)
        colour, marker = style.look(run.variant)
        if math.isfinite(value):
            axes.plot(position, value, marker, color=colour, markersize=5.5, alpha=0.8, mew=0)
            if _is_chosen(table, run):
                axes.plot(position, value, "o", markersize=12, mfc="none", mec="black", mew=1.5)
        else:
            edge = axes.get_xaxis_transform()  # on the upper one, whatever the y axis holds
            axes.plot(position, 0.97, "x", color=colour, markersize=6, mew=1.6, transform=edge)


def _is_chosen(table: ErrorTable, run: Run) -> bool:
    return selection.chosen_point(table.study, run.stage, run.variant) == run.point


def _positions(axes: Axes, name: str, runs: list[Run]) -> list[float]:
    """Sets the x axis up for the values that `name` takes and returns where each run goes: a few
    values that points share are laid out evenly, trials spread a little so that all are seen."""
    values = [float(run.hyperparameters[name]) for run in runs]
    distinct = sorted(set(values))
    if len(distinct) <= FEW and len(distinct) < len({run.point for run in runs}):
        axes.set_xlim(-0.5, len(distinct) - 0.5)
        labels = short(distinct)
        axes.set_xticks(range(len(distinct)), labels)
        if max(map(len, labels)) > LONG_LABEL:  # slanted where they would meet
            axes.tick_params(axis="x", labelrotation=25)
        # Within 0.15 by the trial alone: multiples of the golden ratio's fraction never bunch up.
        spread = [((run.point + 50 * run.seed) * 0.618034 % 1 - 0.5) * 0.3 for run in runs]
        return [distinct.index(v) + offset for v, offset in zip(values, spread, strict=True)]
    if style.spans_decades(np.array(values), LOG_RANGE):
        axes.set_xlim(distinct[0] / 1.3, distinct[-1] * 1.3)
        style.log_axis(axes.xaxis, decades=1.5)
    else:
        axes.locator_params(axis="x", nbins=5)
    return values


def short(values: list[float]) -> list[str]:
    """Returns `values`, distinct, as they are where they fit a panel, else with as few digits
    (two at least) as tell them apart."""
    exact = [f"{value:g}" for value in values]
    if len(set(exact)) == len(values) and max(map(len, exact)) <= LONG_LABEL:
        return exact
    by_digits = ([f"{value:.{digits}g}" for value in values] for digits in range(2, 17))
    labels = next((each for each in by_digits if len(set(each)) == len(values)), None)
    return labels or [repr(value) for value in values]


def _finish(figure: Figure, grid: np.ndarray, table: ErrorTable, runs: list[Run]) -> None:
    values = np.array([_value(table, run) for run in runs])
    low, high = np.nanmin(values), np.nanmax(values)
    if style.spans_decades(values):
        # Room above the worst for the crosses of those that have no number.
        grid.flat[0].set_ylim(low / 1.15, high * (high / low) ** 0.12)
        style.log_axis(grid.flat[0].yaxis)
    else:
        room = max(high - low, 1e-3)
        grid.flat[0].set_ylim(low - 0.08 * room, high + 0.15 * room)
    figure.supylabel(f"validation {table.metric.axis(table.workload)}", fontsize=10)
    points = len({run.point for run in runs})
    stage = _tuning_stage(table)
    style.title(figure, f"{table.study.name}: stage {stage}, {points} hyperparameter points")
    handles = style.mixer_keys(run.variant for run in runs)
    if any(_is_chosen(table, run) for run in runs):
        ring = style.key("chosen by validation", marker="o", ms=11, mfc="none", color=style.BLACK)
        handles.append(ring)
    if np.isnan(values).any():
        handles.append(style.key("diverged or failed", marker="x", ms=7, color=style.GREY))
    style.legend(figure, handles)


def words(table: ErrorTable) -> str:
    """Returns which hyperparameters vary among how many points."""
    runs = tuning_runs(table)
    names = ", ".join(varying(runs))
    points = len({run.point for run in runs})
    return (
        f"Validation {table.metric.label} of {points} hyperparameter points against each of: "
        f"{names}. The point that validation chose is ringed."
    )


PLOTS = (
    Plot(
        file="hyperparameters.png",
        draw=draw,
        words=words,
        absent="no hyperparameter varies among measured trials",
        caption="One mark per trial at its best validation step.",
    ),
)
