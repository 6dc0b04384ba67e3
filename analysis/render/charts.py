"""Charts: one look for a whole report, and one chart for a paper's picture and for a web page.

A view's figure is a function from a frame to an Altair chart. `save` writes it as PNG, SVG or PDF;
`embed` makes the specification that a browser draws. Colours are those of
Okabe and Ito (2008), "Color Universal Design"; a mechanism also has a mark of its own.
"""

import json
import math
import pathlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import altair as alt
import numpy as np
import pandas as pd
from altair.typing import ChartType

from attention import table as variants
from attention.common import files

BLUE, VERMILLION, GREEN, PURPLE = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
ORANGE, SKY, BLACK, GREY = "#E69F00", "#56B4E9", "#000000", "#6E6E6E"
STAR = "M0,-1L0.3,-0.3L1,-0.3L0.4,0.2L0.6,1L0,0.5L-0.6,1L-0.4,0.2L-1,-0.3L-0.3,-0.3Z"
LOOKS = {
    "standard": (BLUE, "circle"),
    "laser": (VERMILLION, "triangle-up"),
    "diff": (GREEN, "square"),
    "diff_laser": (PURPLE, "diamond"),
}
# Of other mechanisms, then of submissions.
OTHER_LOOKS = (
    (ORANGE, "triangle-down"), (SKY, "cross"), (BLACK, STAR), (GREEN, "triangle-left"),
    (PURPLE, "triangle-right"), (BLUE, "wedge"), (VERMILLION, "circle"), (GREY, "square"),
    (ORANGE, "diamond"), (SKY, "triangle-up"), (BLACK, "triangle-down"), (GREEN, "cross"),
)  # fmt: skip
# Of variants with the same mechanism, by their modifiers.
DASHES = ([1, 0], [6, 3], [2, 2], [7, 2, 2, 2], [10, 4], [1, 3])

# Points of a curve that have a mark.
MARKS = 8
# A curve's points: more cannot be seen, and a report of many curves would be large.
POINTS = 500
THINNED = f"Curves have at most {POINTS} points."
# Altair's version of Vega-Lite as vl_convert names it: `6.1`.
VERSION = ".".join(alt.SCHEMA_VERSION.removeprefix("v").split(".")[:2])
# A file's suffix to the function of vl_convert that makes its content of a specification, and to
# its options; a PNG has 2 pixels for one of the specification.
WRITERS: dict[str, tuple[str, dict[str, float]]] = {
    ".png": ("vegalite_to_png", {"scale": 2.0}),
    ".svg": ("vegalite_to_svg", {}),
    ".pdf": ("vegalite_to_pdf", {}),
}

THEME = {
    "background": "white",
    "font": "sans-serif",
    "view": {"stroke": None},
    "title": {"anchor": "start", "fontSize": 14, "subtitleFontSize": 12, "offset": 12},
    "axis": {
        "labelFontSize": 11,
        "titleFontSize": 12,
        "titleFontWeight": "normal",
        "labelLimit": 260,
        "labelFlush": False,
        "gridColor": "#E5E5E5",
        "domainColor": "#888888",
        "tickColor": "#888888",
        "tickCount": 6,
    },
    "header": {"labelFontSize": 12, "titleFontSize": 12, "labelAnchor": "start", "title": None},
    "headerRow": {"labelOrient": "top", "labelFontWeight": "bold", "labelPadding": 2},
    "legend": {
        "orient": "bottom",
        "labelFontSize": 12,
        "titleFontSize": 12,
        "titleFontWeight": "normal",
        "labelLimit": 320,
        "columns": 4,
        "symbolSize": 90,
        "symbolStrokeWidth": 2,
    },
    "range": {"heatmap": {"scheme": "cividis"}, "ramp": {"scheme": "cividis"}},
}

Shown = TypeVar("Shown")


@dataclass(frozen=True)
class FigureSpec(Generic[Shown]):
    """A figure of a view: the name of its file without suffix; the function that draws it, None
    if there is nothing to draw, and why that can be (`absent`); its text for readers who cannot
    see it, and how to read it. `plots` names the figures that apply."""

    file: str
    draw: Callable[[Shown], Any]
    alt_text: Callable[[Shown], str]
    absent: str
    caption: str
    applies: Callable[[Shown], bool] = lambda shown: True


@dataclass(frozen=True)
class Figure:
    """A figure of a page: the Vega-Lite specification of its chart, the text `alt` for readers who
    cannot see it, and how to read it."""

    spec: dict[str, Any]
    alt: str
    caption: str


