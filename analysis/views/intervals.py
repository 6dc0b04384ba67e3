"""errors.png: every variant's seeds, mean and interval on one axis, grouped by mixer."""

import math

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from analysis.compare.error_table import ErrorTable, VariantResult
from analysis.render import pages, style
from analysis.render.pictures import Plot
from analysis.views.curves import medians_in_words, reference_handles

GAP = 0.4


def draw(table: ErrorTable) -> Figure | None:
    """Returns the figure, None where no variant has a number on the deciding split (test, or
    validation where nothing was tested)."""
    rows = [row for row in table.rows if table.of(row).values]
    if not rows:
        return None
    positions = _positions(rows)
    height = 1.9 + 0.42 * (max(positions.values()) + 1)
    labels = [row.label for row in rows]
    figure, axes = style.variant_rows(9.0, height, labels, [*positions.values()])
    for row in rows:
        _row(axes, table, row, positions[row.variant])
    _finish(figure, axes, table)
    return figure


def _positions(rows: list[VariantResult]) -> dict[str, float]:
    """Returns each variant's height, from 0 at the top, with a gap between groups."""
    positions: dict[str, float] = {}
    height, before = 0.0, rows[0].group
    for row in rows:
        height += GAP if row.group != before else 0.0
        positions[row.variant], before = height, row.group
        height += 1.0
    return positions


def _row(axes: Axes, table: ErrorTable, row: VariantResult, height: float) -> None:
    result = table.of(row)
    summary = result.summary
    assert summary is not None
    values = list(result.values.values())
    axes.plot(
        values,
        [height + 0.22] * len(values),
        "o",
        color=style.look(row.variant)[0],
        markersize=4,
        alpha=0.45,
        mew=0,
    )
    bounds = np.clip([summary.low, summary.high], *_ends(table)).tolist()
    paper = result.paper.value if result.paper else None
    remark = _remark(table, row)
    style.interval_row(axes, height, row.variant, summary.mean, bounds, paper, remark)


def _ends(table: ErrorTable) -> tuple[float, float]:
    """Returns between which numbers a mean can lie: no metric of ours is below 0, a share is no
    more than 1. An interval that goes on says only that so few seeds cannot bound it there."""
    return 0.0, 1.0 if table.metric.is_bounded else math.inf


def _remark(table: ErrorTable, row: VariantResult) -> str:
    """Returns what stands beside a row; a phone has room for its n alone."""
    if style.is_narrow():
        return f"n = {row.n}"
    if row.variant == table.baseline:
        return f"n = {row.n}, baseline"
    comparison = table.of(row).comparison
    if comparison is None or math.isnan(comparison.p_holm):
        return f"n = {row.n}"
    test = f" (test: {comparison.pairs})" if comparison.is_partial else ""
    return f"n = {row.n}{test}, {comparison.verdict} ({pages.p_in_words(comparison.p_holm)})"


def _finish(figure: Figure, axes: Axes, table: ErrorTable) -> None:
    label = f"{table.decisive} {table.metric.axis(table.workload)}"
    if table.has_baseline and not style.is_narrow():
        label = f"{label}   (p: {_test(table)}, corrected after Holm)"
    axes.set_xlabel(label, fontsize=10)
    _reference_lines(axes, table)
    if (row := table.baseline_row) and (summary := table.of(row).summary):
        colour, _ = style.look(row.variant)
        axes.axvline(summary.mean, color=colour, linewidth=0.8, alpha=0.5, zorder=1)
    style.title(figure, f"{table.study.name}: {table.workload}")
    style.legend(figure, _handles(table, axes.get_xlim()))


def _test(table: ErrorTable) -> str:
    paired = {each.is_paired for each in table.comparisons.values() if each.is_tested}
    name = "permutation test" if paired == {False} else "paired t-test"
    other = " or permutation test" if len(paired) > 1 else ""
    return f"{name}{other} against {table.baseline_label}"


def _reference_lines(axes: Axes, table: ErrorTable) -> None:
    """Draws those near the measured numbers: one far away would squeeze these into a dot."""
    low, high = axes.get_xlim()
    room = high - low
    for reference, dashes in zip(table.references, style.REFERENCE_LINES, strict=False):
        value = reference.values[table.decisive]
        if value is not None and low - 1.5 * room < value < high + 1.5 * room:
            axes.axvline(value, color=style.GREY, linestyle=dashes, linewidth=1.1, zorder=1)


def _handles(table: ErrorTable, limits: tuple[float, float]) -> list[Line2D]:
    grey = style.GREY
    interval = "mean, 95% interval (t)"
    low, high = _ends(table)
    summaries = [each for row in table.rows if (each := table.of(row).summary)]
    if any(each.low < low or each.high > high for each in summaries):
        interval += f", cut at {'0 or 1' if table.metric.is_bounded else '0'}"
    handles = [
        style.key("one seed", marker="o", markersize=4, alpha=0.5, color=grey),
        style.key(interval, marker="o", markersize=8, lw=2.4, color=grey, ls="-"),
    ]
    if table.is_paper:
        handles.append(style.key("paper", marker="D", mfc="none", color=style.BLACK))
    return handles + reference_handles(table, table.decisive, limits)


def words(table: ErrorTable) -> str:
    """Returns every variant's median on the deciding split."""
    medians = medians_in_words(table, table.decisive)
    return f"Each seed's {table.what}, with mean and 95% interval; medians: {medians}."


PLOTS = (
    Plot(
        file="errors.png",
        draw=draw,
        words=words,
        absent="no trial that is done has a number",
        caption="Each seed at the step that its validation chose; mean and 95% interval.",
    ),
)
