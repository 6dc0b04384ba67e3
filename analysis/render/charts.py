"""Charts: one look for a whole report, and one chart for a paper's picture and for a web page.

A view's figure is a function from a frame to a chart: a Vega-Lite specification
(https://vega.github.io/vega-lite/docs) in which `data` may be a frame. `save` writes it as PNG, SVG
or PDF; `embed` makes the specification that a browser draws. Colours are those of Okabe and Ito
(2008), "Color Universal Design".
"""

import json
import math
import pathlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import pandas as pd

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
# Of other variants and of submissions.
OTHER_LOOKS = (
    (ORANGE, "triangle-down"), (SKY, "cross"), (BLACK, STAR), (GREEN, "triangle-left"),
    (PURPLE, "triangle-right"), (BLUE, "wedge"), (VERMILLION, "circle"), (GREY, "square"),
    (ORANGE, "diamond"), (SKY, "triangle-up"), (BLACK, "triangle-down"), (GREEN, "cross"),
)  # fmt: skip
# The name of a view whose nearest mark the pointer chooses: the selection `trial`.
HOVER = "hover"

# Points of a curve that have a mark.
MARKS = 8
# Points of a curve, and of all curves of a panel: more cannot be seen, and a report would be large.
POINTS, PANEL_POINTS = 500, 6_000
SEED_LINES = (
    "Thick: median over the seeds that are done. Thin: one trial each; point at it for its seed. "
    f"Dashed: running, failed or diverged. Curves have at most {POINTS} points."
)
# The version of Vega-Lite that every vl_convert of setup.cfg has.
VERSION = "5.20"
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
        "titleLimit": 320,
        "columns": 4,
        "symbolSize": 90,
        "symbolStrokeWidth": 2,
    },
    "range": {"heatmap": {"scheme": "cividis"}, "ramp": {"scheme": "cividis"}},
}

TYPES = {"Q": "quantitative", "N": "nominal", "O": "ordinal"}
# A part of a specification.
Chart = dict[str, Any]
Shown = TypeVar("Shown")


@dataclass(frozen=True)
class FigureSpec(Generic[Shown]):
    """A figure of a view: the name of its file without suffix; the function that draws it, None
    if there is nothing to draw, and why that can be (`absent`); its text for readers who cannot
    see it, and how to read it. `plots` names the figures that apply."""

    file: str
    draw: Callable[[Shown], Chart | None]
    alt_text: Callable[[Shown], str]
    absent: str
    caption: str
    applies: Callable[[Shown], bool] = lambda shown: True


@dataclass(frozen=True)
class Figure:
    """A figure of a page: its name, the Vega-Lite specification of its chart, the text `alt` for
    readers who cannot see it, and how to read it."""

    name: str
    spec: dict[str, Any]
    alt: str
    caption: str


def look(variant: str, names: Iterable[str] = ()) -> tuple[str, str]:
    """Returns the colour and the mark of a variant. Those of LOOKS keep theirs everywhere; others
    get theirs by their order among `names`, all variants of the report."""
    if variant in LOOKS:
        return LOOKS[variant]
    others = sorted({variant, *names} - LOOKS.keys(), key=variants.order)
    return OTHER_LOOKS[others.index(variant) % len(OTHER_LOOKS)]


def channel(field: str, **more: Any) -> Chart:
    """Returns an encoding of a field, such as `value:Q`, by the letters of TYPES; `more` are
    Vega-Lite's keys. An axis has the field's name as its title unless given."""
    name, _, kind = field.rpartition(":")
    return {"field": name, "type": TYPES[kind], **more}


def marks(kind: str, data: pd.DataFrame, encoding: Chart, **more: Any) -> Chart:
    """Returns marks of a kind, such as `point`, one for each row of `data` or, of lines, one for
    each group; `more` are Vega-Lite's keys of a mark. A tooltip is a list of fields."""
    tooltip = [channel(field) for field in encoding.get("tooltip", ())]
    encoding = encoding | ({"tooltip": tooltip} if tooltip else {})
    return {"data": data, "mark": {"type": kind, **more}, "encoding": encoding}


def colour(names: Sequence[str], legend: bool = True) -> Chart:
    """Returns the colour of the field `variant`, for the variants `names` of a chart."""
    return channel("variant:N", scale={"domain": list(names)}, legend=_legend(names, legend))


# The mark of the field `variant`: `_paint` sets colours and marks by the channel.
shape = colour


def _legend(names: Sequence[str], is_shown: bool) -> Chart | None:
    labels = json.dumps({name: variants.label(name) for name in names})
    return {"title": None, "labelExpr": f"({labels})[datum.label]"} if is_shown else None


def where(test: str, value: Any, otherwise: Any) -> Chart:
    """Returns a channel's value where an expression is true, and otherwise."""
    return {"condition": {"test": test, "value": value}, "value": otherwise}