def look(variant: str, names: Iterable[str] = ()) -> tuple[str, str]:
    """Returns the colour and the mark of a variant's mechanism. Those of attention/table.py keep
    theirs everywhere; other names, such as submissions, get theirs by their order among `names`,
    all variants of the report."""
    mixer = variants.mixer(variant)
    if mixer in LOOKS:
        return LOOKS[mixer]
    known = [name for name in variants.MIXERS if name not in LOOKS]
    others = {variants.mixer(name) for name in (variant, *names)} - variants.MIXERS.keys()
    place = [*known, *sorted(others)].index(mixer)
    return OTHER_LOOKS[place % len(OTHER_LOOKS)]


def colour(names: Sequence[str], legend: bool = True) -> alt.Color:
    """Returns the colour of the field `variant`, for the variants `names` of a chart."""
    return alt.Color(
        "variant:N",
        scale=alt.Scale(domain=list(names)),
        legend=_legend(names) if legend else None,
    )


def shape(names: Sequence[str], legend: bool = True) -> alt.Shape:
    """Returns the mark of the field `variant`, for the variants `names` of a chart."""
    return alt.Shape(
        "variant:N",
        scale=alt.Scale(domain=list(names)),
        legend=_legend(names) if legend else None,
    )


def dash(names: Sequence[str], legend: bool = True) -> alt.StrokeDash:
    """Returns the dashes of the field `variant`: variants of one mechanism differ in theirs."""
    modifiers = sorted({variants.modifiers(name) for name in names})
    dashes = [DASHES[modifiers.index(variants.modifiers(name)) % len(DASHES)] for name in names]
    scale = alt.Scale(domain=list(names), range=dashes)
    return alt.StrokeDash("variant:N", scale=scale, legend=_legend(names) if legend else None)


def _legend(names: Sequence[str]) -> alt.Legend:
    labels = json.dumps({name: variants.label(name) for name in names})
    return alt.Legend(title=None, labelExpr=f"({labels})[datum.label]")


def faded() -> Any:
    """Returns the opacity of marks whose variant the legend switches off."""
    return (
        alt.when(alt.selection_point(name="variants")).then(alt.value(1)).otherwise(alt.value(0.07))
    )


def interval_rows(
    frame: pd.DataFrame, x: alt.X, y: alt.Y, tooltip: Sequence[Any], legend: bool = False
) -> alt.LayerChart:
    """Returns, for each line of `frame`, the interval from the columns `low` to `high` and the
    mark of its `variant` at the column of `x`, at the height `y`; with a `legend` unless `y`
    names the variants."""
    names = list(frame["variant"].unique())
    base = alt.Chart(frame).encode(
        y=y, color=colour(names, legend), opacity=faded(), tooltip=list(tooltip)
    )
    bar = base.mark_rule(strokeWidth=2.5).encode(x=_of(x, "low"), x2="high:Q")
    mark = base.mark_point(filled=True, size=90, stroke="white", strokeWidth=0.8, opacity=1)
    return alt.LayerChart(layer=[bar, mark.encode(x=x, shape=shape(names, legend))])


def _of(axis: Any, column: str) -> Any:
    """Returns the channel `axis` of another column of numbers."""
    other = axis.copy()
    other.shorthand = f"{column}:Q"
    return other


def line_with_band(
    frame: pd.DataFrame,
    x: alt.X,
    y: alt.Y,
    names: Sequence[str],
    dashed: bool = False,
) -> alt.LayerChart:
    """Returns lines through the column of `y` within bands from the columns `low` to `high`, a line
    for each `variant` of `names`, with marks as `thinned` has them; the columns `label` and `n` are
    of the tooltip. Lines of one mechanism are told apart where they are `dashed`."""
    base = alt.Chart(frame).encode(x=x, color=colour(names), opacity=faded())
    band = base.mark_area(fillOpacity=0.18, clip=True).encode(y=_of(y, "low"), y2="high:Q")
    line = base.mark_line(strokeWidth=1.8, clip=True).encode(y=y)
    if dashed:
        line = line.encode(strokeDash=dash(names))
    marks = base.mark_point(filled=True, size=45, clip=True).encode(
        y=y,
        shape=shape(names),
        fillOpacity=alt.when("datum.marked").then(alt.value(1)).otherwise(alt.value(0)),
        tooltip=["label:N", "n:Q", "x:Q", "middle:Q", "low:Q", "high:Q"],
    )
    return alt.LayerChart(layer=[band, line, marks])


def reference_line(axis: str, value: float, colour: str = GREY, name: str = "") -> alt.Chart:
    """Returns a line through the panel at a `value` of the x or y `axis`, dashed and with its
    `name` as a tooltip where it has one."""
    frame = pd.DataFrame({"value": [value], "name": [name]})
    rule = alt.Chart(frame).mark_rule(color=colour, strokeDash=DASHES[1] if name else DASHES[0])
    return rule.encode(tooltip="name:N", **{axis: "value:Q"})


