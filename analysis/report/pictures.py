"""Figures inside an HTML page: as data, once for a wide window and once for a phone."""

import base64
import io
from collections.abc import Callable
from dataclasses import dataclass

from matplotlib import rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from analysis.documents import style

# Above this an SVG (one path per dot) is larger than its pixels are.
LARGEST_SVG = 400_000


@dataclass(frozen=True)
class Picture:
    """A figure as data URIs: `wide` and, for windows up to 40rem, `narrow`; `alt` says in words
    what it shows, `caption` how to read it."""

    wide: str
    narrow: str
    alt: str
    caption: str


def embed(
    draw: Callable[[], Figure | None], alt: Callable[[], str], caption: str
) -> Picture | None:
    """Returns what `draw` draws, at both widths, None where there is nothing to draw."""
    wide = draw()
    if wide is None:
        return None
    with style.narrowed():
        narrow = draw()
    return Picture(data_uri(wide), data_uri(narrow) if narrow else "", alt(), caption)


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