def faded() -> Chart:
    """Returns the opacity of marks whose variant the legend switches off."""
    return {"condition": {"param": "variants", "value": 1}, "value": 0.07}


def interval_rows(
    frame: pd.DataFrame, x: Chart, y: Chart, tooltip: Sequence[str], legend: bool = False
) -> list[Chart]:
    """Returns layers: for each line of `frame` the interval from the columns `low` to `high`, if
    any has one, and the mark of its `variant` at the column of `x`, at the height `y`; with a
    `legend` unless `y` names the variants."""
    names = list(frame["variant"].unique())
    shared = {"y": y, "color": colour(names, legend), "opacity": faded(), "tooltip": tooltip}
    ends = {"x": x | {"field": "low"}, "x2": {"field": "high"}}
    looks = {"x": x, "shape": shape(names, legend)}
    bounded = frame.dropna(subset=["low", "high"])
    return [
        *([marks("rule", bounded, shared | ends, strokeWidth=2.5)] if len(bounded) else []),
        marks("point", frame, shared | looks, filled=True, size=90, stroke="white", opacity=1),
    ]


def seed_lines(
    lines: pd.DataFrame, middles: pd.DataFrame, x: Chart, y: Chart, names: Sequence[str]
) -> list[Chart]:
    """Returns the layers of a panel: a thin line for each trial of `lines`, columns variant, label,
    seed, trial, state and those of the axes, and a thick one for each variant of `middles`.

    A trial that is not done is dashed, with its state at its end. The trial nearest to the pointer
    is thick in all panels of the figure.
    """
    lines = lines[np.isfinite(lines["value"])]
    is_last = ~lines.duplicated("trial", keep="last") & (lines["state"] != "done")
    lines = thinned(lines.assign(ended=lines["state"].where(is_last, None)), ["trial"])
    middles = thinned(middles[np.isfinite(middles["value"])], ["variant"])
    shared = {"x": x, "y": y, "color": colour(names)}
    pointed = {"param": "trial", "empty": False}
    thin = {
        "detail": channel("trial:N"),
        "strokeDash": where("datum.state === 'done'", [1, 0], [4, 2]),
        "strokeWidth": {"condition": pointed | {"value": 3}, "value": 1},
        "opacity": {
            "condition": [pointed | {"value": 1}, {"param": "variants", "value": 0.5}],
            "value": 0.04,
        },
    }
    dots = {
        "opacity": where("datum.marked", 0.5, 0),
        "tooltip": ["label:N", "seed:Q", "state:N", f"{x['field']}:Q", "value:Q", "trial:N"],
    }
    looks = {
        "shape": shape(names),
        "opacity": faded(),
        "fillOpacity": where("datum.marked", 1, 0),
    }
    thick = {"opacity": faded()}
    layers = [marks("line", lines, shared | thin, clip=True)]
    if len(middles):
        layers += [
            marks("line", middles, shared | thick, strokeWidth=2.2, clip=True),
            marks("point", middles, shared | looks, filled=True, size=45, clip=True),
        ]
    if lines["ended"].notna().any():
        ends = lines.dropna(subset="ended")
        text = {"text": channel("ended:N")}
        layers.append(marks("text", ends, shared | text, align="right", baseline="bottom", dy=-3))
    return [*layers, marks("circle", lines, shared | dots, size=14, clip=True) | {"name": HOVER}]


def reference_line(axis: str, value: float, colour: str = GREY, name: str = "") -> Chart:
    """Returns a line through the panel at a `value` of the x or y `axis`, dashed and with its
    `name` as a tooltip where it has one."""
    frame = pd.DataFrame({"value": [value], "name": [name]})
    encoding = {axis: channel("value:Q"), "tooltip": ["name:N"]}
    dash = [6, 3] if name else [1, 0]
    return marks("rule", frame, encoding, color=colour, strokeDash=dash, clip=True)


def around(values: np.ndarray, room: float = 0.05) -> tuple[Chart, Chart]:
    """Returns the scale and the axis of the finite `values`, with `room`, a share of what they
    span, at both ends; logarithmic where that shows them better, with labels at 1, 2 and 5."""
    finite = values[np.isfinite(values)]
    low, high = float(finite.min()), float(finite.max())
    # From this ratio on, equal steps of a linear axis hide the small values.
    if low <= 0 or high / low < 4.0:
        margin = room * max(high - low, 1e-3)
        return {"domain": [low - margin, high + margin], "nice": False}, {}
    margin = (high / low) ** room
    low, high = low / margin, high * margin
    # From this ratio on, labels at 2 and 5 would lie on each other.
    steps = (1, 2, 5) if high / low < 300.0 else (1,)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)))
    ticks = [step * 10.0**power for power in powers for step in steps]
    scale = {"type": "log", "domain": [low, high], "nice": False}
    return scale, {"values": [tick for tick in ticks if low <= tick <= high], "format": "~g"}


