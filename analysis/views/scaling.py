"""Loss by model size over several studies: power laws, and the parameters that a variant saves."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import pandas as pd

from analysis.compare import experiment
from analysis.compare.error_table import ErrorTable
from analysis.compare.verdicts import VariantResult
from analysis.load import paper
from analysis.load.records import META_FILE, PARAMETERS, Problem
from analysis.render import charts, pages
from analysis.statistics import power_law
from attention import table as variants

# c4_lm_234m and c4_lm_1b are sizes of c4_lm: the name up to here, and a task behind a colon, are
# the data and the objective.
SIZED = re.compile(r"(.+?_(?:lm|bert))(?:_[^:]*)?(:.*)?")
RULE = (
    "a power law needs studies of one family, which differ in the size of their model alone; leave "
    "the others out"
)
PAPER_SHARE = paper.printed(
    "text_scaling_law.csv",
    "decoder-LM {234M,300M,435M,1.1B,2.2B}, 167B tokens",
    "fewer parameters to reach test loss 2.347",
    "LASER vs Standard",
)


@dataclass(frozen=True)
class Scaling:
    """Loss by size, on the deciding split and against the baseline of `table`, one of the sizes.

    `points`, in ascending order of size: one row per seed of a variant at one size: study, place
    (its directory), workload, variant, parameters, seed, loss, and the loss that the paper prints.
    `sizes`: one row per variant and size: of the same and n, the loss a geometric mean over seeds,
    as the logs are what is fitted. `laws`: the fit of each variant with two sizes or more.
    `savings`: one row per law but the baseline's: variant, what `power_law.Saving` has of reaching
    `loss`, nan if the loss of a variant does not fall with size: `obstacle` is that variant, its
    own or the baseline, else empty; `withheld`, why the saving is no result, else empty.
    """

    table: ErrorTable
    loss: float | None
    points: pd.DataFrame
    sizes: pd.DataFrame
    laws: dict[str, power_law.PowerLaw]
    savings: pd.DataFrame
    problems: tuple[Problem, ...]

    @property
    def names(self) -> str:
        """Returns the studies' names."""
        return ", ".join(dict.fromkeys(self.points["study"]))


def _settings(tables: Sequence[ErrorTable]) -> pd.DataFrame:
    """Returns what must be equal for tables to be of one family: `experiment.settings` without the
    baseline, the workload without its size.

    Each size has checkpoints of its own to start from: of `finetune_from` it counts whether it is
    set.
    """
    stated = experiment.settings(tables).drop(columns="baseline")
    sized = (SIZED.fullmatch(table.workload) for table in tables)
    stated["workload"] = [
        match.expand(r"\1\2") if match else table.workload
        for match, table in zip(sized, tables, strict=True)
    ]
    is_started = stated["finetune_from"].notna() & stated["finetune_from"].ne("''")
    stated["finetune_from"] = stated["finetune_from"].mask(is_started, "another study")
    return stated


def families(tables: Sequence[ErrorTable]) -> list[list[ErrorTable]]:
    """Returns the tables of losses whose workloads are sizes of a model and whose settings are the
    same; only families of several workloads. `of_tables` still refuses other data."""
    losses = [
        table
        for table in tables
        if table.metric.name == "loss" and any(row.n for row in table.rows)
    ]
    stated = _settings(losses).drop(columns=["study", experiment.DATA]).fillna("")
    groups = stated.groupby([*stated.columns], sort=False)
    members = [[losses[number] for number in group.index] for _, group in groups]
    return [family for family in members if len({table.workload for table in family}) > 1]


def of_tables(tables: Sequence[ErrorTable], loss: float | None = None) -> Scaling:
    """Returns the scaling of tables of losses, one per size.

    `loss`, above 0, is the loss to reach: the baseline's fit at the largest size unless given.
    Raises ValueError if trials do not record their number of parameters or no trial has a loss,
    MixedStudiesError if tables are not of one family or hold one size twice.
    """
    notes = experiment.check(_settings(tables), RULE)
    points = _points(tables)
    if points.empty:
        stages = ", ".join(f"{table.study.name}/{table.stage}" for table in tables)
        raise ValueError(f"no trial of {stages} has finished with a loss, so there is no size yet")
    sizes = _sizes(points)
    by_variant = {name: of_variant for name, of_variant in sizes.groupby("variant")}
    laws = {
        name: power_law.fit(*(by_variant[name][column] for column in ("parameters", "loss", "n")))
        for name in sorted(by_variant, key=variants.order)
        if len(by_variant[name]) > 1
    }
    baseline = tables[0].baseline
    if loss is None and baseline in laws:
        loss = laws[baseline].loss(laws[baseline].largest)
    are_shared = all(table.study.shares_seeds for table in tables)
    return Scaling(
        table=tables[0],
        loss=loss,
        points=points,
        sizes=sizes,
        laws=laws,
        savings=_savings(laws, baseline, loss, points if are_shared else points.iloc[:0]).assign(
            withheld=lambda rows: [experiment.withheld(tables, name) for name in rows["variant"]]
        ),
        problems=(
            *notes,
            *(problem for table in tables for problem in table.named_problems),
        ),
    )


