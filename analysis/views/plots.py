"""The charts of an error table: effects and verdicts, learning curves, hyperparameters."""

import functools
import json
import math

import numpy as np
import pandas as pd

from analysis.compare import frames
from analysis.compare.error_table import ErrorTable
from analysis.load.selection import VALIDATION
from analysis.render import charts, pages
from analysis.views import sentences
from sweeps.records import layout

# Of the effects: the widths of both panels and the height of a variant.
LEFT, RIGHT, ROW = 330, 250, 34
# Of the curves: the share of training whose evaluations need not be seen.
START = 0.1
# First panels of the curves with their titles; a throughput follows under its column's name.
PANELS = {
    "validation": "validation {metric}",
    "test": "test {metric}",
    "train": "train {metric}",
    "loss": "training loss, as logged",
    "grad_norm": "gradient norm",
}
# Columns of curves that can be the horizontal axis.
AXES = {"step": "training step", "seconds": "seconds of training", "flops": "FLOPs of training"}
WIDTH, HEIGHT = 290, 180
# The mark of a point of the search with seeds that have no value.
CROSS = "M-1,-1L1,1M-1,1L1,-1"


@functools.lru_cache(maxsize=8)
def effects(table: ErrorTable) -> pd.DataFrame:
    """Returns the rows of `frames.results` of variants with a number on the deciding split."""
    estimates = frames.results(table, None).query("kind == 'variant' and split == @table.decisive")
    return estimates.dropna(subset="mean")


def draw_effects(table: ErrorTable) -> charts.Chart | None:
    """Returns the chart, None if no variant has a number on the deciding split (test, or
    validation where nothing was tested)."""
    estimates = effects(table)
    if estimates.empty:
        return None
    estimates = estimates.assign(
        row=[f"{row.label}\nn = {row.n}" for row in estimates.itertuples()]
    )
    panels = [_means(table, estimates)]
    if table.comparisons:
        panels.append(_differences(table, estimates))
    title = f"{table.study.name}: {table.what} on {table.workload}"
    return {"hconcat": panels, "spacing": 24, "title": title}


def _means(table: ErrorTable, estimates: pd.DataFrame) -> charts.Chart:
    """Returns the seeds, their mean and its interval."""
    axis = {"labelExpr": "split(datum.label, '\\n')"}
    rows = charts.channel("row:N", title=None, sort=list(estimates["row"]), axis=axis)
    title = f"{table.decisive} {table.metric.axis(table.workload)}"
    x = charts.channel("mean:Q", title=title, scale={"zero": False})
    # No metric is below 0, and no share above 1: so few seeds cannot bound a mean there.
    ends = (0.0, 1.0 if table.metric.is_bounded else math.inf)
    bounds = estimates[["interval_low", "interval_high"]].clip(*ends)
    measured = charts.interval_rows(
        estimates.assign(low=bounds["interval_low"], high=bounds["interval_high"]),
        x,
        rows,
        ["label:N", "n:Q", "mean:Q", "interval_low:Q", "interval_high:Q"],
    )
    seeds = (
        frames.seeds(table).query("split == @table.decisive").merge(estimates[["variant", "row"]])
    )
    encoding = {
        "x": charts.channel("value:Q"),
        "y": rows,
        "color": charts.colour(list(estimates["variant"]), legend=False),
        "tooltip": ["label:N", "seed:Q", "step:Q", "value:Q", "trial:N"],
    }
    dots = charts.marks("circle", seeds, encoding, size=28, yOffset=9, opacity=0.5)
    return {"layer": [*measured, dots], "width": LEFT, "height": {"step": ROW}}


def _differences(table: ErrorTable, estimates: pd.DataFrame) -> charts.Chart:
    """Returns the differences from the baseline about zero, and the verdicts."""
    p_values = [f" ({pages.p_in_words(p)})" if p == p else "" for p in estimates["p_holm"]]
    outcomes = zip(sentences.outcomes(estimates), p_values, strict=True)
    texts = [f"{outcome or pages.NOTHING}{p}" for outcome, p in outcomes]
    verdicts = dict(zip(estimates["row"], zip(estimates["label"], texts, strict=True), strict=True))
    colours = {"better": charts.GREEN, "worse": charts.VERMILLION}
    decided = {
        row.row: colours[row.verdict] for row in estimates.itertuples() if row.verdict in colours
    }
    axis = {
        "orient": "right",
        "labelExpr": f"({json.dumps(verdicts)})[datum.value]",
        "labelColor": {"expr": f"({json.dumps(decided)})[datum.value] || '{charts.GREY}'"},
        "labelFontWeight": "bold",
    }
    rows = charts.channel("row:N", title=None, sort=list(estimates["row"]), axis=axis)
    side = "left" if table.metric.lower_is_better else "right"
    title = f"difference from {table.baseline_label} (better to the {side})"
    x = charts.channel("difference:Q", title=title, scale={"zero": True})
    bounded = estimates.assign(low=estimates["difference_low"], high=estimates["difference_high"])
    columns = ["label:N", "difference:Q", "low:Q", "high:Q", "p_holm:Q", "verdict:N"]
    measured = charts.interval_rows(bounded, x, rows, columns)
    layers = [charts.reference_line("x", 0, charts.BLACK), *measured]
    return {"layer": layers, "width": RIGHT, "height": {"step": ROW}}


