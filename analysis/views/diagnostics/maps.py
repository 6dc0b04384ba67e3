"""Diagnostics as maps: probabilities by layer, gradients by layer and step, mixers side by side."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.colors import LogNorm, Normalize, PowerNorm
from matplotlib.figure import Figure
from matplotlib.ticker import (
    EngFormatter,
    FuncFormatter,
    LogLocator,
    MaxNLocator,
    NullFormatter,
    PercentFormatter,
)

from analysis.compare import diagnostics
from analysis.compare.diagnostics import families
from analysis.compare.error_table import ErrorTable
from analysis.load.files.diagnostics import GRADIENTS, Diagnostics
from analysis.render import style
from attention import table as variants

COLOURS = "cividis"
GRADIENT_TITLES = dict(zip(GRADIENTS, ("logits", "W_Q", "W_K", "W_V"), strict=True))
# What a logarithmic scale has no colour for; where the last layer starts at 0, all of step 0 is.
ZERO = "0, or not recorded"
# Labels of steps that fit below one of two panels.
STEP_TICKS = 5
# Where the underflow bin stands, left of the others, in decades.
_UNDERFLOW = 1.0


def histogram(table: ErrorTable) -> Figure | None:
    """Returns the map of the last record's probabilities: a panel per variant, a row per layer,
    the colour the share of its probabilities in half a decade. None without histograms."""
    found = diagnostics.of_table(table)
    shares = {name: _shares(found[name]) for name in found}
    known = {name: share for name, share in shares.items() if share is not None}
    if not known:
        return None
    grouped = families(known)
    mixers = list(dict.fromkeys(variants.mixer(name) for name in known))
    columns = style.columns(len(mixers), len(mixers))
    depth = max(share.shape[0] for share in known.values())
    height = min(3.0, 1.5 + 0.08 * depth)
    rows = len(known) if columns == 1 else len(grouped)
    figure = style.figure(10.0, 1.3 + height * rows)
    grid = figure.subplots(rows, columns, squeeze=False, sharex=True)
    colours = PowerNorm(0.5, 0, max(share.max() for share in known.values()))
    for name, axes in _placed(grid, grouped, mixers, columns).items():
        edges = next(iter(found[name].values())).edges
        mesh = _histogram_panel(axes, name, known[name], edges, colours)
    for axes in grid[-1]:
        axes.set_xlabel("attention probability", fontsize=9)
    bar = figure.colorbar(mesh, ax=grid, format=PercentFormatter(1.0), pad=0.01, aspect=30)
    bar.set_label("share of the layer's probabilities", fontsize=9)
    bar.ax.tick_params(labelsize=9)
    seeds = max(len(found[name]) for name in known)
    spread = style.seeds_in_words("mean of", seeds)
    what = f"attention probabilities in the last record, {table.workload}, {spread}"
    style.title(figure, f"{table.study.name}: {what}")
    return figure


def _placed(
    grid: np.ndarray, grouped: dict[str, list[str]], mixers: list[str], columns: int
) -> dict[str, Axes]:
    """Returns each variant's axes: a row per family and a column per mixer, or one column."""
    if columns == 1:
        names = [name for group in grouped.values() for name in group]
        return dict(zip(names, grid[:, 0], strict=True))
    placed = {}
    for axes in grid.flat:
        axes.set_visible(False)
    for row, names in enumerate(grouped.values()):
        for name in names:
            placed[name] = grid[row, mixers.index(variants.mixer(name))]
            placed[name].set_visible(True)
    return placed


def _shares(of_seeds: dict[int, Diagnostics]) -> np.ndarray | None:
    """Returns the shares [layers, bins] of the last shared record, mean over seeds."""
    every = list(of_seeds.values())
    step = diagnostics.last_step(every)
    if step is None or len({one.edges.tobytes() for one in every}) > 1:
        return None
    depth = min(len(one.layers) for one in every)
    counts = np.stack([one.histogram[one.steps == step][0][:depth] for one in every])
    whole = counts.sum(axis=-1, keepdims=True)
    if not (whole > 0).all():
        return None
    return (counts / whole).mean(axis=0)


def _histogram_panel(
    axes: Axes, name: str, shares: np.ndarray, edges: np.ndarray, colours: Normalize
) -> QuadMesh:
    depth = np.arange(len(shares) + 1) - 0.5
    looks: dict[str, Any] = {"norm": colours, "cmap": COLOURS}
    mesh = axes.pcolormesh(edges, depth, shares[:, 1:], **looks)
    left = edges[0] - _UNDERFLOW
    axes.pcolormesh([left - 0.5, left], depth, shares[:, :1], **looks)
    for power in (-3, -7):
        axes.axvline(power, color="white", lw=1.2, ls=style.REFERENCE_LINES[0])
    # Few enough for four panels side by side; the dashed lines are at two of them.
    ticks = [power for power in (-7, -3, 0) if edges[0] <= power <= edges[-1]]
    names = ["1" if power == 0 else f"1e{power}" for power in ticks]
    axes.set_xticks([left - 0.25, *ticks], [f"<1e{edges[0]:g}", *names])
    _of_layers(axes, name, depth)
    return mesh


