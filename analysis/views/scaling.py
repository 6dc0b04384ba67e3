"""Results by model size over several studies: power laws of the loss, and the parameters that a
variant saves; where each size has several budgets, how the compute that it saves changes with size.
"""

import itertools
import math
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from analysis.compare import experiment, model_sizes, sensitivity
from analysis.compare.error_table import ErrorTable
from analysis.load import paper
from analysis.load.records import Problem
from analysis.render import charts, pages
from analysis.statistics import budgets, comparisons, power_law
from analysis.views import speedup
from attention import table as variants

PAPER_SHARE = paper.printed(
    "text_scaling_law.csv",
    "decoder-LM {234M,300M,435M,1.1B,2.2B}, 167B tokens",
    "fewer parameters to reach test loss 2.347",
    "LASER vs Standard",
)


def page(family_fit: model_sizes.Scaling) -> pages.Page:
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
        _sizes_table(family_fit),
        pages.text_table("Power law f(n) = a n^b", pd.DataFrame(fits)),
        _savings_table(family_fit),
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
        return page(model_sizes.of_tables(tables))
    except ValueError as error:  # no number of parameters, a loss without a logarithm ...
        names = ", ".join(table.study.name for table in tables)
        return pages.Page(
            f"Loss by model size: {names}", (), (), (Problem("note", "", "", str(error)),)
        )


def _sizes_table(family_fit: model_sizes.Scaling) -> pages.Table:
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


def _savings_table(family_fit: model_sizes.Scaling) -> pages.Table:
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


def _notes(family_fit: model_sizes.Scaling) -> Iterable[str]:
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


@dataclass(frozen=True)
class Trend:
    """What variants save at several sizes of a model, each with the budgets that a speed-up needs.

    `speedups`: by the baseline's number of parameters, ascending. `slopes`: a row per variant with
    a speed-up at each of its sizes, three or more: `variant`, `sizes`, `slope` of the logarithm of
    the compute ratio over that of the parameters, its 95 % interval `low`, `high`, `change`, what
    the ratio changes by from the smallest to the largest size, with `change_low`, `change_high`,
    and `detectable`, the change that has a power of 80 %. `decisions`: a row per two sizes:
    `smaller`, `larger`, the number of `pairs` of variants, and of how many the verdicts are `same`.
    `without`: why a variant has no slope.
    """

    speedups: dict[int, speedup.SpeedUps]
    slopes: pd.DataFrame
    decisions: pd.DataFrame
    without: dict[str, str]


def has_budgets(tables: Sequence[ErrorTable]) -> bool:
    """Returns whether each size was trained for several numbers of steps, as `trend_of` needs."""
    steps = experiment.settings(tables).groupby("workload")["steps"].nunique()
    return bool(steps.min() >= budgets.LEAST)


def trend_of(tables: Sequence[ErrorTable], times: pathlib.Path | None = None) -> Trend:
    """Returns how speed-ups change with size. `times`: a directory with what `workloads bench`
    wrote for each workload, in a directory of its name.

    Raises MixedStudiesError for tables that differ in more than size and lengths, ValueError where
    a size has no speed-up (`speedup.of_tables`) or trials do not record their parameters.
    """
    experiment.check(
        model_sizes.settings(tables).drop(columns=[*experiment.LENGTHS]), model_sizes.RULE
    )
    groups: dict[str, list[ErrorTable]] = {}
    for table in tables:
        groups.setdefault(table.workload, []).append(table)
    speedups, verdicts = {}, {}
    for workload, group in groups.items():
        compared = max(group, key=lambda table: len(table.rows))
        parameters = model_sizes.parameters(compared, compared.by_variant[compared.baseline])
        speedups[parameters] = speedup.of_tables(group, times and times / workload)
        verdicts[parameters] = _verdicts(compared)
    slopes, without = _slopes(dict(sorted(speedups.items())))
    decisions = [
        {
            "smaller": small,
            "larger": large,
            "pairs": len(pairs := verdicts[small].keys() & verdicts[large].keys()),
            "same": sum(verdicts[small][pair] == verdicts[large][pair] for pair in pairs),
        }
        for small, large in itertools.combinations(sorted(verdicts), 2)
    ]
    return Trend(dict(sorted(speedups.items())), slopes, pd.DataFrame(decisions), without)