def _points(tables: Sequence[ErrorTable]) -> pd.DataFrame:
    rows: list[dict[str, Any]] = []
    for table in tables:
        for row in table.rows:
            result = table.of(row)
            if not result.values:
                continue
            size = {
                "study": table.study.name,
                "place": table.study.directory.resolve(),
                "workload": table.workload,
                "variant": row.variant,
                "parameters": _parameters(table, row),
                "paper": result.paper.text if result.paper else None,
            }
            rows += [size | {"seed": seed, "loss": loss} for seed, loss in result.values.items()]
    rows.sort(key=lambda row: (row["parameters"], variants.order(row["variant"]), row["seed"]))
    return pd.DataFrame(rows)


def _parameters(table: ErrorTable, row: VariantResult) -> int:
    """Returns the number that the first of the row's trials to record it says."""
    for run in table.runs(row):
        if count := run.meta.get(PARAMETERS):
            return int(count)
    raise ValueError(
        f"{table.study.name}: no trial of {row.variant} records {PARAMETERS!r} in {META_FILE}"
    )


def _sizes(points: pd.DataFrame) -> pd.DataFrame:
    """Returns a row per variant and size. Raises MixedStudiesError if two studies have one size
    of a variant: their seeds are not of one sample, and a law of both would count a size twice."""
    keys = ["study", "place", "workload", "variant", "parameters"]
    groups = points.groupby(keys, sort=False)
    sizes = groups.agg(
        n=("seed", "size"),
        loss=("loss", lambda losses: math.exp(np.mean(np.log(losses)))),
        paper=("paper", "first"),
    ).reset_index()
    for (variant, count), same in sizes.groupby(["variant", "parameters"], sort=False):
        if len(same) > 1:
            places = " and ".join(same["study"] + " (" + same["place"].astype(str) + ")")
            raise experiment.MixedStudiesError(
                f"{places} have the same size, {count:,} parameters of {variant}: name one of them"
            )
    return sizes


def _savings(
    laws: Mapping[str, power_law.PowerLaw], baseline: str, loss: float | None, pairs: pd.DataFrame
) -> pd.DataFrame:
    """Returns the savings; fits are paired whose `pairs`, points of shared seeds, are the same."""
    rows: list[dict[str, Any]] = []
    for name, law in laws.items():
        base = laws.get(baseline)
        if base is None or law is base or loss is None:
            continue
        obstacles = [label for label in (baseline, name) if not laws[label].falls]
        row = {"variant": name, "obstacle": "".join(obstacles[:1])}
        if not obstacles:
            seeds = [
                pairs.loc[pairs["variant"] == label, ["place", "workload", "seed"]].values.tolist()
                for label in (baseline, name)
            ]
            row |= vars(power_law.between(base, law, loss, seeds[0] == seeds[1] != []))
        rows.append(row)
    columns = ["variant", "obstacle", *(field.name for field in fields(power_law.Saving))]
    return pd.DataFrame(rows, columns=columns)


def page(family_fit: Scaling) -> pages.Page:
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
        return page(of_tables(tables))
    except ValueError as error:  # no number of parameters, a loss without a logarithm ...
        names = ", ".join(table.study.name for table in tables)
        return pages.Page(
            f"Loss by model size: {names}", (), (), (Problem("note", "", "", str(error)),)
        )


def _sizes_table(family_fit: Scaling) -> pages.Table:
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


def _savings_table(family_fit: Scaling) -> pages.Table:
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


def _notes(family_fit: Scaling) -> Iterable[str]:
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


def draw(tables: Sequence[ErrorTable]) -> charts.Chart | None:
    """Returns the seeds and the fitted lines of tables of losses, one per size, on logarithmic
    axes; None if no variant has two sizes, the trials do not record their numbers of
    parameters, or the tables are of no one family."""
    try:
        family_fit = of_tables(tables)
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
        alt_text=lambda tables: _sizes_table(of_tables(tables)).alt_text(),
        absent="no variant has two sizes",
        caption="One mark per seed; lines are the fits; dotted: the loss to reach.",
    ),
)