def around(values: np.ndarray, room: float = 0.05) -> tuple[alt.Scale, alt.Axis]:
    """Returns the scale and the axis of the finite `values`, with `room`, a share of what they
    span, at both ends; logarithmic where that shows them better, with labels at 1, 2 and 5."""
    finite = values[np.isfinite(values)]
    low, high = float(finite.min()), float(finite.max())
    # From this ratio on, equal steps of a linear axis hide the small values.
    if low <= 0 or high / low < 4.0:
        margin = room * max(high - low, 1e-3)
        return alt.Scale(domain=[low - margin, high + margin], nice=False), alt.Axis()
    margin = (high / low) ** room
    low, high = low / margin, high * margin
    # From this ratio on, labels at 2 and 5 would lie on each other.
    steps = (1, 2, 5) if high / low < 300.0 else (1,)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)))
    ticks = [step * 10.0**power for power in powers for step in steps]
    scale = alt.Scale(type="log", domain=[low, high], nice=False)
    return scale, alt.Axis(values=[tick for tick in ticks if low <= tick <= high], format="~g")


def thinned(frame: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """Returns at most POINTS rows of each group of the columns `by`, evenly spaced, its first and
    last among them; `marked` says of about MARKS rows of each that they have a mark."""
    groups = frame.groupby(list(by), sort=False, dropna=False)
    places, sizes = groups.cumcount(), groups[by[0]].transform("size")
    every = np.ceil((sizes - 1) / (POINTS - 1)).clip(lower=1)
    marked = places % (every * (sizes // (every * MARKS)).clip(lower=1)) == 0
    return frame.assign(marked=marked)[(places % every == 0) | (places == sizes - 1)]


def specification(chart: ChartType, names: Iterable[str] = ()) -> dict[str, Any]:
    """Returns the Vega-Lite specification of a chart with the theme and the selection `variants`;
    colours and marks are those of a report on the variants `names`."""
    with alt.data_transformers.enable("default", max_rows=None):
        spec: dict[str, Any] = chart.to_dict()
    for rows in spec.get("datasets", {}).values():
        # JSON has no nan, which Altair leaves in columns of texts.
        rows[:] = [
            {key: None if value != value else value for key, value in row.items()} for row in rows
        ]
    _paint(spec, tuple(names))
    # Chart.add_params copies a chart of many panels for seconds.
    views = _views(spec)
    for number, view in enumerate(views):
        view["name"] = f"view_{number}"
    selection = {"type": "point", "fields": ["variant"]}
    switch = {"name": "variants", "select": selection, "bind": "legend"}
    spec.setdefault("params", []).append(switch | {"views": [view["name"] for view in views]})
    return spec | {"config": THEME}


def _views(part: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns one view of each panel."""
    for key in ("concat", "hconcat", "vconcat"):
        if key in part:
            return [view for inner in part[key] for view in _views(inner)]
    if "spec" in part:
        return _views(part["spec"])
    return _views(part["layer"][0]) if "layer" in part else [part]


def _paint(part: Any, names: Sequence[str]) -> None:
    """Sets the colours and marks of the field `variant` to those of a whole report."""
    if isinstance(part, list):
        for inner in part:
            _paint(inner, names)
    if not isinstance(part, dict):
        return
    for channel, place in (("color", 0), ("shape", 1)):
        encoded = part.get(channel)
        if isinstance(encoded, dict) and encoded.get("field") == "variant":
            scale = encoded["scale"]
            scale["range"] = [
                look(name, names or scale["domain"])[place] for name in scale["domain"]
            ]
    for key, inner in part.items():
        if key not in ("data", "datasets"):
            _paint(inner, names)


def embed(plot: FigureSpec[Shown], shown: Shown, names: Iterable[str] = ()) -> Figure | None:
    """Returns what `plot` draws, None if there is nothing to draw. `names` are all variants of
    the page."""
    chart = plot.draw(shown) if plot.applies(shown) else None
    if chart is None:
        return None
    return Figure(specification(chart, names), plot.alt_text(shown), plot.caption)


def save(chart: ChartType, path: pathlib.Path, names: Iterable[str] = ()) -> None:
    """Writes a chart by the suffix of `path`, one of WRITERS: the old file or the whole new one,
    never a part. `names` are all variants of a report."""
    import vl_convert

    function, options = WRITERS[path.suffix]
    write = getattr(vl_convert, function)
    content = write(specification(chart, names), vl_version=VERSION, **options)
    with files.replacing(path) as new:
        new.write_bytes(content.encode() if isinstance(content, str) else content)
