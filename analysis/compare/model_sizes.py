"""Loss by model size over several studies as data: power laws, and the parameters that a variant
saves."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import pandas as pd

from analysis.compare import experiment
from analysis.compare.error_table import ErrorTable
from analysis.compare.verdicts import VariantResult
from analysis.load.records import META_FILE, PARAMETERS, Problem
from analysis.statistics import power_law
from attention import table as variants

# c4_lm_234m and c4_lm_1b are sizes of c4_lm: the name up to here, and a task behind a colon, are
# the data and the objective.
SIZED = re.compile(r"(.+?_(?:lm|bert))(?:_[^:]*)?(:.*)?")
RULE = (
    "a power law needs studies of one family, which differ in the size of their model alone; leave "
    "the others out"
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


def settings(tables: Sequence[ErrorTable]) -> pd.DataFrame:
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
    stated = settings(losses).drop(columns=["study", experiment.DATA]).fillna("")
    groups = stated.groupby([*stated.columns], sort=False)
    members = [[losses[number] for number in group.index] for _, group in groups]
    return [family for family in members if len({table.workload for table in family}) > 1]


def of_tables(tables: Sequence[ErrorTable], loss: float | None = None) -> Scaling:
    """Returns the scaling of tables of losses, one per size.

    `loss`, above 0, is the loss to reach: the baseline's fit at the largest size unless given.
    Raises ValueError if trials do not record their number of parameters or no trial has a loss,
    MixedStudiesError if tables are not of one family or hold one size twice.
    """
    notes = experiment.check(settings(tables), RULE)
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
                "parameters": parameters(table, row),
                "paper": result.paper.text if result.paper else None,
            }
            rows += [size | {"seed": seed, "loss": loss} for seed, loss in result.values.items()]
    rows.sort(key=lambda row: (row["parameters"], variants.order(row["variant"]), row["seed"]))
    return pd.DataFrame(rows)


def parameters(table: ErrorTable, row: VariantResult) -> int:
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
