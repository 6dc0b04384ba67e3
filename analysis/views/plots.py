"""The charts of an error table: effects and verdicts, learning curves, hyperparameters."""

import functools
import json
import math
from collections.abc import Sequence

import altair as alt
import numpy as np
import pandas as pd
from altair.typing import ChartType

from analysis.compare import frames
from analysis.compare.error_table import ErrorTable
from analysis.load.selection import VALIDATION
from analysis.render import charts, pages
from analysis.views import sentences
from attention import table as variants
from sweeps.records import layout

# Of the effects: the widths of both panels and the height of a variant.
LEFT, RIGHT, ROW = 330, 250, 34
# Of the curves: the share of training whose evaluations need not be seen.
START = 0.1
# From so many seeds on the band is their middle half: the range of many is that of their worst.
QUARTILES_FROM = 8
# Columns of evaluations that can be the horizontal axis.
AXES = {"step": "training step", "seconds": "seconds of training", "flops": "FLOPs of training"}
# Of all panels of a row together, and of one panel: low where modifiers make several rows.
WIDTH, HEIGHT, LOW = 620, 190, 130
# The mark of a point of the search with seeds that have no value.
CROSS = "M-1,-1L1,1M-1,1L1,-1"


@functools.lru_cache(maxsize=8)
def effects(table: ErrorTable) -> pd.DataFrame:
    """Returns the rows of `frames.results` of variants with a number on the deciding split."""
    estimates = frames.results(table, None).query("kind == 'variant' and split == @table.decisive")
    return estimates.dropna(subset="mean")


def draw_effects(table: ErrorTable) -> ChartType | None:
    """Returns the chart, None if no variant has a number on the deciding split (test, or
    validation where nothing was tested)."""
    estimates = effects(table)
    if estimates.empty:
        return None
    estimates = estimates.assign(
        row=estimates["label"] + " (n = " + estimates["n"].astype(str) + ")"
    )
    panels = [_means(table, estimates)]
    if table.comparisons:
        panels.append(_differences(table, estimates))
    return alt.HConcatChart(
        hconcat=panels,
        spacing=24,
        title=f"{table.study.name}: {table.what} on {table.workload}",
    )


def _means(table: ErrorTable, estimates: pd.DataFrame) -> alt.LayerChart:
    """Returns the seeds, their mean and its interval."""
    rows = alt.Y("row:N", title=None, sort=list(estimates["row"]))
    title = f"{table.decisive} {table.metric.axis(table.workload)}"
    x = alt.X("mean:Q", title=title, scale=alt.Scale(zero=False))
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
    dots = (
        alt.Chart(seeds)
        .mark_circle(size=28, yOffset=9, opacity=0.5)
        .encode(
            x=alt.X("value:Q"),
            y=rows,
            color=charts.colour(list(estimates["variant"]), legend=False),
            tooltip=["label:N", "seed:Q", "step:Q", "value:Q", "trial:N"],
        )
    )
    return alt.LayerChart(layer=[measured, dots]).properties(width=LEFT, height=alt.Step(ROW))


def _differences(table: ErrorTable, estimates: pd.DataFrame) -> alt.LayerChart:
    """Returns the differences from the baseline about zero, and the verdicts."""
    rows = alt.Y("row:N", title=None, sort=list(estimates["row"]), axis=None)
    side = "left" if table.metric.lower_is_better else "right"
    title = f"difference from {table.baseline_label} (better to the {side})"
    x = alt.X("difference:Q", title=title, scale=alt.Scale(zero=True))
    bounded = estimates.assign(low=estimates["difference_low"], high=estimates["difference_high"])
    columns = ["label:N", "difference:Q", "low:Q", "high:Q", "p_holm:Q", "verdict:N"]
    measured = charts.interval_rows(bounded, x, rows, columns)
    p_values = estimates["p_holm"].map(
        lambda p: "" if math.isnan(p) else f" ({pages.p_in_words(p)})"
    )
    text = alt.Chart(estimates.assign(text=sentences.outcomes(estimates) + p_values))
    verdicts = text.mark_text(align="left", fontWeight="bold", fontSize=12).encode(
        x=alt.value(RIGHT + 8),
        y=rows,
        text="text:N",
        color=alt.when(alt.datum.verdict == "better")
        .then(alt.value(charts.GREEN))
        .when(alt.datum.verdict == "worse")
        .then(alt.value(charts.VERMILLION))
        .otherwise(alt.value(charts.GREY)),
    )
    layers = [charts.reference_line("x", 0, charts.BLACK), measured, verdicts]
    return alt.LayerChart(layer=layers).properties(width=RIGHT, height=alt.Step(ROW))


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