def _verdicts(table: ErrorTable) -> dict[tuple[str, str], str]:
    """Returns the verdict on each pair of variants without lost seeds, after Holm."""
    values = {
        row.variant: table.of(row).values
        for row in sorted(table.rows, key=lambda row: variants.order(row.variant))
        if row.n and not row.lost_on(table.decisive) and not table.withheld(row.variant)
    }
    pairs = [*itertools.combinations(values, 2)]
    compared = [
        comparisons.compare(values[other], values[name], table.study.shares_seeds)
        for name, other in pairs
    ]
    p_values = comparisons.holm([comparison.p for comparison in compared]).tolist()
    return {
        pair: comparisons.verdict(comparison.difference, p, table.metric.lower_is_better)
        for pair, comparison, p in zip(pairs, compared, p_values, strict=True)
    }


def _slopes(speedups: Mapping[int, speedup.SpeedUps]) -> tuple[pd.DataFrame, dict[str, str]]:
    """Returns `slopes` and `without` of a Trend."""
    sized = [each.rows.assign(parameters=parameters) for parameters, each in speedups.items()]
    rows = pd.concat(sized, ignore_index=True)
    rows["ratio"] = rows["needed"] * rows["compute"]
    slopes, without = [], {}
    for variant, of_variant in rows.groupby("variant", sort=False):
        known = of_variant["ratio"].gt(0) & np.isfinite(of_variant["ratio"])
        if not known.all():
            places = ", ".join(f"{count:,}" for count in of_variant["parameters"][~known])
            without[variant] = f"no number at {places} parameters, and the other sizes are not all"
        elif len(known) < budgets.LEAST:
            without[variant] = f"{len(known)} sizes; three are the least"
        else:
            slopes.append({"variant": variant} | _slope(of_variant))
    return pd.DataFrame(slopes), without


def _slope(rows: pd.DataFrame) -> dict[str, float]:
    """Returns one line of `slopes`. The interval is by the scatter of the sizes about the line, as
    a rate that is chosen at each size moves its ratio by what no seed shows."""
    law = power_law.fit(rows["parameters"].tolist(), rows["ratio"].tolist())
    span = math.log(law.largest / law.smallest)
    error = math.sqrt(power_law.covariance(law, law)[1, 1])
    # A t-test of n pairs has n - 1 degrees of freedom, and the error is SD / √n.
    pairs = law.freedom + 1
    least = sensitivity.detectable(error * math.sqrt(pairs), pairs, comparisons.ALPHA)
    ends = {"change": law.b, "change_low": law.low, "change_high": law.high, "detectable": least}
    changes = {name: math.exp(slope * span) for name, slope in ends.items()}
    return {"sizes": len(rows), "slope": law.b, "low": law.low, "high": law.high, **changes}


