"""Reads what init2winit's trainer wrote: `<experiment_dir>/<worker_id>/meta_data.json` and beside.

`python -m workloads init2winit` has it record variant, model, data set and budget there.
measurements.csv mixes rows of training with rows of evaluations; columns get our names (`valid/` is
`validation/`, an error rate becomes the accuracy, `ce_loss` the loss, `train_cost` training's).
hparams.json has the seed, `rng_seed`; what else differs in it are hyperparameter points, which are
numbered in the order of the trials.
"""

import dataclasses
import json
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from analysis.load import cross_checks, metrics, published
from analysis.load.files import csv_reader, json_records, measurements
from analysis.load.files.json_records import VISIBLE
from analysis.load.files.measurements import ATTEMPT, STEP, Columns, Measurements
from analysis.load.records import Run, StudyRuns
from sweeps.records import init2winit_columns as theirs
from sweeps.records import layout

META = theirs.META
PATTERN = f"<worker_id>/{META}"
STAGE = "init2winit"
# How init2winit's `status` reads; `incomplete` stands from its start to its end.
STATES = {"done": "done", "diverged": "diverged", "incomplete": "running"}
SEED = "rng_seed"


class Trial(NamedTuple):
    """A trial's directory, its name below the root, and its meta_data.json."""

    path: pathlib.Path
    name: str
    meta: dict[str, Any]


def trials_in(root: pathlib.Path) -> list[Trial]:
    """Returns the trials in `root`, an experiment's directory or one that holds several; none
    where there are none."""
    found = []
    places = f"{VISIBLE}/{META}", f"{VISIBLE}/{VISIBLE}/{META}"
    for path in sorted((path for place in places for path in root.glob(place)), key=_in_order):
        if meta := _meta(path):
            found.append(Trial(path.parent, path.parent.relative_to(root).as_posix(), meta))
    return found


def _in_order(path: pathlib.Path) -> tuple[str, int, str]:
    number = path.parent.name
    return str(path.parent.parent), len(number), number


def _meta(path: pathlib.Path) -> dict[str, Any] | None:
    """AlgoPerf's files have another name and no worker."""
    try:
        record = layout.read_json(path)
    except (OSError, ValueError):
        return None
    is_one = isinstance(record, dict) and "worker_id" in record and "status" in record
    return record if is_one else None


def read_logs(root: pathlib.Path, whole: bool = False) -> StudyRuns | None:
    """Returns the trials in `root` as a study, or None where there are none.

    A trial that init2winit calls incomplete is `running`: it may have been killed. Evaluations are
    read now, `whole` changes nothing.
    """
    del whole
    trials = trials_in(root) if root.is_dir() else []
    if not trials:
        return None
    problems: list[str] = []
    every = [
        json_records.read(one.path / layout.HPARAMS, f"{one.name}/{layout.HPARAMS}", problems) or {}
        for one in trials
    ]
    flat = [dict(_flat(hparams)) for hparams in every]
    points = _points(flat)
    runs = [_run(*each) for each in zip(trials, flat, points, strict=True)]
    seeds = [hparams.get(SEED, -1) for hparams in flat]
    runs = list(cross_checks.with_absent_columns(_named(runs)))
    problems += cross_checks.duplicates(runs)
    return StudyRuns(
        name=root.resolve().name,
        config={},
        runs=tuple(runs),
        problems=(*problems, *(problem for run in runs for problem in run.problems)),
        directory=root,
        notes=tuple(note for run in runs for note in run.notes),
        stages=(STAGE,),
        planned=(STAGE,),
        shares_seeds=all(isinstance(seed, int) and seed >= 0 for seed in seeds),
    )


def _flat(record: Mapping[str, Any], before: str = "") -> Iterable[tuple[str, Any]]:
    for name, value in record.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value


def _points(flat: Sequence[Mapping[str, Any]]) -> list[tuple[int, dict[str, Any]]]:
    """Returns each trial's point: its number, and the hyperparameters in which trials differ."""
    names = sorted({name for hparams in flat for name in hparams} - {SEED})
    values = [{name: json.dumps(each.get(name)) for name in names} for each in flat]
    differing = [name for name in names if len({each[name] for each in values}) > 1]
    numbers: dict[tuple[str, ...], int] = {}
    found = []
    for each, text in zip(flat, values, strict=True):
        key = tuple(text[name] for name in differing)
        own = {name: each[name] for name in differing if name in each}
        found.append((numbers.setdefault(key, len(numbers)), own))
    return found