def bands(table: ErrorTable) -> pd.DataFrame:
    """Returns one row per point of a variant's curve: `by` (a key of AXES), its value `x`, the
    median over seeds `middle` within `low` and `high` (smallest and largest, of many seeds the
    middle half), the number of seeds `n`, and whether the point is `marked`."""
    columns = ["variant", "split", "seed", "value"]
    places = frames.evaluations(table).melt(columns, [*AXES], "by", "x").dropna(subset="x")
    parts = []
    for (by, variant, split), of_seeds in places.groupby(["by", *columns[:2]], sort=False):
        curves = [
            (curve["x"].to_numpy(float), curve["value"].to_numpy(float))
            for _, curve in of_seeds.groupby("seed")
        ]
        shared = _shared([evaluated for evaluated, _ in curves])
        values = np.stack([np.interp(shared, *curve) for curve in curves])
        share = 0.25 if len(curves) >= QUARTILES_FROM else 0.0
        # Of numbers that are there: between two infinite ones nothing can be interpolated.
        low, high = np.quantile(values, (share, 1 - share), axis=0, method="nearest")
        parts.append(
            pd.DataFrame(
                {"x": shared, "low": low, "middle": np.median(values, axis=0), "high": high}
            ).assign(variant=variant, split=split, by=by, n=len(curves))
        )
    if not parts:
        return pd.DataFrame(columns=["variant", "split", "by", "modifiers"])
    curve_points = charts.thinned(pd.concat(parts, ignore_index=True), ("variant", "split", "by"))
    return curve_points.assign(
        label=curve_points["variant"].map(variants.label), modifiers=_families(curve_points)
    )


def _families(curve_points: pd.DataFrame) -> pd.Series:
    """Returns the panel of each line's variant."""
    return curve_points["variant"].map(variants.modifier_label).replace("", "no modifier")


def singles(table: ErrorTable) -> pd.DataFrame:
    """Returns the curves of trials that are running, failed or diverged: a row per trial, split,
    `by` (a key of AXES) and evaluation, with its `x`, its finite value `single`, and `ended`, the
    trial's state at the last of them, else None."""
    columns = ["variant", "label", "split", "seed", "trial", "state", "value"]
    curve_points = frames.uncounted(table).melt(columns, [*AXES], "by", "x").dropna(subset="x")
    curve_points = charts.thinned(
        curve_points[np.isfinite(curve_points["value"].astype(float))], ("trial", "split", "by")
    )
    is_last = ~curve_points.duplicated(["trial", "split", "by"], keep="last")
    return curve_points.rename(columns={"value": "single"}).assign(
        ended=curve_points["state"].where(is_last, None), modifiers=_families(curve_points)
    )


def beside(table: ErrorTable, curve_points: pd.DataFrame, families: Sequence[str]) -> pd.DataFrame:
    """Returns the baseline's curve in `curve_points` (`bands`) for each of the panels `families`
    but its own. The column `beside` is the median over its seeds."""
    curve_points = curve_points[curve_points["variant"] == table.baseline]
    others = [family for family in families if family not in set(curve_points["modifiers"])]
    curve = curve_points.rename(columns={"middle": "beside"}).reindex(
        columns=["split", "by", "x", "beside"]
    )
    return curve.merge(pd.DataFrame({"modifiers": others}), how="cross").assign(
        name=table.baseline_label
    )


def _shared(evaluated: Sequence[np.ndarray]) -> np.ndarray:
    """Returns the places to draw: those at which every seed was evaluated. Where these are under
    half of a seed's own, as in AlgoPerf's logs, which are evaluated by the clock, all places
    between the last first and the first last: numbers are interpolated between evaluations."""
    shared = functools.reduce(np.intersect1d, evaluated)
    if 2 * len(shared) >= max(map(len, evaluated)):
        return shared
    begin, end = max(places[0] for places in evaluated), min(places[-1] for places in evaluated)
    every = np.unique(np.concatenate(evaluated))
    return every[(begin <= every) & (every <= end)]


