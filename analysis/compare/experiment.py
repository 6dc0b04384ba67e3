"""Which studies are of one experiment: equal in every setting that their results depend on.

A comparison over several studies varies one setting and leaves it aside: speed-ups the steps, laws
of model size the workload. All other settings of `CONDITIONS` must be equal. Logs of other trainers
state few of them.
"""

import collections
import dataclasses
import json
from collections.abc import Sequence

import pandas as pd

from analysis.compare.error_table import ErrorTable
from analysis.load.records import Plan, Problem, StudyRuns, flattened
from sweeps.study import keys, selection

CONDITIONS = {name: key.default for name, key in keys.OWN.items() if key.is_condition}
# How long trials are. With batch_size, 0 stands for the workload's own number.
LENGTHS = ("steps", "step_hint", "eval_every")
SPLIT, DATA = "deciding split", "data"
# How a study's hyperparameters are chosen.
TUNING = ["protocol", "tuning_variant", "space"]


class MixedStudiesError(ValueError):
    """Studies of different experiments, or one of them twice, were given as one experiment."""


def settings(tables: Sequence[ErrorTable]) -> pd.DataFrame:
    """Returns the settings as texts: a row per table, columns `study`, SPLIT, DATA (digests of what
    was trained on) and CONDITIONS; nan if neither the study nor its trials state one. A study with
    the point that another one of the tables selected is tuned as that one is."""
    rows = []
    for table in tables:
        config = flattened(table.study.config)
        # An older study.json lacks keys that were added later: its trials had their defaults.
        row = {**CONDITIONS, **config} if "name" in config else config
        trials = table.study.stage(table.stage)
        for name in (*LENGTHS, "batch_size"):
            of_trials = {f"{count:,}" for run in trials if (count := getattr(run, name, None))}
            row[name] = row.get(name) or ", ".join(sorted(of_trials)) or None
        row |= {"workload": table.workload, "baseline": table.baseline, SPLIT: table.decisive}
        row[DATA] = ", ".join(sorted({run.data_digest[:12] for run in trials} - {""})) or None
        texts = {
            name: f"{value:,}" if type(value) is int else str(value) or "''"
            for name, value in row.items()
            if value is not None
        }
        rows.append({**texts, "study": table.study.name})
    stated = pd.DataFrame(rows, columns=["study", SPLIT, DATA, *CONDITIONS], dtype=object)
    for number, space in stated["space"].dropna().items():
        source = stated[selection.SELECTED + stated["study"] == space]
        if len(source):
            stated.loc[number, TUNING] = source.iloc[0][TUNING]
    return stated


def joined(tables: Sequence[ErrorTable], name: str) -> StudyRuns:
    """Returns the stages of several studies as the study `name`: parts of one study, whose seeds
    were trained apart, for instance on two machines. Its plan has the seeds of all of them.

    Raises MixedStudiesError, which names what differs: a setting, the metric, the hypothesis,
    looks, margin, a variant's hyperparameters at a point, or that one part lacks; and for seeds
    that two parts have. Raises ValueError for an unfinished part.
    """
    stated = settings(tables)
    starts = [next(iter(table.study.plans), Plan()) for table in tables]
    for row, (table, start) in enumerate(zip(tables, starts, strict=True)):
        if table.unfinished:
            raise ValueError(f"{table.study.name} is unfinished; all parts must have ended")
        stated_plan = {key: str(getattr(start, key)) for key in ("hypothesis", "looks", "margin")}
        points = {
            f"{run.variant} at point {run.point}": json.dumps(
                [run.hyperparameters, run.variant_hyperparameters]
            )
            for run in table.study.stage(table.stage)
        }
        known = {"stage": table.stage, "metric": table.chosen_by.name} | stated_plan | points
        stated.loc[row, [*known]] = [*known.values()]
    trained = stated.columns.str.contains(" at point ")
    stated.loc[:, trained] = stated.loc[:, trained].fillna("not trained")
    check(stated, "parts of one study differ in their seeds alone")
    parts = [table.study.stage(table.stage) for table in tables]
    of_parts = collections.Counter(seed for part in parts for seed in {run.seed for run in part})
    if shared := [str(seed) for seed, count in of_parts.items() if count > 1]:
        raise MixedStudiesError(f"several parts have seeds {', '.join(shared)}; each has its own")
    plan = dataclasses.replace(
        starts[0],
        date=min((start.date for start in starts if start.date), default=None),
        git_commit=None,
        seeds=sum(start.seeds for start in starts) if all(start.seeds for start in starts) else 0,
    )
    runs = tuple(run for part in parts for run in part)
    return dataclasses.replace(tables[0].study, name=name, runs=runs, plans=(plan,))


def withheld(tables: Sequence[ErrorTable], variant: str) -> str:
    """Returns why no comparison of a variant over several studies is a result: the studies, each
    with `ErrorTable.withheld`; empty if nothing forbids one."""
    reasons = {table.study.name: table.withheld(variant) for table in tables}
    return "; ".join(f"{study}: {reason}" for study, reason in reasons.items() if reason)


def check(stated: pd.DataFrame, rule: str) -> list[Problem]:
    """Returns a note on each study that does not state settings which others state.

    `stated` is what `settings` returns, without the columns that may differ. Raises
    MixedStudiesError, which names the `rule`, the settings that differ, their values and studies.
    """
    differing = []
    for name in stated.columns.drop("study"):
        studies = stated.groupby(name, sort=False)["study"].agg(", ".join)
        if len(studies) > 1:
            values = "; ".join(f"{value}: {names}" for value, names in studies.items())
            differing.append(f"{name} ({values})")
    if differing:
        raise MixedStudiesError(f"{rule}; these differ in {'; '.join(differing)}")
    known = stated.loc[:, stated.notna().any()]
    silent = {row["study"]: ", ".join(row.index[row.isna()]) for _, row in known.iterrows()}
    return [
        Problem("note", "", "", f"{study}: no {names} is stated; taken as the others'")
        for study, names in silent.items()
        if names
    ]
