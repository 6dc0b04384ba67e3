"""Figures of views: as PNG files, or inside an HTML page as data, for a window and for a phone."""

import base64
import io
import pathlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from matplotlib import rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from analysis.render import style
from sweeps.records import layout

# Above this an SVG (one path per dot) is larger than its pixels are.
LARGEST_SVG = 400_000


@dataclass(frozen=True)
class Plot:
    """A figure of a view: the file that `plots` writes; what draws it of a table, None where there
    is nothing to draw, and why that can be (`absent`); in words what it shows, for readers who
    cannot see it and for search; how to read it. Where it `applies` to a table not at all, `plots`
    does not speak of it."""

    file: str
    draw: Callable[[Any], Figure | None]
    words: Callable[[Any], str]
    absent: str
    caption: str
    applies: Callable[[Any], bool] = lambda table: True


@dataclass(frozen=True)
class Picture:
    """A figure as data URIs: `wide` and, for windows up to 40rem, `narrow`; `alt` says in words
    what it shows, `caption` how to read it."""

    wide: str
    narrow: str
    alt: str
    caption: str


def embed(plot: Plot, table: Any) -> Picture | None:
    """Returns what `plot` draws of `table`, at both widths, None where there is nothing to draw."""
    wide = plot.draw(table)
    if wide is None:
        return None
    with style.narrowed():
        narrow = plot.draw(table)
    words = plot.words(table)
    return Picture(data_uri(wide), data_uri(narrow) if narrow else "", words, plot.caption)


def save(figure: Figure, path: pathlib.Path) -> None:
    """Writes `figure` to `path` as PNG: the old file or the whole new one, never a part."""
    with layout.replacing(path) as new, style.any_letters():
        FigureCanvasAgg(figure).print_png(new)


def data_uri(figure: Figure) -> str:
    """Returns the figure as SVG with its letters drawn as paths (no font is needed), or as PNG
    where that is smaller. The same figure gives the same text."""
    out = io.BytesIO()
    with style.any_letters(), rc_context({"svg.fonttype": "path", "svg.hashsalt": "attnperf"}):
        FigureCanvasSVG(figure).print_svg(out, metadata={"Date": None})
    if out.tell() > LARGEST_SVG:
        out = io.BytesIO()
        with style.any_letters():
            FigureCanvasAgg(figure).print_png(out)
        return _uri("image/png", out.getvalue())
    return _uri("image/svg+xml", out.getvalue())


def _uri(kind: str, content: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode('ascii')}"