def draw_curves(table: ErrorTable) -> ChartType | None:
    """Returns the chart, None if no trial of the table has a curve. A panel holds the
    mechanisms with one set of modifiers on one split, and the baseline; a menu chooses the
    horizontal axis."""
    curves, alone = bands(table), singles(table)
    drawn = pd.concat([frame for frame in (curves, alone) if len(frame)] or [curves])
    if drawn.empty:
        return None
    families = list(drawn["modifiers"].unique())
    splits = [split for split in layout.SPLITS if split in set(drawn["split"])]
    known = [by for by in AXES if by in set(drawn["by"])]
    menu = alt.binding_select(options=known, labels=[AXES[by] for by in known], name="Axis: ")
    axis = alt.param(name="by", value=known[0], bind=menu if len(known) > 1 else alt.Undefined)
    by = alt.ExprRef(
        f"{json.dumps(f'{table.study.name}: {table.metric.label} by ')} + ({json.dumps(AXES)})[by]"
    )
    references = ", ".join(reference.name for reference in table.references)
    below = f"dashed: {references}" if references else alt.Undefined
    more = [beside(table, curves, families), _references(table, families, splits)]
    data = pd.concat([drawn, *(frame for frame in more if len(frame))], ignore_index=True)
    # Without a finished trial the axis holds the others.
    held = curves if len(curves) else alone.assign(low=alone["single"], high=alone["single"])
    scale, ticks = charts.around(shown(table, held))
    x = alt.X(
        "x:Q",
        scale=alt.Scale(zero=False, nice=False, padding=8),
        axis=alt.Axis(title=None, format="~s", tickCount=4),
    )
    y = alt.Y("middle:Q", title=table.metric.axis(table.workload), scale=scale, axis=ticks)
    names = list(drawn["variant"].unique())
    lines = charts.line_with_band(data, x, y, names)
    grey = alt.Chart(data).mark_line(color=charts.GREY, strokeWidth=1.8, clip=True)
    rule = alt.Chart(data).mark_rule(color=charts.GREY, strokeDash=charts.DASHES[1], clip=True)
    layers: dict[str, Sequence[ChartType]] = {
        "middle": [lines.transform_filter("isValid(datum.middle)")],
        "single": _single_lines(data, x, names),
        "beside": [
            grey.encode(x=x, y="beside:Q", tooltip="name:N").transform_filter(
                "isValid(datum.beside)"
            )
        ],
        "reference": [rule.encode(y="reference:Q", tooltip=["name:N", "reference:Q"])],
    }
    # Vega warns of a layer without any mark.
    drawn_layers = [
        layer
        for column, marks in layers.items()
        if data.get(column, pd.Series(dtype=float)).notna().any()
        for layer in marks
    ]
    panel = alt.LayerChart(layer=drawn_layers).properties(
        width=WIDTH / len(splits), height=HEIGHT if len(families) == 1 else LOW
    )
    rows = alt.Row("modifiers:N", sort=families) if len(families) > 1 else alt.Undefined
    return (
        panel.facet(row=rows, column=alt.Column("split:N", sort=splits))
        .transform_filter("datum.by == by || isValid(datum.reference)")
        .add_params(axis)
        .properties(title=alt.Title(by, subtitle=below))
    )


def _single_lines(data: pd.DataFrame, x: alt.X, names: Sequence[str]) -> list[alt.Chart]:
    """Returns the lines of the column `single`, and the states at their ends."""
    base = alt.Chart(data).encode(
        x=x,
        y="single:Q",
        detail="trial:N",
        color=charts.colour(names),
        opacity=charts.faded(),
        tooltip=["label:N", "seed:Q", "state:N", "x:Q", "single:Q", "trial:N"],
    )
    line = base.mark_line(strokeWidth=1, strokeDash=charts.DASHES[2], clip=True)
    ends = base.mark_text(align="right", baseline="bottom", dy=-3).encode(text="ended:N")
    return [
        line.transform_filter("isValid(datum.single)"),
        ends.transform_filter("isValid(datum.ended)"),
    ]


def _references(table: ErrorTable, families: Sequence[str], splits: Sequence[str]) -> pd.DataFrame:
    """Returns a row per panel and reference line."""
    lines = [
        {"split": split, "modifiers": family, "reference": value, "name": reference.name}
        for reference in table.references
        for split, value in reference.values.items()
        for family in families
        if value is not None and split in splits
    ]
    return pd.DataFrame(lines, columns=["split", "modifiers", "reference", "name"])