def _run(trial: Trial, hparams: Mapping[str, Any], point: tuple[int, dict[str, Any]]) -> Run:
    name, problems, notes = trial.name, list[str](), list[str]()
    meta = json_records.usable(trial.meta, json_records.TRAINER_META, f"{name}/{META}: ", problems)
    recorded = published.recorded_by(name, meta, {})
    problems += recorded.problems
    evals, damage = _evaluations(trial.path)
    problems += [f"{text} ({name})" for text in damage]
    workload = f"init2winit:{meta.get('dataset', 'unknown')}_{meta.get('model', 'model')}"
    columns = evals.columns if evals else {}
    run = Run(
        workload=workload,
        variant=recorded.variant or _unrecorded(trial, notes),
        stage=STAGE,
        point=point[0],
        seed=_seed(hparams, meta),
        path=trial.path,
        name=name,
        state=STATES.get(str(meta["status"]), "failed"),
        steps=meta.get("num_train_steps"),
        metric=metrics.target(columns, None, workload),
        hyperparameters=point[1],
        variant_hyperparameters=recorded.hyperparameters,
        evals=columns,
        losses=lambda: losses(trial.path),
        notes=tuple(notes),
    )
    problems += _state_problems(run)
    if evals is not None and run.state != "diverged":
        wrong = measurements.non_finite(evals, empty_is_nan=True)
        problems += [f"non-finite: {name}: {where}" for where in wrong]
    return dataclasses.replace(run, problems=tuple(problems))


def _unrecorded(trial: Trial, notes: list[str]) -> str:
    notes.append(
        f"{trial.name}: {META} records no attention, as init2winit's own runs do not; its row is "
        "that of the model's own"
    )
    return "its own"


def _seed(hparams: Mapping[str, Any], meta: Mapping[str, Any]) -> int:
    """A seed that was drawn is recorded nowhere: the worker's number stands for it."""
    seed = hparams.get(SEED)
    known = isinstance(seed, int) and seed >= 0
    return seed if known else int(meta["worker_id"])  # type: ignore[return-value]


def _state_problems(run: Run) -> Iterable[str]:
    reached = "nothing was evaluated" if run.last_step is None else f"evaluated at {run.last_step}"
    of = f" of {run.steps} steps" if run.steps else ""
    if run.state == "diverged":
        yield f"diverged: {run.name}: {META} says so; last {reached}{of}"
    elif run.state == "running":
        yield (
            f"unfinished: {run.name}: {META} says incomplete, so it runs or was killed; last "
            f"{reached}{of}"
        )
    elif run.state == "failed":
        yield f"failed: {run.name}: {META} has a status that init2winit does not write"
    elif run.last_step is None:
        yield f"missing: {run.name}: done, no evaluation in {layout.MEASUREMENTS}"
    elif run.steps and run.last_step < run.steps:
        yield f"truncated: {run.name}: done, but last {reached}{of}; it stopped early"


def _evaluations(path: pathlib.Path) -> tuple[Measurements | None, list[str]]:
    """Returns the rows that evaluate, with our columns, and what is damaged."""
    try:
        read = csv_reader.read(path / layout.MEASUREMENTS)
    except FileNotFoundError:
        return None, []
    except OSError as error:
        return None, [f"unreadable: {layout.MEASUREMENTS}: {error}"]
    if STEP not in read.columns:
        return None, list(read.problems)
    rows = [name for name in read.columns if theirs.is_of_a_split(name)]
    found = np.zeros(len(read.columns[STEP]), dtype=bool)
    for name in rows:
        found |= ~read.empty[name] if name in read.empty else True
    columns = {name: values[found] for name, values in read.columns.items()}
    named = {
        theirs.our_name(name): theirs.our_value(name, columns[name])
        for name in (*rows, STEP, ATTEMPT)
        if name in columns
    }
    named |= {
        ours: np.cumsum(columns[name])  # unknown from the first time on that is not recorded
        for name, ours in theirs.TIMES.items()
        if name in columns
    }
    empty = {theirs.our_name(name): read.empty[name][found] for name in rows if name in read.empty}
    empty = {name: cells for name, cells in empty.items() if cells.any()}
    return Measurements(named, empty), list(read.problems)


def losses(path: pathlib.Path) -> Columns:
    """Returns the rows of training of a trial's measurements.csv, with our columns: `loss` is the
    mean cost since the last evaluation."""
    try:
        read = csv_reader.read(path / layout.MEASUREMENTS)
    except FileNotFoundError:
        return {}
    return {
        theirs.LOGGED.get(name, name): values
        for name, values in read.columns.items()
        if "/" not in name
    }


def _named(runs: Sequence[Run]) -> list[Run]:
    """Returns the runs; those of one variant with several temperatures have these in its name."""
    words: dict[tuple[str, str], set[str]] = {}
    for run in runs:
        words.setdefault((run.workload, run.variant), set()).add(published.in_words(run))
    return [
        dataclasses.replace(run, variant=f"{run.variant} ({published.in_words(run)})")
        if len(words[run.workload, run.variant]) > 1 and published.in_words(run)
        else run
        for run in runs
    ]
