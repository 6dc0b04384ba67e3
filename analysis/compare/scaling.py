"""Loss by model size over several studies: power laws, and the parameters that a variant saves."""

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import pandas as pd

from analysis.compare.error_table import ErrorTable, VariantResult
from analysis.load.records import META_FILE, PARAMETERS, Problem
from analysis.statistics import power_law
from analysis.statistics.power_law import PowerLaw, Saving
from attention import table as variants

# What moves the loss beside the size: keys of a study's configuration.
STATED = ("optimizer", "compute_dtype", "param_dtype", "batch_size", "steps", "step_hint")
DATA, SPLIT = "data", "deciding split"
KEYS = (SPLIT, DATA, *STATED)
# c4_lm_234m and c4_lm_1b are sizes of c4_lm: the name up to here is the data and the objective.
SIZED = re.compile(r"(.+?_(?:lm|bert))(?:_.*)?")


class MixedStudiesError(ValueError):
    """Studies of different experiments, or twice the same one, were given as sizes of one model."""


@dataclass(frozen=True)
class Scaling:
    """Loss by size, on the deciding split and against the baseline of `table`, one of the sizes.

    `points`, in ascending order of size: one row per seed of a variant at one size: study, place
    (its directory), workload, variant, parameters, seed, loss, and the loss that the paper prints.
    `sizes`: one row per variant and size: of the same and n, the loss a geometric mean over seeds,
    as the logs are what is fitted. `laws`: the fit of each variant with two sizes or more.
    `savings`: one row per law but the baseline's: variant, what `power_law.Saving` has of reaching
    `loss`, nan where the loss of a variant does not fall with size: `obstacle` is that variant, its
    own or the baseline, else empty.
    """

    table: ErrorTable
    loss: float | None
    points: pd.DataFrame
    sizes: pd.DataFrame
    laws: dict[str, PowerLaw]
    savings: pd.DataFrame
    problems: tuple[Problem, ...]

    @property
    def names(self) -> str:
        """Returns the studies' names."""
        return ", ".join(dict.fromkeys(self.points["study"]))


def configurations(tables: Sequence[ErrorTable]) -> pd.DataFrame:
    """Returns what studies' losses depend on beside the size of the model and its points, a row per
    table: KEYS, None where the study's files do not state one. The data is told by the workload's
    name."""
    rows = []
    for table in tables:
        row = {key: table.study.config.get(key) or None for key in STATED}
        for key in ("steps", "step_hint"):
            of_runs = {getattr(run, key) for run in table.study.stage(table.stage)} - {None}
            if not row[key] and of_runs:  # 0: the workload's own, which the trials state
                row[key] = ", ".join(f"{count:,}" for count in sorted(of_runs))
        sized = SIZED.fullmatch(table.workload)
        row |= {DATA: sized and sized.group(1), SPLIT: table.decisive}
        rows.append({key: f"{v:,}" if isinstance(v, int) else v for key, v in row.items()})
    return pd.DataFrame(rows, columns=KEYS, dtype=object)


def families(tables: Sequence[ErrorTable]) -> list[list[ErrorTable]]:
    """Returns the tables of losses whose workloads are sizes of a model, by what `configurations`
    says of them; only families of several workloads."""
    losses = [
        table
        for table in tables
        if table.metric.name == "loss" and any(row.n for row in table.rows)
    ]
    stated = configurations(losses)
    groups = stated[stated[DATA].notna()].fillna("").groupby(list(KEYS), sort=False)
    found = [[losses[number] for number in group.index] for _, group in groups]
    return [each for each in found if len({table.workload for table in each}) > 1]


