"""How plots look: colours that colour-blind readers tell apart, axes that state the numbers.

Colours: Okabe and Ito (2008), "Color Universal Design". A mixer keeps its colour and its marker
in every plot of a report, so that neither carries the meaning alone.
"""

import contextlib
import contextvars
import itertools
import textwrap
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib import ticker
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from attention import table as variants

# Figures are the same on every machine: a user's matplotlibrc may ask for LaTeX or other fonts.
matplotlib.rcdefaults()

BLUE, VERMILLION, GREEN, PURPLE = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
ORANGE, SKY, BLACK, GREY = "#E69F00", "#56B4E9", "#000000", "#6E6E6E"
MIXER_LOOKS = {
    "standard": (BLUE, "o"),
    "laser": (VERMILLION, "^"),
    "diff": (GREEN, "s"),
    "diff_laser": (PURPLE, "D"),
}
# Other mixers, and submissions: see `distinguish`.
OTHER_LOOKS = (
    (ORANGE, "v"), (SKY, "P"), (BLACK, "X"), (GREEN, "<"), (PURPLE, ">"), (BLUE, "h"),
    (VERMILLION, "*"), (GREY, "p"), (ORANGE, "d"), (SKY, "o"), (BLACK, "s"), (GREEN, "^"),
)  # fmt: skip
LIGHT = "#DDDDDD"
LINE_LABEL_POINTS = 9
REFERENCE_LINES: tuple[Any, ...] = ((0, (5, 3)), (0, (1.5, 1.5)), (0, (5, 2, 1, 2)))
DOTS_PER_INCH = 150
# Letters of the longest label on an axis: Standard + QK-normalization has 28.
LONGEST_LABEL = 40
# A phone shows about 360 CSS pixels: at this width its 9-point letters are 10 pixels high.
NARROW_INCHES = 4.4

# Above this ratio of largest to smallest, equal steps of a linear axis hide the small values.
LOG_RATIO = 4.0
# Of the fonts at 12 and 9 points, a little below what was measured; a legend's line and gaps.
_TITLE_LETTERS_PER_INCH, _LEGEND_LETTERS_PER_INCH, _KEY_INCHES = 9.5, 13.0, 0.7


_others: dict[str, tuple[str, str]] = {}


def distinguish(names: Iterable[str]) -> None:
    """Gives every mixer among the variants `names` that has no look of its own another one, in the
    order of `attention/table.py`, then of names, so that no two of up to twelve are alike. Call it
    once, before drawing, with all variants that a report or a command draws."""
    found = {variants.mixer(name) for name in names} - MIXER_LOOKS.keys()
    mixers = sorted(found, key=variants.order)
    _others.clear()
    _others.update(zip(mixers, itertools.cycle(OTHER_LOOKS), strict=False))


def look(variant: str) -> tuple[str, str]:
    """Returns the colour and the marker of a variant's mixer."""
    name = variants.mixer(variant)
    return MIXER_LOOKS.get(name) or _others.get(name, OTHER_LOOKS[0])


_is_narrow = contextvars.ContextVar("is_narrow", default=False)


@contextlib.contextmanager
def narrowed() -> Iterator[None]:
    """Has figures that are drawn inside made for a phone: narrow, their panels in one column."""
    token = _is_narrow.set(True)
    try:
        yield
    finally:
        _is_narrow.reset(token)


