"""Reads results files: anybody's results as a study, a row per run or per step.

A file is CSV with a header, or JSON lines. The columns are the fields of `Row`; an empty cell and
null state nothing. A value that is empty, nan or inf is that of a run which gave no number. Beside
the file, `study.json` may say what was planned, by the keys of `records.RESULTS_PLAN`.
"""

import collections
import csv
import dataclasses
import io
import json
import math
import pathlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Annotated, Any, Literal

import msgspec
import numpy as np

from analysis.load import metrics, records, wandb
from analysis.load.records import NotAStudyError, Plan, Positive, Problem, Run, StudyRuns, Whole
from attention.common import files
from sweeps.records import layout

NAMES = ("results.csv", "results.jsonl")
STAGE = "results"
# Metrics that have a meaning of their own here (1 - accuracy, exp(loss)), to their columns.
RENAMED = {"error": "error_rate", "perplexity": "ppl"}
# A run of several steps, of which the last lies before this share of its budget, is unfinished.
# Others count steps from 0, or evaluate shortly before the end.
LEAST = 0.95
# The key of a point's hyperparameters that is its number.
NUMBER = "point"
# Folders that are called by the size of their model.
SIZE = re.compile(r"\d+(_\d+)?[mb]")

# Names are parts of paths where charts are written.
Name = Annotated[str, msgspec.Meta(pattern=r"^\w[^/\x00-\x1f]*$")]
Amount = Annotated[float, msgspec.Meta(gt=0, le=1e300)]


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One number of one run. `step` is None for the end of the run, `point` its hyperparameters,
    `budget_steps` the steps that it was to take.

    `flops` (operations) and `seconds` are those of the whole training, `parameters` a number.
    `commit` trained the run and `design_commit` planned it; `command` repeats it, and `url`
    documents it.
    """

    workload: Name
    variant: Name
    seed: Whole
    metric: Name
    value: float = math.nan
    split: Literal["train", "validation", "test"] = "validation"
    step: Whole | None = None
    point: dict[str, Any] = {}
    baseline: str | None = None
    lower_is_better: bool | None = None
    parameters: Positive | None = None
    budget_steps: Positive | None = None
    flops: Amount | None = None
    seconds: Amount | None = None
    commit: str | None = None
    design_commit: str | None = None
    command: str | None = None
    url: str | None = None


COLUMNS = Row.__struct_fields__
REQUIRED = COLUMNS[: COLUMNS.index("split")]
# What is known of a run as a whole: each of its rows may say it, and the last one counts.
OF_RUNS = COLUMNS[COLUMNS.index("parameters") :]


def find(path: pathlib.Path) -> pathlib.Path | None:
    """Returns the results file that `path` is, or that the directory holds; None if there is none,
    and for a study of `sweeps`, whatever lies in its directory."""
    if path.is_file():
        return path if path.suffix in (".csv", ".jsonl") else None
    present = next((path / name for name in NAMES if (path / name).is_file()), None)
    is_ours = present and "format" in (records.read_json(path / layout.STUDY, "", []) or {})
    return None if is_ours else present


def read(path: pathlib.Path, whole: bool = False) -> StudyRuns:
    """Returns the study of the results file that `find` finds, also of a study's directory.

    Without a name in study.json it has that of its directory, of the file if that is not called as
    one of NAMES. Raises NotAStudyError for a file that is wrong anywhere: a study without some of
    its rows may have other verdicts.
    """
    file = find(path) or path
    problems: list[Problem] = []
    beside = records.read_json(file.with_name(layout.STUDY), "", problems) or {}
    stated = {} if "format" in beside else beside
    problems += [
        Problem("unreadable", "", layout.STUDY, f"unknown key {name!r}; left out")
        for name in stated.keys() - records.RESULTS_PLAN.keys()
    ]
    directory = file.parent if file.name in NAMES else file
    name = stated.get("name") or directory.absolute().name.removesuffix(file.suffix)
    plan = msgspec.convert(
        {key: stated[key] for key in records.RESULTS_PLAN if stated.get(key) is not None}, Plan
    )
    rows, shares_seeds = rows_of(file), stated.get("shares_seeds") is not False
    return study_of(name, directory, rows, plan, problems, shares_seeds)


def rows_of(file: pathlib.Path) -> list[Row]:
    """Returns the rows of a results file. Raises NotAStudyError, with the number of the line, if a
    line is wrong, and if there is no row."""
    rows: dict[int, list[Row]] = {}
    number = 1
    try:
        for number, line in _lines(file):
            is_export = isinstance(line, dict) and wandb.NAME in line
            rows[number] = [*map(_row, wandb.rows(line, file.stem) if is_export else [line])]
    except (OSError, csv.Error, *records.NOT_JSON) as error:
        raise NotAStudyError(f"{file}, line {number}: {error}") from error
    if not rows:
        raise NotAStudyError(f"{file}: it has no row; a row has {', '.join(REQUIRED)}")
    return [row for of_line in rows.values() for row in of_line]


def _lines(file: pathlib.Path) -> Iterator[tuple[int, Any]]:
    """Yields the number of each line, and its text, or of CSV its cells by column."""
    content = file.read_bytes()
    # Spreadsheets write a byte order mark, PowerShell UTF-16.
    encoding = "utf-16" if content[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    text = content.decode(encoding)
    if file.suffix == ".jsonl":
        yield from (line for line in enumerate(text.split("\n"), 1) if line[1].strip())
        return
    reader = csv.DictReader(io.StringIO(text, newline=""), restkey="a cell without a column")
    names = [name.strip() for name in reader.fieldnames or ()]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"column {twice[0]!r} is there twice")
    reader.fieldnames = names
    yield from ((reader.line_num, record) for record in reader)


def _row(line: Any) -> Row:
    """Returns the row of a line: a JSON object, or cells by column, None for cells cut off."""
    record = files.loads(line) if isinstance(line, str) else line
    if not isinstance(record, dict) or (record is line and None in record.values()):
        raise ValueError("it is no JSON object" if record is not line else "cells are missing")
    missing = [name for name in REQUIRED if name not in record]
    unknown = [name for name in record if name not in COLUMNS]
    if missing or unknown:
        raise ValueError(
            f"columns missing: {', '.join(missing) or 'none'}; unknown: "
            f"{', '.join(unknown)[:80] or 'none'}; there are {', '.join(COLUMNS)}"
        )
    cells = {name: x.strip() if isinstance(x, str) else x for name, x in record.items()}
    stated = {name: x for name, x in cells.items() if x not in (None, "")}
    if isinstance(point := stated.get("point"), str):
        stated["point"] = files.loads(point)
    if isinstance(point := stated.get("point"), dict) and NUMBER in point:
        msgspec.convert(point[NUMBER], Whole)
    return msgspec.convert(stated, Row, strict=False)


def study_of(
    name: str,
    directory: pathlib.Path,
    rows: Sequence[Row],
    plan: Plan | None = None,
    problems: Sequence[Problem] = (),
    shares_seeds: bool = True,
    all_steps: bool = False,
) -> StudyRuns:
    """Returns the study of `rows`, at least one, that were read from `directory`, a path. With
    `all_steps` they are all evaluations, of which the last was due at the end of the budget.

    The metric of a workload is that of its first row. Points of hyperparameters have the NUMBER
    that they state, others the next ones in the order of the rows. `Run.meta` has the run's
    `command` and `url`, where stated. Raises NotAStudyError if rows state several baselines, or
    several hyperparameters for one number of a variant, if they contradict one another, or the
    metric's name, on whether lower is better, and if a workload has no validation, which chooses.
    """
    rows = [msgspec.structs.replace(x, metric=RENAMED.get(x.metric, x.metric)) for x in rows]
    plan = plan or Plan()
    points: dict[str, int] = {}
    next_point = max((x.point[NUMBER] for x in rows if NUMBER in x.point), default=-1) + 1
    settings = collections.defaultdict(list)
    first: dict[str, str] = {}
    of_runs = collections.defaultdict(list)
    directions = {}
    for row in rows:
        first.setdefault(row.workload, row.metric)
        text = json.dumps(row.point, sort_keys=True)
        point = row.point.get(NUMBER)
        if point is None:
            point = points.setdefault(text, next_point + len(points))
        settings[row.workload, row.variant, point].append(text)
        of_runs[row.workload, row.variant, point, row.seed].append(row)
    for metric in {row.metric for row in rows if row.lower_is_better is not None}:
        known = [metrics.get(metric).lower_is_better] if metric in metrics.KNOWN else []
        stated = [*known, *(row.lower_is_better for row in rows if row.metric == metric)]
        directions[metric] = _agreed(f"lower_is_better of {metric}", stated, directory)
    runs = [
        _run(place, of_run, first[place[0]], directory, all_steps)
        for place, of_run in of_runs.items()
    ]
    for (_, variant, point), texts in settings.items():
        _agreed(f"point {point} of {variant}", texts, directory)
    for workload, metric in first.items():
        if not any(f"validation/{metric}" in x.evals for x in runs if x.workload == workload):
            raise NotAStudyError(
                f"{directory}: no {metric} of {workload} on validation, which chooses steps and "
                "points; give it, or no column split"
            )
    baseline = _agreed("baseline", (row.baseline for row in rows), directory)
    plan = dataclasses.replace(
        plan,
        variants=tuple({run.variant: 0 for run in runs}),
        git_commit=next((row.design_commit for row in rows if row.design_commit), plan.git_commit),
    )
    return StudyRuns(
        name=name,
        config={"baseline": baseline} if baseline else {},
        runs=tuple(runs),
        study_problems=tuple(problems),
        directory=directory,
        stages=(STAGE,),
        planned=(STAGE,),
        plans=(plan,),
        shares_seeds=shares_seeds,
        directions=directions,
    )


def read_folders(
    root: pathlib.Path,
    workload: str,
    paths: Iterable[pathlib.Path],
    runs_of: Callable[[pathlib.Path], Iterable[list[dict[str, Any]]]],
) -> StudyRuns:
    """Returns the study of other trainers' files `paths` in the directory `root`.

    A folder is a variant; a folder with the name of a size, such as `130m`, belongs to the variant
    above it and to a workload of its own. `runs_of` gives the runs of a file, and of each the rows,
    other columns to their values. No file states a seed: the runs of a variant are numbered, in the
    order of `paths`, and are no pairs. A file without an evaluation is a problem of the study, and
    so is one for which `runs_of` raises ValueError. Raises NotAStudyError if no file is left.
    """
    rows: list[Row] = []
    problems = []
    seeds: collections.Counter[tuple[str, str]] = collections.Counter()
    for path in paths:
        *above, folder = (root.resolve().name, *path.parent.relative_to(root).parts)
        size = f"_{folder}" if above and SIZE.fullmatch(folder) else ""
        variant = "-".join((above[1:] or above) if size else (*above[1:], folder))
        place = {"workload": workload + size, "variant": variant}
        try:
            runs = [*runs_of(path)]
            if not any(runs):
                raise ValueError("it holds no evaluation")
            for run in runs:
                numbered = {**place, "seed": seeds[variant, size]}
                rows += [msgspec.convert({**row, **numbered}, Row) for row in run]
                seeds[variant, size] += 1
        except (OSError, *records.NOT_JSON) as error:
            problems.append(Problem("unreadable", variant, path.name, str(error)))
    if not rows:
        raise NotAStudyError(f"{root}: nothing to read; {'; '.join(map(str, problems))}")
    name = root.resolve().name
    return study_of(name, root, rows, problems=problems, shares_seeds=False, all_steps=True)


def _agreed(what: str, stated: Iterable[Any], directory: pathlib.Path) -> Any:
    """Returns the value that is stated, None if none is. Raises NotAStudyError for several."""
    values = [*dict.fromkeys(value for value in stated if value is not None)]
    if len(values) > 1:
        texts = ", ".join(map(str, values))
        raise NotAStudyError(f"{directory}: {what} is {texts}: give one of them")
    return next(iter(values), None)


def _run(
    place: tuple[str, str, int, int],
    rows: Sequence[Row],
    metric: str,
    directory: pathlib.Path,
    all_steps: bool,
) -> Run:
    """Returns the run of `rows`, whose state the last validation of `metric` shows."""
    workload, variant, point, seed = place
    name = f"{workload}/{variant}/point_{point}/seed_{seed}"
    stated = {key: value for row in rows for key in OF_RUNS if (value := getattr(row, key))}
    measured = {row.step for row in rows if row.step is not None}
    budget = stated.get("budget_steps") or max(measured, default=None)
    # One step alone may be the one that was chosen.
    counted = measured if all_steps or len(measured) > 1 else ()
    end = max(counted, default=budget or 1)
    problems, state, reason = [], "done", None
    columns: dict[str, dict[int, float]] = collections.defaultdict(dict)
    for row in rows:
        column, step = f"{row.split}/{row.metric}", end if row.step is None else row.step
        if step in columns[column]:
            text = f"{column} at step {step:,} is there twice; the first counts"
            problems.append(Problem("duplicated", name, "", text))
        columns[column].setdefault(step, row.value)
    chosen = columns.get(f"validation/{metric}", {})
    if chosen and not math.isfinite(last := chosen[max(chosen)]):
        state, reason = "diverged", f"its last validation/{metric} is {last}"
        problems.append(Problem(state, name, "", reason))
    elif budget and end < (1 if all_steps else LEAST) * budget:  # a curve
        state, reason = "running", f"it ended at step {end:,} of {budget:,}"
        problems.append(Problem("unfinished", name, "", reason))
    # A split that the run did not measure, rather than lost.
    for split in set(layout.SPLITS).difference(row.split for row in rows):
        columns[f"{split}/num_examples"] = {end: 0.0}
    columns[records.TIME] = {end: stated.get("seconds", math.nan)}
    steps = sorted(set().union(*columns.values()))
    meta = {
        records.FLOPS: stated.get("flops", 0) / max(1, end),
        records.COMMIT: stated.get("commit"),
    }
    return Run(
        *(workload, variant, STAGE, point, seed, directory, name, state, reason),
        steps=budget,
        metric=metric,
        hyperparameters={key: x for key, x in rows[0].point.items() if key != NUMBER},
        evals={records.STEP: np.array(steps, np.int64)}
        | {
            column: np.array([values.get(step, math.nan) for step in steps])
            for column, values in columns.items()
        },
        problems=tuple(dict.fromkeys(problems)),
        planned_by=stated.get("design_commit", ""),
        recorded=stated | meta,
        counts_last=True,
    )