def shown(table: ErrorTable, curve_points: pd.DataFrame) -> np.ndarray:
    """Returns the numbers that the vertical axis must hold.

    Before training a loss is log(vocabulary) and a WER may be above 1, far from where variants
    differ: of such metrics the first tenth of the steps may leave the axis, given that at least
    two evaluations are left.
    """
    steps = curve_points[curve_points["by"] == "step"]
    late = steps[steps["x"] >= START * steps["x"].max()]
    kept = steps if table.metric.is_bounded or late["x"].nunique() < 2 else late
    return kept[["low", "high"]].to_numpy().ravel()


def curves_alt_text(table: ErrorTable) -> str:
    """Returns every variant's median on validation at the chosen steps."""
    seeds = frames.seeds(table)
    ends = seeds[seeds["split"] == VALIDATION].groupby("label", sort=False)["value"].median()
    caption = f"Learning curves: {table.metric.label} on validation at the chosen steps"
    formats = {"median": f".{table.metric.digits}f"}
    return pages.Table(caption, ends.rename("median").reset_index(), formats).alt_text()


def draw_hyperparameters(table: ErrorTable) -> ChartType | None:
    """Returns the chart, None if no hyperparameter varies among the measured trials of the search.

    A panel for each hyperparameter has a mark for each point: the median over its seeds at their
    best validation steps. Chosen points have a ring. A point with a seed that diverged or failed
    has a cross on the upper edge."""
    curve_points = points(table)
    if not curve_points["value"].notna().any():
        return None
    scale, axis = charts.around(curve_points["value"].to_numpy(float), room=0.12)
    y = alt.Y(
        "value:Q",
        title=f"{VALIDATION} {table.metric.axis(table.workload)}",
        scale=scale,
        axis=axis,
    )
    panels = [
        _panel(points, str(name), y)
        for name, points in curve_points.groupby("hyperparameter", sort=False)
    ]
    count = curve_points["point"].nunique()
    title = alt.Title(
        f"{table.study.name}: stage {frames.searched(table)}, {count} hyperparameter points",
        subtitle="ring: point chosen by validation; cross: diverged or failed",
    )
    return alt.ConcatChart(concat=panels, columns=3).properties(title=title)


def points(table: ErrorTable) -> pd.DataFrame:
    """Returns a row per variant, point of the search and hyperparameter that varies in it, with the
    `setting` and whether the point is `chosen`: `value`, the median over seeds, nan without any,
    how many `seeds` have a value, and how many are `lost`."""
    keys = ["hyperparameter", "variant", "label", "point", "setting", "chosen"]
    groups = frames.trials(table).groupby(keys, sort=False)["value"]
    settings = groups.agg(value="median", seeds="count", trials="size").reset_index()
    return settings.assign(lost=settings["trials"] - settings["seeds"])


def _panel(settings: pd.DataFrame, name: str, y: alt.Y) -> alt.LayerChart:
    names = list(settings["variant"].unique())
    scale, axis = charts.around(settings["setting"].to_numpy(float))
    x = alt.X("setting:Q", title=name, scale=scale, axis=axis)
    tooltip = ["label:N", "point:Q", "value:Q", "setting:Q", "seeds:Q", "lost:Q"]
    base = alt.Chart(settings).encode(
        x=x, color=charts.colour(names), opacity=charts.faded(), tooltip=tooltip
    )
    measured = base.mark_point(filled=True, size=55).encode(y=y, shape=charts.shape(names))
    lost = base.mark_point(shape=CROSS, size=60, strokeWidth=2).encode(y=alt.value(6))
    ring = alt.Chart(settings).mark_point(size=230, color=charts.BLACK, strokeWidth=1.5)
    layers = [
        measured,
        lost.transform_filter("datum.lost > 0"),
        ring.encode(x=x, y=y).transform_filter("datum.chosen && isValid(datum.value)"),
    ]
    return alt.LayerChart(layer=layers).properties(width=200, height=HEIGHT)


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
    absent="no completed trial has a curve",
    caption="Line: median over seeds. Band: smallest to largest seed; from "
    f"{QUARTILES_FROM} seeds on their middle half. Grey: the baseline. Dashed and thin: a trial "
    f"that is running, failed or diverged. {charts.THINNED}",
)
HYPERPARAMETERS = charts.FigureSpec(
    file="hyperparameters",
    draw=draw_hyperparameters,
    alt_text=hyperparameters_alt_text,
    absent="no hyperparameter varies among measured trials",
    caption="One mark per point of the search: the median over its seeds, each at its best "
    "validation step.",
)