def thinned(frame: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """Returns at most POINTS rows of each group of the columns `by`, fewer of many groups, evenly
    spaced, its first and last among them; `marked` says of about MARKS rows of each that they
    have a mark."""
    groups = frame.groupby(list(by), sort=False, dropna=False)
    places, sizes = groups.cumcount(), groups[by[0]].transform("size")
    points = min(POINTS, max(2 * MARKS, PANEL_POINTS // max(1, groups.ngroups)))
    every = np.ceil((sizes - 1) / (points - 1)).clip(lower=1)
    marked = places % (every * (sizes // (every * MARKS)).clip(lower=1)) == 0
    return frame.assign(marked=marked)[(places % every == 0) | (places == sizes - 1)]


def specification(chart: Chart, names: Iterable[str] = ()) -> Chart:
    """Returns a chart with its frames as rows in `datasets`, the theme, and the selections
    `variants` (a legend's) and `trial` (the pointer's); colours and marks are those of a report on
    the variants `names`."""
    frames: dict[int, pd.DataFrame] = {}
    spec = _named(chart, frames, tuple(names))
    units = [[*_units(panel)] for panel in _panels(spec)]
    legends = [panel[0] for panel in units]
    pointed = [unit for panel in units for unit in panel if unit.get("name") == HOVER]
    for kind, views in (("view", legends), (HOVER, pointed)):
        for number, view in enumerate(views):
            view["name"] = f"{kind}_{number}"
    params: list[Chart] = [
        {
            "name": "variants",
            "select": {"type": "point", "fields": ["variant"]},
            "bind": "legend",
            "views": [view["name"] for view in legends],
        }
    ]
    if pointed:
        nearest = {"type": "point", "fields": ["trial"], "on": "pointerover", "nearest": True}
        views = [view["name"] for view in pointed]
        params.append({"name": "trial", "select": nearest, "views": views})
    datasets = {f"frame_{number}": _rows(frame) for number, frame in enumerate(frames.values())}
    return spec | {
        "params": [*spec.get("params", ()), *params],
        "datasets": datasets,
        "config": THEME,
    }


def _named(part: Any, frames: dict[int, pd.DataFrame], names: Sequence[str]) -> Any:
    """Returns a copy of a part of a chart in which `data` is the name of a data set, and the field
    `variant` has the colours and marks of a whole report. `frames` gains the frames by their id."""
    if isinstance(part, list):
        return [_named(inner, frames, names) for inner in part]
    if isinstance(part, pd.DataFrame):
        frames.setdefault(id(part), part)
        return {"name": f"frame_{[*frames].index(id(part))}"}
    if not isinstance(part, dict):
        return part
    copy = {key: _named(inner, frames, names) for key, inner in part.items()}
    for key, place in (("color", 0), ("shape", 1)):
        if isinstance(copy.get(key), dict) and copy[key].get("field") == "variant":
            domain = copy[key]["scale"]["domain"]
            copy[key]["scale"]["range"] = [look(name, names or domain)[place] for name in domain]
    return copy


def _rows(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Returns the rows of a frame as JSON has them: numbers with seven digits, and null for what is
    not finite."""
    columns = {
        str(name): [_number(value) for value in column.tolist()] for name, column in frame.items()
    }
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _number(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.7g}") if math.isfinite(value) else None
    return None if value is pd.NA else value


def _panels(part: Chart) -> Iterator[Chart]:
    """Yields the parts of a specification that have axes of their own."""
    inner = [panel for key in ("concat", "hconcat", "vconcat") for panel in part.get(key, ())]
    inner += [part["spec"]] if "spec" in part else []
    if not inner:
        yield part
    for panel in inner:
        yield from _panels(panel)


def _units(part: Chart) -> Iterator[Chart]:
    """Yields the parts of a panel that have a mark."""
    if "mark" in part:
        yield part
    for layer in part.get("layer", ()):
        yield from _units(layer)


def embed(plot: FigureSpec[Shown], shown: Shown, names: Iterable[str] = ()) -> Figure | None:
    """Returns what `plot` draws, None if there is nothing to draw. `names` are all variants of
    the page."""
    chart = plot.draw(shown) if plot.applies(shown) else None
    if chart is None:
        return None
    return Figure(plot.file, specification(chart, names), plot.alt_text(shown), plot.caption)


def save(chart: Chart, path: pathlib.Path, names: Iterable[str] = ()) -> None:
    """Writes a chart by the suffix of `path`, one of WRITERS: the old file or the whole new one,
    never a part. `names` are all variants of a report."""
    import vl_convert

    function, options = WRITERS[path.suffix]
    write = getattr(vl_convert, function)
    content = write(specification(chart, names), vl_version=VERSION, **options)
    with files.replacing(path) as new:
        new.write_bytes(content.encode() if isinstance(content, str) else content)