def of_tables(
    tables: Sequence[ErrorTable], loss: float | None = None, given: Mapping[str, int] | None = None
) -> Scaling:
    """Returns the scaling of tables of losses, one per size.

    `loss`, above 0, is the loss to reach: the baseline's fit at the largest size unless given.
    `given` maps a workload to its number of parameters where its trials do not record one. Raises
    ValueError where neither says it, MixedStudiesError where tables are not of one family or hold
    one size twice.
    """
    stated = configurations(tables).assign(study=[table.study.name for table in tables])
    notes = _check_family(stated)
    points = _points(tables, given or {})
    sizes = _sizes(points)
    laws = {}
    for name in sorted(set(sizes["variant"]), key=variants.order):
        own = sizes[sizes["variant"] == name]
        if len(own) > 1:
            laws[name] = power_law.fit(own["parameters"], own["loss"], own["n"])
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
        savings=_savings(laws, baseline, loss, points if are_shared else points.iloc[:0]),
        problems=(
            *notes,
            *(
                dataclasses.replace(problem, trial=f"{table.study.name}/{problem.trial}")
                for table in tables
                for problem in table.problems
            ),
        ),
    )


def _check_family(stated: pd.DataFrame) -> list[Problem]:
    """Returns a note on every key that some studies state and others do not. Raises
    MixedStudiesError, naming the keys, their values and the studies, where studies state different
    values of a key."""
    differing, notes = [], []
    for key in KEYS:
        studies = stated.groupby(key, sort=False)["study"].agg(", ".join)
        if len(studies) > 1:
            listed = "; ".join(f"{value}: {names}" for value, names in studies.items())
            differing.append(f"{key} ({listed})")
        silent = ", ".join(stated["study"][stated[key].isna()])
        if silent and len(studies) and key != DATA:
            text = f"{silent}: no {key} is stated; taken as that of the others"
            notes.append(Problem("note", "", "", text))
    if differing:
        raise MixedStudiesError(
            "a power law needs studies that differ in the size of their model alone; these differ "
            f"in {'; '.join(differing)}: name the studies of one family"
        )
    return notes


def _points(tables: Sequence[ErrorTable], given: Mapping[str, int]) -> pd.DataFrame:
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
                "parameters": given.get(table.workload) or _parameters(table, row),
                "paper": result.paper.text if result.paper else None,
            }
            rows += [size | {"seed": seed, "loss": loss} for seed, loss in result.values.items()]
    rows.sort(key=lambda row: (row["parameters"], variants.order(row["variant"]), row["seed"]))
    columns = [*("study", "place", "workload", "variant"), *("parameters", "paper", "seed", "loss")]
    return pd.DataFrame(rows, columns=columns)


def _parameters(table: ErrorTable, row: VariantResult) -> int:
    """Returns the number that the first of the row's trials to record it says."""
    for run in table.runs(row):
        if count := run.meta.get(PARAMETERS):
            return int(count)
    raise ValueError(
        f"{table.study.name}: no trial of {row.variant} records {PARAMETERS!r} in {META_FILE} "
        f"(trials of an older version do not); give --parameters={table.workload}=N"
    )


def _sizes(points: pd.DataFrame) -> pd.DataFrame:
    """Returns a row per variant and size. Raises MixedStudiesError where two studies have one size
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
            raise MixedStudiesError(
                f"{places} have the same size, {count:,} parameters of {variant}: name one of them"
            )
    return sizes


def _savings(
    laws: Mapping[str, PowerLaw], baseline: str, loss: float | None, pairs: pd.DataFrame
) -> pd.DataFrame:
    """Returns the savings; fits are paired whose `pairs`, points of shared seeds, are the same."""
    rows: list[dict[str, Any]] = []
    for name, law in laws.items():
        base = laws.get(baseline)
        if base is None or law is base or loss is None:
            continue
        obstacles = [each for each in (baseline, name) if not laws[each].falls]
        row = {"variant": name, "obstacle": "".join(obstacles[:1])}
        if not obstacles:
            seeds = [
                pairs.loc[pairs["variant"] == each, ["place", "workload", "seed"]].values.tolist()
                for each in (baseline, name)
            ]
            row |= vars(power_law.between(base, law, loss, seeds[0] == seeds[1] != []))
        rows.append(row)
    columns = ["variant", "obstacle", *(field.name for field in fields(Saving))]
    return pd.DataFrame(rows, columns=columns)