@contextlib.contextmanager
def any_letters() -> Iterator[None]:
    """Has figures that are printed inside show a box for a letter that the font lacks, without a
    warning for each."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        yield


def is_narrow() -> bool:
    """Returns whether figures are drawn for a phone."""
    return _is_narrow.get()


def columns(panels: int, most: int) -> int:
    """Returns how many columns `panels` panels stand in: at most `most`, on a phone one."""
    return 1 if is_narrow() else max(1, min(panels, most))


def figure(width: float, height: float) -> Figure:
    """Returns an empty figure, `width` by `height` inches, that lays itself out; narrower where
    it is drawn for a phone."""
    width = min(width, NARROW_INCHES) if is_narrow() else width
    return Figure(figsize=(width, height), layout="constrained", dpi=DOTS_PER_INCH)


def grid(
    panels: int, most: int, size: Callable[[int, int], tuple[float, float]], **shared: Any
) -> tuple[Figure, np.ndarray]:
    """Returns a figure of `panels` panels in at most `most` columns and its axes [rows, columns],
    those beyond the panels hidden. `size` makes inches, width and height, of rows and columns;
    `shared` is sharex or sharey."""
    across = columns(panels, most)
    down = -(-panels // across)
    drawn = figure(*size(down, across))
    axes = drawn.subplots(down, across, squeeze=False, **shared)
    for unused in axes.flat[panels:]:
        unused.set_visible(False)
    return drawn, axes


def variant_rows(
    width: float, height: float, labels: Sequence[str], positions: Sequence[float]
) -> tuple[Figure, Axes]:
    """Returns a figure, `width` by `height` inches, and its axes with a row for each of the
    variants' `labels`, at `positions` from 0 at the top."""
    drawn = figure(width, height)
    axes = drawn.subplots()
    tidy(axes)
    axes.grid(False, axis="y")
    axes.set_yticks(positions, [row_label(label) for label in labels])
    axes.set_ylim(max(positions) + 0.6, -0.6)
    return drawn, axes


def seeds_in_words(how: str, seeds: int) -> str:
    """Returns what a title says of the seeds: `median and range of 5 seeds`, or `one seed`."""
    return f"{how} {seeds} seeds" if seeds > 1 else "one seed"


def tidy(axes: Axes) -> None:
    """Takes off the frame's idle half and adds a faint grid."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(True, color="#E5E5E5", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=9)


def key(label: str, **looks: Any) -> Line2D:
    """Returns a legend's entry with `looks` as matplotlib's Line2D takes them; no line unless
    they say so."""
    return Line2D([], [], label=label, **({"ls": ""} | looks))


def mixer_keys(names: Iterable[str], **looks: Any) -> list[Line2D]:
    """Returns a legend's entry for each mixer among the variants `names`."""
    found = {variants.mixer_label(name): look(name) for name in names}
    return [
        key(mixer, color=colour, marker=marker, **looks)
        for mixer, (colour, marker) in found.items()
    ]


