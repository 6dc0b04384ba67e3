"""Panels of diagnostics as lines: over training or by layer, the mixers of a family in one panel.

A family is the variants with one set of modifiers, so that Standard and LASER lie in one panel; all
panels of a quantity share their axis.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator, PercentFormatter

from analysis.compare import diagnostics
from analysis.compare.diagnostics import families
from analysis.compare.error_table import ErrorTable
from analysis.load.files.diagnostics import Diagnostics
from analysis.render import style

Curve = tuple[np.ndarray, np.ndarray]


def root_sum_square(values: np.ndarray, axis: int) -> np.ndarray:
    """Returns the norm over an axis, of those that exist; nan where none does."""
    norm = np.sqrt(np.nansum(np.square(values), axis=axis))
    return np.where(np.isnan(values).all(axis=axis), np.nan, norm)


@dataclass(frozen=True)
class Panel:
    """One quantity. `reduce(values, axis)` makes one number of the layers' and draws it over
    training; None draws the last record by layer. `of` divides by another quantity. `scale` is
    'share' and 'zero' (from 0), 'log' (where the numbers span much) or 'linear'."""

    title: str
    quantity: str
    reduce: Callable[..., np.ndarray] | None
    scale: str = "linear"
    of: str = ""


def draw(
    table: ErrorTable, title: str, panels: tuple[Panel, ...], lines: dict[str, float] | None = None
) -> Figure | None:
    """Returns the figure, None where no trial has a number for any of the panels.

    Line: median over seeds; band: smallest to largest. `lines` are horizontal reference lines, a
    quantity to its value.
    """
    found = diagnostics.of_table(table)
    panels = tuple(panel for panel in panels if any(_curve(found[name], panel) for name in found))
    if not panels:
        return None
    grouped = families(found)
    figure, placed = _laid_out(panels, list(grouped))
    shared: dict[tuple[str, bool], Axes] = {}
    for (panel, family), axes in placed.items():
        curves = {name: _curve(found[name], panel) for name in grouped[family]}
        known = {name: curve for name, curve in curves.items() if curve is not None}
        _draw_panel(axes, panel, known, (lines or {}).get(panel.quantity))
        first = shared.setdefault((panel.quantity, panel.scale == "share"), axes)
        if first is not axes:
            axes.sharey(first)
    _scale(placed)
    seeds = max(len(of_variant) for of_variant in found.values())
    spread = style.seeds_in_words("median and range of", seeds)
    style.title(figure, f"{table.study.name}: {title}, {table.workload}, {spread}")
    handles = style.mixer_keys(found, ls="-", ms=5)
    if lines:
        dashes = style.REFERENCE_LINES[0]
        handles.append(style.key("paper, decoder of 2.2B", color=style.GREY, ls=dashes, lw=1.1))
    style.legend(figure, handles)
    return figure


def _curve(of_seeds: dict[int, Diagnostics], panel: Panel) -> Curve | None:
    """Returns x [N] (steps, or layers from 0) and the numbers [seeds, N], None without any."""
    every = list(of_seeds.values())
    shared = diagnostics.shared_steps(every)
    if not shared:
        return None
    steps = shared if panel.reduce else shared[-1:]
    values = diagnostics.stacked(every, panel.quantity, steps)
    if panel.of:
        of = diagnostics.stacked(every, panel.of, steps)
        with np.errstate(divide="ignore", invalid="ignore"):
            values = np.where(of > 0, values / of, np.nan)
    if panel.reduce is None:
        x, numbers = np.arange(values.shape[2]), values[:, 0]
    else:
        known = ~np.isnan(values).all(axis=2)
        x, numbers = np.array(steps), np.full(known.shape, np.nan)
        numbers[known] = panel.reduce(values[known], axis=1)
    there = ~np.isnan(numbers).all(axis=0)
    return (x[there], numbers[:, there]) if there.any() else None


def _laid_out(
    panels: tuple[Panel, ...], names: list[str]
) -> tuple[Figure, dict[tuple[Panel, str], Axes]]:
    """Returns the figure and its axes: of one family two panels in a row, else a row of families
    for each panel."""
    places = [(panel, name) for panel in panels for name in names]
    figure, grid = style.grid(
        len(places),
        2 if len(names) == 1 else len(names),
        lambda rows, columns: (10.0, 1.1 + (2.5 if columns <= 2 else 2.1) * rows),
    )
    placed = dict(zip(places, grid.flat, strict=False))
    tabular = len(names) > 1 and grid.shape[1] == len(names)
    for (panel, name), axes in placed.items():
        if tabular:
            axes.set_title(name if panel is panels[0] else "", fontsize=10, loc="left")
            if name == names[0]:
                axes.set_ylabel(panel.title.replace(", ", ",\n", 1), fontsize=9)
        else:
            text = panel.title if len(names) == 1 else f"{panel.title} ({name})"
            axes.set_title(text, fontsize=10, loc="left", wrap=True)
    return figure, placed


def _draw_panel(
    axes: Axes, panel: Panel, curves: dict[str, Curve], reference: float | None
) -> None:
    style.tidy(axes)
    for name, (x, numbers) in curves.items():
        bounds = [of(numbers, axis=0) for of in (np.nanmin, np.nanmedian, np.nanmax)]
        style.band(axes, x, bounds, name, ms=4.5, lw=1.5)
    if reference is not None:
        axes.axhline(reference, color=style.GREY, linestyle=style.REFERENCE_LINES[0], lw=1.1)
    if panel.reduce is None:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        axes.set_xlabel("layer, from the input", fontsize=9)
    else:
        axes.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        axes.set_xlabel("training step", fontsize=9)


def _scale(placed: dict[tuple[Panel, str], Axes]) -> None:
    """Sets the y axes of panels that share theirs: percentages from 0, decades where they span."""
    groups: dict[tuple[str, str], list[Axes]] = {}
    for (panel, _), axes in placed.items():
        groups.setdefault((panel.quantity, panel.scale), []).append(axes)
    for (_, scale), group in groups.items():
        shown = [np.asarray(line.get_ydata(), float) for axes in group for line in axes.lines]
        numbers = np.concatenate([*shown, np.empty(0)])
        numbers = numbers[np.isfinite(numbers)]
        if scale == "zero":
            group[0].set_ylim(0, 1.08 * numbers.max(initial=1e-9))
        elif scale == "share":
            group[0].set_ylim(0, max(0.01, 1.08 * numbers.max(initial=0)))
        elif scale == "log" and style.spans_decades(numbers):
            group[0].set_ylim(*style.around(numbers, True, room=0.15))
            for axes in group:
                style.log_axis(axes.yaxis)
        for axes in group:
            if scale == "share":
                axes.yaxis.set_major_formatter(PercentFormatter(1.0))
