"""A study as a results file, which `analysis.load.results` reads as the same study."""

import dataclasses
import json
import math
import pathlib
from collections.abc import Iterator
from typing import Any

import pandas as pd

from analysis.compare import item_intervals
from analysis.compare.error_table import ErrorTable
from analysis.load import results, selection
from analysis.load.records import PARAMETERS, RESULTS_PLAN, STEP, Plan, read_json
from analysis.views import ledger
from sweeps.records import answers, layout


def write(table: ErrorTable, folder: pathlib.Path, command: str | None = None) -> pathlib.Path:
    """Writes results.csv and study.json into `folder`, each whole or not at all, and returns the
    former's path: the trials of the table's stage that have ended, at every point; and the answers
    that the table's runs kept, beside them. `command` repeats the study. Raises ValueError for a
    study that is unfinished, which the file could not say of every variant, and for a folder that
    holds a study of `sweeps`."""
    if table.unfinished:
        raise ValueError(f"{table.study.name} is unfinished; write it when all trials have ended")
    if "format" in (read_json(folder / layout.STUDY, "", []) or {}):
        raise ValueError(f"{folder} is the directory of a study; give another one")
    rows = pd.DataFrame(_rows(table, command), columns=list(results.COLUMNS), dtype=object)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / results.NAMES[0]
    layout.write_atomically(
        path, rows.where(rows.notna(), None).to_csv(index=False, lineterminator="\n")
    )
    if kept := item_intervals.kept(table):
        answers.write(folder, kept)
    study = table.study
    start = dataclasses.asdict(next(iter(study.plans), Plan()))
    stated = start | {"name": study.name, "hypothesis": ledger.hypothesis(study.plans)}
    planned = {key: stated[key] for key in RESULTS_PLAN if stated.get(key)}
    layout.write_json(folder / layout.STUDY, planned | {"shares_seeds": study.shares_seeds})
    return path


def _rows(table: ErrorTable, command: str | None) -> Iterator[dict[str, Any]]:
    """Yields a row per trial and split, by column; of a lost trial one without a value."""
    metric, runs = table.chosen_by, table.study.stage(table.stage)
    is_numbered = any(run.point for run in runs)
    for run in runs:
        if not run.has_ended:
            continue
        lost = {metric.column(selection.VALIDATION): math.nan}
        counted = (selection.best_step(run, metric) if run.is_finished else None) or lost
        number = {results.NUMBER: run.point} if is_numbered else {}
        point = number | run.hyperparameters | run.variant_hyperparameters
        row = {
            "workload": table.workload,
            "variant": run.variant,
            "seed": run.seed,
            "metric": metric.source,
            "step": counted.get(STEP),
            "point": json.dumps(point),
            "baseline": table.baseline,
            "lower_is_better": metric.mode == "min",
            "parameters": run.meta.get(PARAMETERS),
            "budget_steps": run.last_step if run.is_finished else run.steps,
            "flops": run.trained_flops,
            "seconds": run.trained_seconds or None,
            "commit": ", ".join(run.commits),
            "design_commit": next(
                (x.git_commit for x in table.study.plans if x.git_commit), run.planned_by
            ),
            "command": command or run.meta.get("command"),
            "url": run.meta.get("url"),
        }
        for split in layout.SPLITS:
            if (column := metric.column(split)) in counted:
                yield row | {"split": split, "value": counted[column]}