def _of_layers(axes: Axes, name: str, depth: np.ndarray) -> None:
    """Gives a variant's panel its title, and a y axis of the layers from the input downwards."""
    axes.tick_params(labelsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    axes.yaxis.set_major_locator(MaxNLocator(nbins=6, integer=True, min_n_ticks=1))
    axes.set_ylim(depth[-1], depth[0])
    axes.set_ylabel("layer", fontsize=9)
    axes.set_title(variants.label(name), fontsize=10, loc="left")


def gradients(table: ErrorTable) -> Figure | None:
    """Returns the map of gradient norms, a row per gradient, layers by steps, mixers side by side
    under one colour scale, median over seeds. Of several families the first that has two mixers.
    None where no trial has gradients."""
    found = diagnostics.of_table(table)
    grouped = list(families(found).values())
    first = grouped[0] if grouped else []
    names = next((group for group in grouped if len(group) > 1), first)
    maps = {
        (quantity, name): _over_steps(found[name], quantity)
        for quantity in GRADIENTS
        for name in names
    }
    rows = [q for q in GRADIENTS if any((maps[q, name][1] > 0).any() for name in names)]
    if not rows:
        return None
    panels = len(rows) * len(names)
    figure, grid = style.grid(panels, len(names), lambda lines, _: (10.0, 1.0 + 1.9 * lines))
    flat = iter(grid.flat)
    for quantity in rows:
        side_by_side = [next(flat) for _ in names]
        numbers = np.concatenate([maps[quantity, name][1].ravel() for name in names])
        low, high = (float(of(numbers[numbers > 0])) for of in (np.min, np.max))
        norm = LogNorm(low, max(high, 1.01 * low))
        for name, axes in zip(names, side_by_side, strict=True):
            steps, values = maps[quantity, name]
            mesh = _map_panel(axes, name, steps, values, norm)
        bar = figure.colorbar(mesh, ax=side_by_side, pad=0.01, aspect=12)
        bar.set_label(f"on {GRADIENT_TITLES[quantity]}", fontsize=10)
        _bar_ticks(bar.ax, norm)
    for axes in grid[-1]:
        axes.set_xlabel("training step", fontsize=9)
    seeds = max(len(found[name]) for name in names)
    spread = style.seeds_in_words("median over", seeds)
    what = f"gradient norms by layer and step, {table.workload}, {spread}"
    style.title(figure, f"{table.study.name}: {what}")
    if not all((maps[quantity, name][1] > 0).all() for quantity in rows for name in names):
        style.legend(figure, [style.key(ZERO, marker="s", ms=9, color=style.LIGHT)])
    return figure


def _bar_ticks(axes: Axes, norm: LogNorm) -> None:
    """Labels decades, or 1, 2 and 5 where there are fewer than two."""
    few = (norm.vmax or 1) / (norm.vmin or 1) < 100
    axes.tick_params(labelsize=8)
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if few else (1.0,)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0e}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def _over_steps(of_seeds: dict[int, Diagnostics], quantity: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns the shared steps [N] and the median over seeds [N, layers]; nan where none has it."""
    every = list(of_seeds.values())
    steps = diagnostics.shared_steps(every)
    values = diagnostics.stacked(every, quantity, steps)
    known = ~np.isnan(values).all(axis=0)
    median = np.full(known.shape, np.nan)
    median[known] = np.nanmedian(values[:, known], axis=0)
    return np.array(steps), median


def _map_panel(
    axes: Axes, name: str, steps: np.ndarray, values: np.ndarray, norm: LogNorm
) -> QuadMesh:
    depth = np.arange(values.shape[1] + 1) - 0.5
    middle = (steps[1:] + steps[:-1]) / 2
    half = (middle[0] - steps[0], steps[-1] - middle[-1]) if len(steps) > 1 else (0.5, 0.5)
    edges = np.concatenate([[steps[0] - half[0]], middle, [steps[-1] + half[1]]])
    mesh = axes.pcolormesh(edges, depth, values.T, norm=norm, cmap=COLOURS)
    axes.set_facecolor(style.LIGHT)
    # At recorded steps, each in the middle of its column, which reaches halfway to the next.
    axes.set_xticks(steps[:: -(-len(steps) // STEP_TICKS)])
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    _of_layers(axes, name, depth)
    return mesh