def band(
    axes: Axes, x: np.ndarray, bounds: Sequence[np.ndarray], variant: str, ms: float, lw: float
) -> None:
    """Draws a variant's middle as a line within a band: `bounds` are low, middle and high [N]."""
    colour, marker = look(variant)
    low, middle, high = bounds
    axes.fill_between(x, low, high, color=colour, alpha=0.18, linewidth=0)
    every = max(1, len(x) // 8)
    axes.plot(x, middle, color=colour, marker=marker, markevery=every, ms=ms, lw=lw)


def line_labels(axes: Axes, ends: Sequence[tuple[float, float, str, str]]) -> None:
    """Writes lines' names beside their right ends, each a (x, y, text, colour), moved apart where
    they would lie on each other; the axes must have their limits and place by now."""
    gap = LINE_LABEL_POINTS * 1.3 * axes.figure.dpi / 72
    heights = [float(axes.transData.transform((x, y))[1]) for x, y, *_ in ends]
    bottom, top = axes.get_window_extent().y0, axes.get_window_extent().y1
    order = sorted(range(len(ends)), key=lambda number: heights[number])
    placed: dict[int, float] = {}
    least = bottom
    for number in order:
        placed[number] = max(heights[number], least)
        least = placed[number] + gap
    most = top
    for number in reversed(order):
        placed[number] = min(placed[number], most)
        most = placed[number] - gap
    for number, (x, y, text, colour) in enumerate(ends):
        points = (placed[number] - heights[number]) * 72 / axes.figure.dpi
        axes.annotate(
            plain(text), (x, y), xytext=(6, points), textcoords="offset points", va="center",
            fontsize=LINE_LABEL_POINTS, color=colour, annotation_clip=False,
        )  # fmt: skip


def interval_row(
    axes: Axes,
    height: float,
    variant: str,
    middle: float,
    bounds: Sequence[float],
    paper: float | None,
    remark: str,
    **looks: Any,
) -> None:
    """Draws a variant's middle, the bounds of its interval where they are finite, what the paper
    prints, if it does, and a remark with `looks` to the right of the axes."""
    colour, marker = look(variant)
    if np.isfinite(bounds[0]):
        axes.plot(bounds, [height] * 2, color=colour, linewidth=2.4, solid_capstyle="butt")
    axes.plot(middle, height, marker, color=colour, markersize=8, mec="white", mew=0.8)
    if paper is not None:
        axes.plot(paper, height, "D", mfc="none", mec="black", markersize=6)
    axes.annotate(
        remark, (1.01, height), xycoords=axes.get_yaxis_transform(),
        va="center", fontsize=9, annotation_clip=False, **looks,
    )  # fmt: skip


def title(figure: Figure, text: str) -> None:
    """Puts a title over the whole figure, broken into lines that fit its width."""
    figure.suptitle(plain(wrapped(figure, text, 12)), fontsize=12)


def wrapped(figure: Figure, text: str, points: float = 10) -> str:
    """Returns `text` broken into lines that fit the figure's width in letters of `points`."""
    letters = figure.get_figwidth() * _TITLE_LETTERS_PER_INCH * 12 / points
    return textwrap.fill(text, int(letters))


def plain(text: str) -> str:
    """Returns `text` as matplotlib prints it letter by letter: a dollar begins no formula."""
    return text.replace("$", r"\$")


def row_label(label: str) -> str:
    """Returns a variant's label for an axis, its modifiers on a line of their own on a phone; of
    a name too long for it the beginning and the end."""
    if len(label) > LONGEST_LABEL:
        half = LONGEST_LABEL // 2 - 1
        label = f"{label[:half]} … {label[-half:]}"
    return plain(label.replace(" + ", "\n+ ", 1) if is_narrow() else label)


def legend(figure: Figure, handles: list[Line2D]) -> None:
    """Puts one legend for the whole figure below it, in as many columns as fit its width."""
    longest = max((len(str(handle.get_label())) for handle in handles), default=1)
    fitting = int(figure.get_figwidth() / (_KEY_INCHES + longest / _LEGEND_LETTERS_PER_INCH))
    figure.legend(
        handles=handles,
        loc="outside lower center",
        ncols=max(1, min(len(handles), fitting)),
        frameon=False,
        fontsize=9,
    )


def spans_decades(values: np.ndarray, ratio: float = LOG_RATIO) -> bool:
    """Returns whether a logarithmic axis shows `values` better; never where one is 0 or less."""
    finite = values[np.isfinite(values)]
    if not finite.size or finite.min() <= 0:
        return False
    return bool(finite.max() / finite.min() >= ratio)


def around(values: np.ndarray, logarithmic: bool, room: float = 0.05) -> tuple[float, float]:
    """Returns the ends of an axis that holds the finite `values` [N] with `room`, a share of what
    they span, at both ends."""
    low, high = float(values.min()), float(values.max())
    if logarithmic:
        margin = (high / low) ** room
        return low / margin, high * margin
    margin = room * max(high - low, 1e-3)
    return low - margin, high + margin


def log_axis(axis: Any, decades: float = 2.5) -> None:
    """Makes an x or y axis logarithmic, its ticks written as plain numbers: at 1, 2 and 5 where
    it spans fewer than `decades`, else at 1 only, so that they do not run into each other."""
    axis.axes.set(**{f"{axis.axis_name}scale": "log"})
    low, high = axis.get_view_interval()
    subs = (1.0, 2.0, 5.0) if np.log10(high / low) < decades else (1.0,)
    axis.set_major_locator(ticker.LogLocator(subs=subs))
    axis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(ticker.NullFormatter())
