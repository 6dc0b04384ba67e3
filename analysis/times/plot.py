"""times.png: when each seed first reaches the target, in steps and in training time."""

import math
from typing import TYPE_CHECKING

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from analysis.documents import style
from analysis.reading import targets
from analysis.results.error_table import ErrorTable
from analysis.times import crossings

if TYPE_CHECKING:
    from analysis.times.target_times import TargetTimes, VariantTimes


def draw(table: ErrorTable) -> Figure | None:
    """Returns the figure at the points and the target that `target_times.build` takes by
    default, None where no run has an evaluation or a target, or no seed reaches it.

    A dot is a seed, a bar the median; a hollow triangle at its budget is a seed that never
    reached the target.
    """
    from analysis.times import target_times

    try:
        times = target_times.build(table)
    except targets.UnknownTargetError:
        return None
    if not any(each.is_reached for row in times.rows for each in row.crossings):
        return None
    return figure(times)


def figure(times: "TargetTimes") -> Figure:
    """Returns the figure of `times`."""
    from analysis.times import layout

    has_time = any(math.isfinite(each.seconds) for row in times.rows for each in row.crossings)
    panels = 2 if has_time else 1
    across = style.columns(panels, 2)
    down = -(-panels // across)
    height = 1.5 + down * (0.8 + 0.38 * len(times.rows))
    drawn = style.figure(5.2 * across, height)
    axes = drawn.subplots(down, across, sharey=True, squeeze=False).ravel()
    _panel(axes[0], times, "step", 1.0, "training step")
    if has_time:
        seconds, name = layout.unit(times)
        _panel(axes[1], times, "seconds", seconds, f"training time ({name})")
    style.title(drawn, f"{times.name}: first {times.target.words} on {times.workload}")
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


def _panel(axes: Axes, times: "TargetTimes", what: str, scale: float, label: str) -> None:
    from analysis.times import layout

    style.tidy(axes)
    axes.grid(False, axis="y")
    for height, row in enumerate(times.rows):
        colour, marker = style.look(row.variant)
        for each in row.crossings:
            value = getattr(each, what)
            if math.isfinite(value):
                axes.plot(value / scale, height, marker, color=colour, ms=6, alpha=0.6, mew=0)
            elif not math.isnan(value):
                budget = each.last_step if what == "step" else each.last_seconds
                axes.plot(budget / scale, height, ">", color=colour, mfc="none", ms=7)
        _median(axes, row, what, scale, height)
    axes.set_yticks(range(len(times.rows)), [layout.label(times, r) for r in times.rows])
    axes.set_ylim(len(times.rows) - 0.5, -0.5)
    axes.set_xlim(0, 1.03 * axes.get_xlim()[1])  # a triangle at the last budget is not cut
    axes.set_xlabel(label, fontsize=10)
    if what == "step":
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))


def _median(axes: Axes, row: "VariantTimes", what: str, scale: float, height: float) -> None:
    colour, _ = style.look(row.variant)
    found = (crossings.steps if what == "step" else crossings.seconds)(row.crossings)
    if not found.is_bound and math.isfinite(found.value):
        axes.plot(found.value / scale, height, "|", color=colour, ms=20, mew=2.4)