def trend_page(trend: Trend) -> pages.Page:
    """Returns the speed-ups at each size, their slopes, and how far sizes agree; `data` has the
    slopes."""
    shown = {parameters: speedup.page(each) for parameters, each in trend.speedups.items()}
    frames = [
        shown[parameters]
        .tables[0]
        .frame.assign(
            Parameters=f"{parameters:,}",
            Step=[f"{1 / (row.time * row.steps):.2f}" for row in each.rows.itertuples()],
        )
        for parameters, each in trend.speedups.items()
    ]
    columns = ["Variant", "Parameters", "Seeds", speedup.COMPUTE, speedup.TIME, "Step"]
    sizes = pd.concat(frames).reindex(columns=columns)
    slopes = [
        {
            "Variant": variants.label(row.variant),
            "Sizes": row.sizes,
            "Slope": pages.estimate(row.slope, row.low, row.high, 3, signed=True),
            "Change of\nthe ratio": pages.estimate(row.change, row.change_low, row.change_high, 2),
            "Could find": f"{row.detectable:.2f}",
        }
        for row in trend.slopes.itertuples()
    ]
    decisions = [
        {
            "Smaller": f"{row.smaller:,}",
            "Larger": f"{row.larger:,}",
            "Pairs": row.pairs,
            "Same verdict": f"{row.same} of {row.pairs}",
        }
        for row in trend.decisions.itertuples()
    ]
    first = next(iter(trend.speedups.values()))
    names = ", ".join(each.table.workload for each in trend.speedups.values())
    tables = (
        pages.text_table(
            f"What {first.table.baseline_label} needs over what the variant took",
            sizes.sort_values("Variant", kind="stable"),
        ),
        pages.text_table("Change with size", pd.DataFrame(slopes)),
        pages.text_table("Verdicts at two sizes", pd.DataFrame(decisions)),
    )
    notes = dict.fromkeys(note for page in shown.values() for note in page.notes)
    problems = dict.fromkeys(each for page in shown.values() for each in page.problems)
    return pages.Page(
        title=f"{names}: compute for the same {first.table.what} by size",
        tables=tuple(table for table in tables if len(table.frame)),
        notes=(*_trend_notes(trend), *notes),
        problems=tuple(problems),
        data=lambda: trend.slopes,
    )


def _trend_notes(trend: Trend) -> Iterable[str]:
    yield (
        "Slope: of the logarithm of the compute ratio over that of the baseline's parameters. Its "
        "95% interval is by the scatter of the sizes about the line (t, sizes - 2 degrees of "
        "freedom), which also has what a rate chosen at each size moves. Change: what the ratio is "
        "multiplied by from the smallest to the largest size; could find: the change, up or down "
        "(1 over it), that this scatter finds with a power of 80%. Nothing is projected beyond the "
        "largest size. Step: seconds of a step over the baseline's."
    )
    yield (
        "Where rates were chosen for the baseline alone, slopes hold for these rates. Same "
        "verdict: of all pairs of variants, those that are better, worse or not told apart at both "
        "sizes (t-tests, Holm over the pairs of a size)."
    )
    for variant, why in trend.without.items():
        yield f"No slope for {variants.label(variant)}: {why}."


def draw(tables: Sequence[ErrorTable]) -> charts.Chart | None:
    """Returns the seeds and the fitted lines of tables of losses, one per size, on logarithmic
    axes; None if no variant has two sizes, the trials do not record their numbers of
    parameters, or the tables are of no one family."""
    try:
        family_fit = model_sizes.of_tables(tables)
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
    log = {"type": "log", "nice": False, "padding": 12}
    axis = {"values": sizes, "format": ".3s", "labelOverlap": True}
    encoding = {
        "x": charts.channel("parameters:Q", title="parameters", scale=log, axis=axis),
        "y": charts.channel("loss:Q", title=f"{family_fit.table.decisive} loss", scale=log),
        "color": charts.colour(names),
        "opacity": charts.faded(),
    }
    seed = {
        "shape": charts.shape(names),
        "tooltip": ["variant:N", "study:N", "seed:Q", "parameters:Q", "loss:Q"],
    }
    layers = [
        charts.marks("point", points, encoding | seed, size=60),
        charts.marks("line", pd.DataFrame(lines), encoding),
    ]
    if family_fit.loss is not None:
        layers.append(
            charts.reference_line("y", family_fit.loss, name=f"loss {family_fit.loss:.4g}")
        )
    title = f"{family_fit.names}: loss by size"
    return {"layer": layers, "title": title, "width": 560, "height": 340}


# Of several studies: the report draws it of each family, `plots` of none.
PLOTS = (
    charts.FigureSpec(
        file="scaling",
        draw=draw,
        alt_text=lambda tables: _sizes_table(model_sizes.of_tables(tables)).alt_text(),
        absent="no variant has two sizes",
        caption="One mark per seed; lines are the fits; dotted: the loss to reach.",
    ),
)
