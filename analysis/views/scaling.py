"""Loss by model size over several studies: the sizes, power laws and parameters saved; a figure."""

import math
from collections.abc import Iterable, Sequence

import altair as alt
import numpy as np
import pandas as pd

from analysis.compare import scaling
from analysis.compare.error_table import ErrorTable
from analysis.load import paper
from analysis.load.records import Problem
from analysis.render import charts, pages
from attention import table as variants

PAPER_SHARE = paper.printed(
    "text_scaling_law.csv",
    "decoder-LM {234M,300M,435M,1.1B,2.2B}, 167B tokens",
    "fewer parameters to reach test loss 2.347",
    "LASER vs Standard",
)


def page(family_fit: scaling.Scaling) -> pages.Page:
    """Returns the sizes, the fits, and the savings where there are any; `data` has the seeds."""
    fits = [
        {
            "Variant": variants.label(name),
            "a": f"{math.exp(law.log_a):.4g}",
            "b": f"{law.b:.5f}",
            "95% interval\nof b (t)": _bounds(law.low, law.high, 5),
            "Sizes": len(law.residuals),
            "from": f"{law.smallest:.4g}",
            "to": f"{law.largest:.4g}",
        }
        for name, law in family_fit.laws.items()
    ]
    tables = (
        _sizes(family_fit),
        pages.text_table("Power law f(n) = a n^b", pd.DataFrame(fits)),
        _savings(family_fit),
    )
    return pages.Page(
        title=f"{family_fit.names}: {family_fit.table.decisive} loss by number of parameters",
        tables=tuple(table for table in tables if len(table.frame)),
        notes=tuple(_notes(family_fit)),
        problems=family_fit.problems,
        data=lambda: family_fit.points,
    )


def of_family(tables: Sequence[ErrorTable]) -> pages.Page:
    """Returns the page of tables of losses, one per size, or one that says why there is no law."""
    try:
        return page(scaling.of_tables(tables))
    except ValueError as error:  # no number of parameters, a loss without a logarithm ...
        names = ", ".join(table.study.name for table in tables)
        return pages.Page(
            f"Loss by model size: {names}", (), (), (Problem("note", "", "", str(error)),)
        )


def _sizes(family_fit: scaling.Scaling) -> pages.Table:
    columns = {"workload": "Workload", "parameters": "Parameters", "variant": "Variant", "n": "n"}
    columns |= {"paper": "Loss\npaper"} if family_fit.sizes["paper"].any() else {}
    frame = family_fit.sizes.assign(variant=family_fit.sizes["variant"].map(variants.label))
    frame = frame[[*columns, "loss"]].rename(columns=columns | {"loss": "Loss"})
    return pages.Table(
        "Geometric mean over seeds",
        frame,
        {"Parameters": ",", "Loss": ".4f", "Loss\npaper": ""},
    )


def _bounds(low: float, high: float, digits: int) -> str:
    return "none (2 sizes)" if math.isnan(low) else pages.interval(low, high, digits)


def _savings(family_fit: scaling.Scaling) -> pages.Table:
    rows = []
    for saving in family_fit.savings.itertuples():
        row = {"Variant": variants.label(saving.variant), "Fewer": "none (see notes)"}
        if not saving.obstacle and not saving.withheld:
            row |= {
                "Parameters\nbaseline": f"{saving.of_baseline:.4g}",
                "Parameters\nvariant": f"{saving.of_variant:.4g}",
                "Fewer": f"{100 * saving.share:.2f} %{'†' if saving.is_extrapolated else ''}",
                "95% interval\nin %": _bounds(100 * saving.low, 100 * saving.high, 1),
                "Paper": f"{PAPER_SHARE.text} %"
                if PAPER_SHARE and saving.variant == "laser"
                else "–",
            }
        rows.append(row)
    loss = "" if family_fit.loss is None else f" {family_fit.loss:.4g}"
    return pages.text_table(
        f"Parameters to reach {family_fit.table.decisive} loss{loss}", pd.DataFrame(rows)
    )


def _notes(family_fit: scaling.Scaling) -> Iterable[str]:
    yield (
        "f(n) = a n^b by least squares on the logs of losses at the steps that validation chose "
        "and of all parameters, each size weighted by its seeds; docs/analysis.md, `Time, size, "
        "spikes`, has the intervals."
    )
    if not family_fit.laws:
        yield "Fewer than two sizes of any variant: no power law."
    for saving in family_fit.savings[family_fit.savings["obstacle"] != ""].itertuples():
        whose, whom = variants.label(saving.obstacle), variants.label(saving.variant)
        yield f"No share of parameters for {whom}: the loss of {whose} may not fall with size."
    for saving in family_fit.savings[family_fit.savings["withheld"] != ""].itertuples():
        yield f"The saving of {variants.label(saving.variant)} is withheld ({saving.withheld})."
    known = family_fit.savings[family_fit.savings[["obstacle", "withheld"]].eq("").all(axis=1)]
    if len(known):
        paired = "paired" if known["is_paired"].all() else "not all paired, and then wider"
        yield (
            f"Fewer: 1 - n of the variant / n of {family_fit.table.baseline_label}, each with "
            f"f(n) = {family_fit.loss:.4g}; below 0 the variant needs more parameters. "
            f"†: extrapolated. Delta-method intervals, {paired} by study and seed. "
            f"Paper: {paper.SOURCE}, test loss 2.347; its share cannot be recomputed."
        )


def draw(tables: Sequence[ErrorTable]) -> alt.LayerChart | None:
    """Returns the seeds and the fitted lines of tables of losses, one per size, on logarithmic
    axes; None if no variant has two sizes, the trials do not record their numbers of
    parameters, or the tables are of no one family."""
    try:
        family_fit = scaling.of_tables(tables)
    except ValueError:
        return None
    if not family_fit.laws:
        return None
    names = [*family_fit.laws]
    sizes = sorted(set(family_fit.points["parameters"]))
    lines = [
        {"variant": name, "parameters": size, "loss": law.loss(size)}
        for name, law in family_fit.laws.items()
        for size in np.geomspace(law.smallest, law.largest, 50)
    ]
    points = family_fit.points[family_fit.points["variant"].isin(names)].drop(columns="place")
    log = alt.Scale(type="log", nice=False, padding=12)
    axis = alt.Axis(values=sizes, format=".3s", labelOverlap=True)
    base = alt.Chart(points).encode(
        x=alt.X("parameters:Q", title="parameters", scale=log, axis=axis),
        y=alt.Y("loss:Q", title=f"{family_fit.table.decisive} loss", scale=log),
        color=charts.colour(names),
        opacity=charts.faded(),
    )
    tooltip = ["variant", "study", "seed", alt.Tooltip("parameters", format=","), "loss"]
    seeds = base.mark_point(size=60).encode(shape=charts.shape(names), tooltip=tooltip)
    fits = base.properties(data=pd.DataFrame(lines)).mark_line()
    layers = [seeds, fits.encode(strokeDash=charts.dash(names))]
    if family_fit.loss is not None:
        layers.append(
            charts.reference_line("y", family_fit.loss, name=f"loss {family_fit.loss:.4g}")
        )
    return alt.LayerChart(
        layer=layers, title=f"{family_fit.names}: loss by size", width=560, height=340
    )


# Of several studies: the report draws it of each family, `plots` of none.
PLOTS = (
    charts.FigureSpec(
        file="scaling",
        draw=draw,
        alt_text=lambda tables: _sizes(scaling.of_tables(tables)).alt_text(),
        absent="no variant has two sizes",
        caption="One mark per seed; lines are the fits; dotted: the loss to reach.",
    ),
)
