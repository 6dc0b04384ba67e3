"""What `runs` prints: every trial with its state, medians over seeds, problems by name."""

import json
import math
import statistics
from typing import Any

from analysis.load import metrics, selection
from analysis.load.metrics import MissingMetricError
from analysis.load.records import Run, StudyRuns
from analysis.render import pages
from analysis.render.pages import NONE, Cell, Page, Row, Table
from attention import table as variants

# Columns of words.
WORDS = ("Trial", "Stage", "Workload", "Variant", "Status", "Metric")
# What JSON says of a run as it stands.
IDENTITY = (
    *("name", "stage", "variant", "workload", "point", "seed", "state", "reason"),
    *("steps", "step_hint", "last_step", "hyperparameters", "variant_hyperparameters"),
)
# How many trials a note that holds for several names.
NAMED = 3


def page(study: StudyRuns) -> Page:
    """Returns two tables: one line per trial, and medians over seeds where there are several."""
    missing = [problem for run in study.runs if (problem := _missing_metric(run))]
    return Page(
        title=f"{study.name}: {len(study.runs)} trials",
        tables=(_trials(study), *_medians(study)),
        notes=(
            "last, best: the validation metric at the last evaluation, and at the one that it "
            "chooses itself, first on ties.",
            *gathered(study),
        ),
        problems=(*study.problems, *missing),
    )


def _missing_metric(run: Run) -> str | None:
    try:
        selection.best_index(run)
    except MissingMetricError as error:
        return f"missing: {error}"
    return None


def best_shown(run: Run) -> tuple[str, float, int] | None:
    """Returns the name of the number shown (error for accuracy), the number at the step that
    validation chose, and that step; None where no evaluation can be chosen."""
    try:
        row = selection.best_step(run)
    except MissingMetricError:
        return None
    if row is None:
        return None
    shown = metrics.shown_for(run.metric)
    value = row[shown.column(selection.VALIDATION)]
    return shown.name, shown.shown(value), int(row["global_step"])


def last_shown(run: Run) -> float | None:
    """Returns the number shown at the last evaluation, nan where it was not measured there; None
    where there is no evaluation or no column of the metric."""
    shown, row = metrics.shown_for(run.metric), run.last_row
    value = row.get(shown.column(selection.VALIDATION)) if row else None
    return None if value is None else shown.shown(value)


def gathered(study: StudyRuns) -> tuple[str, ...]:
    """Returns the study's notes, one that holds for several trials once, with their names."""
    of_trials: dict[str, list[str]] = {}
    for run in study.runs:
        for note in run.notes:
            of_trials.setdefault(note.removeprefix(run.name), []).append(run.name)
    own = {note for run in study.runs for note in run.notes}
    rest = [note for note in study.notes if note not in own]
    return (*rest, *(_of(names, note, len(study.runs)) for note, names in of_trials.items()))


def _of(names: list[str], note: str, all_of_them: int) -> str:
    if len(names) == 1:
        return names[0] + note
    file, _, text = note.partition(": ")
    where = f" ({file.removeprefix('/')})" if file else ""
    if len(names) == all_of_them:
        return f"all {len(names)} trials{where}: {text}"
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return f"{len(names)} of {all_of_them} trials{where}: {text}: {', '.join(names[:NAMED])}{more}"


def _label(name: str) -> str:
    return metrics.get(name).label if name else name


def _trials(study: StudyRuns) -> Table:
    columns = pages.columns(
        *("Trial", "Workload", "Variant", "Point", "Seed", "Status"),
        *("Step", "of", "Metric", "Last", "Best", "at step"),
        words=WORDS,
    )
    return Table("Trials", columns, (tuple(map(_trial_cells, study.runs)),))


def _trial_cells(run: Run) -> Row:
    name, value, step = best_shown(run) or ("", math.nan, None)
    label = variants.label(run.variant)
    texts = (run.name, run.workload, label, run.point, run.seed, run.state)
    steps = (_or_dash(run.last_step), _or_dash(run.steps))
    values = (_number(last_shown(run)), _number(value))
    return (*(Cell(str(text)) for text in texts), *steps, Cell(_label(name)), *values,
            _or_dash(step))  # fmt: skip


def _number(value: float | None) -> Cell:
    """A diverging loss would take 40 digits and the width of the table."""
    large = value is not None and 1e6 <= abs(value) < math.inf
    return Cell(f"{value:.4g}") if large else pages.number(value, 5)


def _or_dash(value: int | None) -> Cell:
    return NONE if value is None else Cell(str(value))


Key = tuple[str, str, str, int]


def medians(study: StudyRuns) -> dict[Key, tuple[str, list[float]]]:
    """Returns (stage, variant, workload, point) to the metric's name and the numbers of its
    seeds' trials that are done."""
    found: dict[Key, tuple[str, list[float]]] = {}
    for run in study.runs:
        best = best_shown(run)
        if best is not None and run.state == "done":
            key = (run.stage, run.variant, run.workload, run.point)
            found.setdefault(key, (best[0], []))[1].append(best[1])
    return found


def _medians(study: StudyRuns) -> list[Table]:
    records = _median_records(study)
    if not any(record["n"] > 1 for record in records):
        return []
    names = ("Stage", "Variant", "Workload", "Point", "Metric", "n", "Median", "SD")
    rows = tuple(
        (
            Cell(record["stage"]),
            Cell(variants.label(record["variant"])),
            Cell(record["workload"]),
            Cell(str(record["point"])),
            Cell(_label(record["metric"])),
            Cell(str(record["n"])),
            pages.number(record["median"], 5),
            pages.number(record["sd"], 5),
        )
        for record in records
    )
    return [Table("Best validation metric over seeds", pages.columns(*names, words=WORDS), (rows,))]


def _median_records(study: StudyRuns) -> list[dict[str, Any]]:
    """Returns what the table and JSON say of the seeds of each stage, variant and point."""
    return [
        dict(zip(("stage", "variant", "workload", "point"), key, strict=True))
        | {
            "metric": name,
            "n": len(values),
            "median": statistics.median(values),
            "sd": statistics.stdev(values) if len(values) > 1 else None,
        }
        for key, (name, values) in sorted(medians(study).items())
    ]


def to_json(study: StudyRuns) -> str:
    """Returns the study and its trials as JSON (no curves: they are in the CSV files)."""
    record = {
        "name": study.name,
        "directory": str(study.directory),
        "published": study.published,
        "shares_seeds": study.shares_seeds,
        "problems": list(page(study).problems),
        "notes": list(study.notes),
        "runs": [_run_record(run) for run in study.runs],
        "medians": _median_records(study),
    }
    return json.dumps(record, indent=2, allow_nan=False) + "\n"


def _run_record(run: Run) -> dict[str, Any]:
    name, value, step = best_shown(run) or (None, None, None)
    last = last_shown(run)
    return {
        **{key: getattr(run, key) for key in IDENTITY},
        "metric": name,
        "targets": run.targets,
        "last_validation": last if last is not None and math.isfinite(last) else None,
        "best_validation": value,
        "best_step": step,
        "problems": list(run.problems),
        "notes": list(run.notes),
    }