def effects_alt_text(table: ErrorTable) -> str:
    """Returns every variant's mean, its difference from the baseline, and the verdict."""
    estimates, digits = effects(table), table.metric.digits
    ends = zip(
        estimates["difference"],
        estimates["difference_low"],
        estimates["difference_high"],
        strict=True,
    )
    frame = estimates[["label", "mean"]].assign(
        verdict=sentences.outcomes(estimates),
        difference=[pages.estimate(*interval, digits, signed=True) for interval in ends],
    )
    return pages.Table(f"Mean {table.what} over seeds", frame, {"mean": f".{digits}f"}).alt_text()


def draw_curves(table: ErrorTable) -> charts.Chart | None:
    """Returns the chart, None if no trial of the table has a curve: a panel, with every variant,
    for each number that was measured at several steps; a menu chooses the horizontal axis."""
    lines = frames.curves(table)
    lines = lines[lines.groupby("panel")["step"].transform("nunique") > 1]
    if lines.empty:
        return None
    known = [name for name in AXES if lines[name].notna().any()]
    menu = {"input": "select", "options": known, "labels": [AXES[name] for name in known]}
    axis: charts.Chart = {"name": "by", "value": known[0]}
    if len(known) > 1:
        axis["bind"] = menu | {"name": "Axis: "}
    by = f"{json.dumps(f'{table.study.name}: training by ')} + ({json.dumps(AXES)})[by]"
    title: charts.Chart = {"text": {"expr": by}}
    middles = frames.medians(lines)
    measured = lines["panel"].unique()
    if table.references and {*layout.SPLITS} & {*measured}:
        names = ", ".join(reference.name for reference in table.references)
        title["subtitle"] = f"dashed grey: {names}"
    order = [name for name in PANELS if name in measured]
    order += [name for name in measured if name not in PANELS]
    panels = [_curve_panel(table, name, lines, middles) for name in order]
    # The page offers logarithmic axes.
    shown_by = {"params": [axis], "title": title, "usermeta": {"axes": True}}
    return {"concat": panels, "columns": 3, **shown_by}


def _curve_panel(
    table: ErrorTable, panel: str, lines: pd.DataFrame, middles: pd.DataFrame
) -> charts.Chart:
    """Returns a panel of the curves. Splits have one vertical axis."""
    is_metric = panel in layout.SPLITS
    alike = layout.SPLITS if is_metric else (panel,)
    held = shown(lines[lines["panel"].isin(alike)], table.metric.is_bounded and is_metric)
    scale, ticks = charts.around(held)
    layers = charts.seed_lines(
        lines[lines["panel"] == panel],
        middles[middles["panel"] == panel],
        charts.channel("x:Q", title=None, axis={"format": "~s", "tickCount": 4}),
        charts.channel("value:Q", title=None, scale=scale, axis=ticks),
        list(lines["variant"].unique()),
    )
    for layer in layers:
        layer["transform"] = [{"calculate": "datum[by]", "as": "x"}]
    for reference in table.references if is_metric else ():
        if (value := reference.values[panel]) is not None:
            name = f"{reference.name}: {value:.{table.metric.digits}f}"
            layers.append(charts.reference_line("y", value, name=name))
    title = PANELS.get(panel, panel.replace("_", " "))
    return {
        "layer": layers,
        "title": title.format(metric=table.metric.axis(table.workload)),
        "width": WIDTH,
        "height": HEIGHT,
    }


def shown(lines: pd.DataFrame, is_bounded: bool) -> np.ndarray:
    """Returns the numbers that the vertical axis must hold: of trials that are done, of all without
    one.

    Before training a loss is log(vocabulary) and a WER may be above 1, far from where variants
    differ, and the first update includes compilation: unless the metric `is_bounded` the first
    tenth of the steps may leave the axis, given that at least two steps are left.
    """
    held = lines[lines["state"] == "done"]
    held = held if len(held) else lines
    late = held[held["step"] >= START * held["step"].max()]
    return (held if is_bounded or late["step"].nunique() < 2 else late)["value"].to_numpy()


def curves_alt_text(table: ErrorTable) -> str:
    """Returns every variant's median on validation at the chosen steps."""
    seeds = frames.seeds(table)
    ends = seeds[seeds["split"] == VALIDATION].groupby("label", sort=False)["value"].median()
    caption = f"Learning curves: {table.metric.label} on validation at the chosen steps"
    formats = {"median": f".{table.metric.digits}f"}
    return pages.Table(caption, ends.rename("median").reset_index(), formats).alt_text()


