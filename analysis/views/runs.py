"""The trials of a study with their states, medians over seeds, and problems: the command `runs`."""

import dataclasses
import itertools
import json
import math
from collections.abc import Iterable, Iterator
from typing import Any

import pandas as pd

from analysis.load import metrics, selection
from analysis.load.records import Problem, Run, StudyRuns
from analysis.render import pages
from attention import table as variants

# What JSON has of a run as it is.
ATTRIBUTES = (
    *("name", "stage", "variant", "workload", "point", "seed", "state", "reason"),
    *("steps", "step_hint", "last_step", "hyperparameters", "variant_hyperparameters", "targets"),
)
# The columns of `trials`.
COLUMNS = (
    *ATTRIBUTES,
    *("metric", "last_validation", "best_validation", "best_step", "problems", "notes"),
)
# How many trials a note that holds for several names.
NAMED = 3


def trials(study: StudyRuns) -> pd.DataFrame:
    """Returns one row per trial: ATTRIBUTES, the metric's name, the validation metric as shown at
    the last evaluation (nan if it was not measured) and at the best one with its step, the
    trial's problems and notes. Undefined is None."""
    return pd.DataFrame([_trial(run) for run in study.runs], columns=list(COLUMNS), dtype=object)


def _trial(run: Run) -> dict[str, Any]:
    shown, problems = metrics.shown_for(metrics.get(run.metric)), run.problems
    column, best = shown.column(selection.VALIDATION), selection.best_step(run, shown)
    last = {} if run.last_step is None else run.row(-1)
    if run.evals and column not in run.evals:
        text = shown.missing(run, selection.VALIDATION)
        problems = (*problems, Problem("missing", "", "", text))
    return {
        **{name: getattr(run, name) for name in ATTRIBUTES},
        "metric": shown.name if best else None,
        "last_validation": shown.shown(last[column]) if column in last else None,
        "best_validation": shown.shown(best[column]) if best else None,
        "best_step": int(best["global_step"]) if best else None,
        "problems": problems,
        "notes": run.notes,
    }


def medians(listed: pd.DataFrame) -> pd.DataFrame:
    """Returns one row per stage, variant, workload and point of `trials`: n, median and sd (n - 1,
    nan of a single one) of the best validation metric over the seeds that are done."""
    done = listed[(listed["state"] == "done") & listed["metric"].notna()]
    done = done.astype({"best_validation": float})
    best = done.groupby(["stage", "variant", "workload", "point", "metric"])["best_validation"]
    return best.agg(n="size", median="median", sd="std").reset_index()


def page(study: StudyRuns) -> pages.Page:
    """Returns two tables: one line per trial, and medians over seeds where there are several."""
    listed = trials(study)
    over_seeds = medians(listed)
    frame = pd.DataFrame(
        {
            "Trial": listed["name"],
            "Workload": listed["workload"],
            "Variant": listed["variant"].map(variants.label),
            "Point": listed["point"],
            "Seed": listed["seed"],
            "Status": listed["state"],
            "Step": listed["last_step"],
            "of": listed["steps"],
            "Metric": listed["metric"].map(_label),
            "Last": listed["last_validation"],
            "Best": listed["best_validation"],
            "at step": listed["best_step"],
        }
    )
    whole = dict.fromkeys(("Point", "Seed", "Step", "of", "at step"), "")
    tables = [pages.Table("Trials", frame, {**whole, "Last": _number, "Best": _number})]
    if over_seeds["n"].max() > 1:
        frame = over_seeds.assign(
            variant=over_seeds["variant"].map(variants.label),
            metric=over_seeds["metric"].map(_label),
        )
        frame.columns = ["Stage", "Variant", "Workload", "Point", "Metric", "n", "Median", "SD"]
        tables.append(
            pages.Table("Best validation metric over seeds", frame, {"Median": ".5f", "SD": ".5f"})
        )
    return pages.Page(
        title=f"{study.name}: {len(study.runs)} trials",
        tables=tuple(table for table in tables if len(table.frame)),
        notes=(
            "Last, best: the validation metric at the last evaluation, and at its best one, the "
            "first on ties.",
            *gathered(study.notes, len(study.runs)),
        ),
        problems=_problems(study, listed),
    )


def _problems(study: StudyRuns, listed: pd.DataFrame) -> tuple[Problem, ...]:
    of_trials = itertools.chain.from_iterable(listed["problems"])
    return (*study.study_problems, *of_trials)


def gathered(notes: Iterable[Problem], count: int) -> Iterator[str]:
    """Yields notes as printed, one that holds for several of `count` trials once, with their
    names."""
    of_trials: dict[tuple[str, str], list[str]] = {}
    for note in notes:
        of_trials.setdefault((note.file, note.text), []).append(note.trial)
    for (file, text), names in of_trials.items():
        if len(names) == 1:
            yield str(Problem("note", names[0], file, text))
        else:
            more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
            of = f"{len(names)} of {count} trials: {', '.join(names[:NAMED])}{more}"
            yield f"{Problem('note', '', file, text)} ({of})"


def _label(name: str | None) -> str | None:
    return metrics.get(name).label if name else None


def _number(value: float) -> str:
    """A diverging loss would take 40 digits and the width of the table."""
    return f"{value:.4g}" if 1e6 <= abs(value) < math.inf else pages.decimals(value, 5)


def to_json(study: StudyRuns) -> str:
    """Returns the study, its trials and the medians over seeds as JSON; numbers that are not finite
    are null. Curves are in the CSV files."""
    listed = trials(study)
    record = {
        "name": study.name,
        "directory": str(study.directory),
        "published": study.published,
        "shares_seeds": study.shares_seeds,
        "problems": _problems(study, listed),
        "notes": study.notes,
        "runs": _finite(listed).to_dict("records"),
        "medians": _finite(medians(listed)).to_dict("records"),
    }
    return json.dumps(record, indent=2, allow_nan=False, default=dataclasses.asdict) + "\n"


def _finite(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.astype(object).replace([math.nan, math.inf, -math.inf], None)