def draw_hyperparameters(table: ErrorTable) -> charts.Chart | None:
    """Returns the chart, None if no hyperparameter varies among the measured trials of the search.

    A panel for each hyperparameter has a mark for each point: the median over its seeds at their
    best validation steps. Chosen points have a ring. A point with a seed that diverged or failed
    has a cross on the upper edge."""
    curve_points = points(table)
    if not curve_points["value"].notna().any():
        return None
    scale, axis = charts.around(curve_points["value"].to_numpy(float), room=0.12)
    title = f"{VALIDATION} {table.metric.axis(table.workload)}"
    y = charts.channel("value:Q", title=title, scale=scale, axis=axis)
    panels = [
        _panel(points, str(name), y)
        for name, points in curve_points.groupby("hyperparameter", sort=False)
    ]
    # Points that differ in several hyperparameters are on no line of one of them.
    for panel in panels if len(panels) > 1 else ():
        del panel["layer"][0]
    count = curve_points["point"].nunique()
    stage = f"{table.study.name}: stage {frames.searched(table)}, {count} hyperparameter points"
    subtitle = "ring: point chosen by validation; cross: diverged or failed"
    return {"concat": panels, "columns": 3, "title": {"text": stage, "subtitle": subtitle}}


def points(table: ErrorTable) -> pd.DataFrame:
    """Returns a row per variant, point of the search and hyperparameter that varies in it, with the
    `setting` and whether the point is `chosen`: `value`, the median over seeds, nan without any,
    how many `seeds` have a value, and how many are `lost`."""
    keys = ["hyperparameter", "variant", "label", "point", "setting", "chosen"]
    groups = frames.trials(table).groupby(keys, sort=False)["value"]
    settings = groups.agg(value="median", seeds="count", trials="size").reset_index()
    return settings.assign(lost=settings["trials"] - settings["seeds"])


def _panel(settings: pd.DataFrame, name: str, y: charts.Chart) -> charts.Chart:
    names = list(settings["variant"].unique())
    scale, axis = charts.around(settings["setting"].to_numpy(float))
    encoding = {
        "x": charts.channel("setting:Q", title=name, scale=scale, axis=axis),
        "color": charts.colour(names),
        "opacity": charts.faded(),
        "tooltip": ["label:N", "point:Q", "value:Q", "setting:Q", "seeds:Q", "lost:Q"],
    }
    at = encoding | {"y": y}
    chosen = settings[settings["chosen"] & settings["value"].notna()]
    ring = {"x": at["x"], "y": y}
    layers = [
        charts.marks("line", settings.dropna(subset="value"), at, strokeWidth=1, tooltip=None),
        charts.marks("point", settings, at | {"shape": charts.shape(names)}, filled=True, size=55),
        charts.marks("point", chosen, ring, size=230, color=charts.BLACK, strokeWidth=1.5),
    ]
    lost = settings[settings["lost"] > 0]
    if len(lost):
        above = encoding | {"y": {"value": 6}}
        layers.append(charts.marks("point", lost, above, shape=CROSS, size=60, strokeWidth=2))
    return {"layer": layers, "width": WIDTH, "height": HEIGHT}


def hyperparameters_alt_text(table: ErrorTable) -> str:
    """Returns the best trial's value and point."""
    settings = frames.trials(table).dropna(subset="value").drop_duplicates("trial")
    names = ", ".join(points(table)["hyperparameter"].unique())
    best = settings.sort_values("value", ascending=table.metric.lower_is_better).iloc[0]
    value = f"{best['value']:.{table.metric.digits}f}"
    return (
        f"Validation {table.metric.label} of {settings['trial'].nunique()} trials by {names}. "
        f"Best: {value}, {best['label']}, point {best['point']}."
    )


EFFECTS = charts.FigureSpec(
    file="effects",
    draw=draw_effects,
    alt_text=effects_alt_text,
    absent="no completed trial has a number",
    caption="Left: each seed (dot) at the step that its validation chose, mean and 95% "
    "interval. Right: difference from the baseline with its 95% interval, which is not "
    "corrected for the number of variants, as the p-values (Holm) are.",
)
CURVES = charts.FigureSpec(
    file="learning_curves",
    draw=draw_curves,
    alt_text=curves_alt_text,
    absent="no trial has measured anything at two steps",
    caption=charts.SEED_LINES,
)
HYPERPARAMETERS = charts.FigureSpec(
    file="hyperparameters",
    draw=draw_hyperparameters,
    alt_text=hyperparameters_alt_text,
    absent="no hyperparameter varies among measured trials",
    caption="One mark per point of the search: the median over its seeds, each at its best "
    "validation step.",
)
