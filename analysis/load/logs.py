"""Reads logs that have no study.json: AlgoPerf's, init2winit's, MaxText's with a variant.

AlgoPerf writes `study_<k>/<workload>_<framework>/trial_<n>/`. The submission's folder is the
variant's name, the study's number the seed, the trial's number the hyperparameter point. Each trial
drew its own seed (`rng_seed` of flags_0.json), so that trials of one study are no pairs.

init2winit writes `<experiment_dir>/<worker_id>/`. measurements.csv mixes rows of training with rows
of evaluations, under other names. hparams.json has the seed; what else
differs in it are hyperparameter points, numbered in the order of the trials.

The record of a trial says which variant it trained, whatever its folder is called: `python -m
workloads algoperf` has AlgoPerf write `attention` and `attention_tau` into flags_0.json (what was
asked for) and `workload.attention…` into meta_data_0.json (what trained). Models of init2winit with
a variant have both in hparams.json; earlier versions wrote them into meta_data.json. Logs of
AlgoPerf itself have neither.
"""

import collections
import dataclasses
import json
import math
import os
import pathlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from analysis.load import maxtext, metrics, records, selection, trials
from analysis.load.measurements import ATTEMPT, STEP, Measurements, only_evaluations
from analysis.load.records import (
    FLAGS_FILE,
    INIT2WINIT_FILE,
    MAXTEXT_FILE,
    META_FILE,
    VISIBLE,
    Problem,
    Run,
    StudyRuns,
)
from attention import table as variants
from sweeps.records import layout

# Where trials lie, for messages, and a pattern of AlgoPerf's.
PATTERNS = ("AlgoPerf's study_<seed>/<workload>_<framework>/trial_<n>",
            f"init2winit's <worker_id>/{INIT2WINIT_FILE}",
            f"MaxText's <run>/{MAXTEXT_FILE}")  # fmt: skip
ALGOPERF_TRIALS = "study_*/*_*/trial_*"
FRAMEWORKS = ("jax", "pytorch")
PLACE = re.compile(rf"(?:^|/)study_(\d+)/([^/]+)_(?:{'|'.join(FRAMEWORKS)})/trial_(\d+)$")
VARIANT = re.compile(r"\w+(\+\w+)*", re.ASCII)
# AlgoPerf's targets to their keys in meta_data_0.json.
TARGETS = {
    "metric": "target_metric_name",
    "validation": "validation_target_value",
    "test": "test_target_value",
}
# AlgoPerf ends a run that has reached its targets, has used its time, or has taken its steps; a log
# does not say which. Of 2,280 runs in the logs of versions 0.5 and 0.6 that missed their target,
# none ended between 83 and 93 % of their step hint or of their time, whichever is more; 414 ended
# before, many of them at step 1.
LEAST = 0.9
# init2winit's `status`, `incomplete` from its start to its end: our state, and the kind of problem.
STATES = {"done": ("done", None), "diverged": ("diverged", "diverged"),
          "incomplete": ("running", "unfinished")}  # fmt: skip
SEED = "rng_seed"
# Columns of init2winit's measurements.csv and ours. Rows of training have no column of a split;
# rows of an evaluation have training's columns, too.
SPLITS = {"train": "train", "valid": "validation", "test": "test"}
ERROR_RATE = "error_rate"  # becomes an accuracy
NAMES = {ERROR_RATE: "accuracy", "ce_loss": "loss"}
# Durations since the evaluation before, in seconds, added up.
TIMES = {
    "run_time_no_eval": "accumulated_submission_time",
    "eval_time": "accumulated_eval_time",
    "run_time": "total_duration",
}


def read_logs(root: pathlib.Path, whole: bool = False) -> StudyRuns | None:
    """Returns the logs in `root` (one submission or experiment, or a directory of several) as a
    study, None if there are none. `whole` also checks every measurements.csv of AlgoPerf's;
    others are read anyway.

    Nothing says how many trials were meant to be: a trial of AlgoPerf's is missing if other
    studies of its submission have it.
    """
    problems: list[Problem] = []
    algoperf = _find_algoperf(root, problems)
    planned = algoperf or [*_find_init2winit(root), *maxtext.find(root)]
    if not planned:
        return None
    readers = {"published": _algoperf, "init2winit": _init2winit, maxtext.STAGE: _maxtext}
    read = trials.read_each(
        [(run.path, run.name) for run in planned],
        lambda index, files: readers[planned[index].stage](planned[index], files, whole),
    )
    if algoperf:
        suffixes = (
            _setting,
            lambda run: run.path.parent.name.rpartition("_")[2],  # the framework
            lambda run: _submission(run.path),
        )
        # Where no file and no table says how many steps a workload takes, its longest run counts
        # as complete.
        longest: dict[str, int] = collections.defaultdict(int)
        for run in read:
            longest[run.workload] = max(longest[run.workload], run.last_step or 0)
        runs = _name_apart([_judged(run, longest[run.workload]) for run in read], suffixes)
    else:
        runs = _name_apart(_with_points(read), (_setting,))
    stage = (runs[0].stage,)
    return StudyRuns(
        name=root.resolve().name,
        config={},
        runs=tuple(runs),
        study_problems=tuple(problems),
        directory=root,
        stages=stage,
        planned=stage,
        published=bool(algoperf),
        shares_seeds=all(SEED in run.hyperparameters for run in read),
    )


def _find_algoperf(root: pathlib.Path, problems: list[Problem]) -> list[Run]:
    """Returns the trials of the submission that `root` is, and of those in it, unread. `problems`
    gains directories that hold no trials where trials were looked for, and trials that other
    studies of a submission have on the same workload."""
    every = [
        folder
        for pattern in (f"study_*/{VISIBLE}", f"{VISIBLE}/study_*/{VISIBLE}")
        for folder in root.glob(pattern)
        # One of our studies may be called `study_1`, too; a study in a study is no submission's.
        if folder.is_dir()
        and not (folder.parent / layout.STUDY).is_file()
        and not (folder.parent.parent != root and folder.parent.parent.name.startswith("study_"))
    ]
    # What lies here takes the place of a link to it.
    every.sort(key=lambda path: (path == path.resolve(), path))
    folders = {path.resolve(): path for path in every}
    runs, others = [], []
    for path in (path for folder in folders.values() for path in folder.glob(VISIBLE)):
        match, name = PLACE.search(path.as_posix()), path.relative_to(root).as_posix()
        if match is not None and path.is_dir():
            seed, workload, point = match.groups()
            variant, numbers = _submission(path), (int(point), int(seed))
            runs.append(Run(workload, variant, "published", *numbers, path, name, "pending"))
        elif path.is_dir():
            others.append(path)
    runs.sort(key=lambda run: (run.path.parents[2], run.seed, run.path.parent, run.point))
    points = collections.defaultdict(set)
    for run in runs:
        points[run.path.parents[2], run.path.parent.name].add(run.point)
    present = {(run.path.parent, run.point) for run in runs}
    holding = {run.path.parent for run in runs}
    absent = [
        folder / f"trial_{point}"
        for folder in sorted(holding)
        for point in sorted(points[folder.parents[1], folder.name])
        if (folder, point) not in present
    ]
    for kind, paths, text in (
        (
            "left out",
            sorted({*folders.values()} - holding),
            "no trial_<n> of <workload>_jax or _pytorch",
        ),
        ("left out", sorted(x for x in others if x.parent in holding), "its name is no trial_<n>"),
        (
            "duplicated",
            sorted({*every} - {*folders.values()}),
            "a link to what is read already",
        ),
        ("missing", absent, "other studies of its submission have this trial"),
    ):
        problems += [Problem(kind, path.relative_to(root).as_posix(), "", text) for path in paths]
    return runs


def misnamed(root: pathlib.Path) -> list[Problem]:
    """Returns a problem for each folder, at most three below `root`, that holds AlgoPerf's
    trials and is not read because of its name."""
    folders = {
        workload.parent
        for depth in (1, 2, 3)
        for framework in FRAMEWORKS
        for workload in root.glob(f"{'/'.join([VISIBLE] * depth)}/*_{framework}")
        if next(workload.glob("trial_*"), None)
    }
    places = [folder.relative_to(root) for folder in sorted(folders)]
    return [
        Problem("left out", place.as_posix(), "", "AlgoPerf's name for it is study_<seed>")
        for place in places
        if not any(part.startswith("study_") for part in place.parts)
        and not any((root / part / layout.STUDY).is_file() for part in place.parents)
    ]


def _algoperf(run: Run, files: trials.TrialFiles, whole: bool) -> Run:
    """Returns the trial with its records and evaluations. Logs carry no state: a trial is `done`
    with evaluations, `failed` if it began and has none, else `pending`. `steps` is the limit that
    the run was given (`max_global_steps` of flags_0.json)."""
    evals = files.evaluations() or Measurements({})
    if whole:
        files.read(layout.MEASUREMENTS)
    flags, meta = files.json(FLAGS_FILE), files.json(META_FILE)
    files.check_data(meta)
    meta = {key.removeprefix("workload."): value for key, value in meta.items()}
    hyperparameters = files.json(layout.HPARAMS)
    # Self-tuning submissions have none.
    if not files.has(layout.HPARAMS) and flags.get("tuning_ruleset") == "external":
        files.report("missing", f"no {layout.HPARAMS}")
    state, reason = "done", None
    if not len(evals.columns.get(STEP, ())):
        began = flags or meta or files.has(layout.MEASUREMENTS)
        state, kind = ("failed", "failed") if began else ("pending", "missing")
        reason = "no complete evaluation"
        if not files.names_damage(layout.EVAL_MEASUREMENTS):
            files.report(kind, reason)
    run = dataclasses.replace(
        run,
        state=state,
        reason=reason,
        steps=flags.get("max_global_steps"),
        step_hint=meta.get("step_hint"),
        allowed_s=meta.get("max_allowed_runtime_sec"),
        targets={name: meta[key] for name, key in TARGETS.items() if meta.get(key) is not None},
        hyperparameters=hyperparameters,
        losses=files.losses,
    )
    return _measured(run, files, evals, flags, meta)


def _measured(
    run: Run,
    files: trials.TrialFiles,
    evals: Measurements,
    asked: Mapping[str, Any],
    trained: Mapping[str, Any],
) -> Run:
    """Returns `run` with its evaluations and its variant. `asked` and `trained` are the records of
    the variant that was asked for and of the one that trained."""
    variant, hyperparameters = _recorded(run, files, asked, trained)
    metric = metrics.target_metric(evals.columns, run.targets.get("metric"), run.workload)
    files.check_evaluations(evals, metric, run.state, empty_is_nan=True)
    return dataclasses.replace(
        run,
        variant=variant,
        variant_hyperparameters=hyperparameters,
        metric=metric,
        evals=evals.columns,
        problems=tuple(files.problems),
        notes=tuple(files.notes),
    )


def _recorded(
    run: Run, files: trials.TrialFiles, asked: Mapping[str, Any], trained: Mapping[str, Any]
) -> tuple[str, dict[str, Any]]:
    """Returns the canonical name of the variant that a trial's records name, its folder's where
    they name none, and the variant's own hyperparameters (`tau`)."""
    record = asked if trained.get("attention") is None else trained
    variant, tau = record.get("attention"), record.get("attention_tau")
    if variant is None:
        return run.variant, {}
    if not VARIANT.fullmatch(variant):
        text = f"its attention is {variant[:40]!r}, no variant's name; its folder names it"
        files.report("unreadable", text)
        return run.variant, {}
    variant = _canonical(variant)
    # What was asked for, and what the folder is called.
    for name in (asked.get("attention"), run.variant):
        if name and variants.mixer(name) in variants.MIXERS and _canonical(name) != variant:
            files.report("mismatch", f"named {name}, but its record says {variant}, which counts")
    hyperparameters = dict(asked.get("variant_hyperparameters") or {})
    # Of variants without a temperature the runner records that it is 1.
    if tau is not None and "temp" in variants.modifiers(variant):
        hyperparameters["tau"] = tau
    return variant, hyperparameters


def _canonical(variant: str) -> str:
    return "+".join((variants.mixer(variant), *variants.modifiers(variant)))


def _setting(run: Run) -> str:
    """Returns the variant's own hyperparameters: `tau = 0.9`."""
    values = sorted(run.variant_hyperparameters.items())
    return ", ".join(f"{name} = {value}" for name, value in values)


def _submission(trial: pathlib.Path) -> str:
    return os.path.basename(os.path.abspath(trial.parents[2]))


def _name_apart(runs: Sequence[Run], suffixes: Iterable[Callable[[Run], str]]) -> list[Run]:
    """Returns the runs with a name for each variant. Where runs of one name and workload differ in
    a suffix, each of `suffixes` in turn, it follows the name in brackets, unless it is the name."""
    runs = list(runs)
    for suffix in suffixes:
        values = collections.defaultdict(set)
        for run in runs:
            values[run.workload, run.variant].add(suffix(run))
        runs = [
            dataclasses.replace(run, variant=f"{run.variant} ({suffix(run)})")
            if len(values[run.workload, run.variant]) > 1 and suffix(run) not in ("", run.variant)
            else run
            for run in runs
        ]
    return runs


def _judged(run: Run, longest: int) -> Run:
    """Returns the run; one that is done and ended with less than LEAST of its steps and of its
    time, without reaching its validation target, is `failed` and says why. A run whose target
    nothing states, or that did not measure it, is left as it is."""
    seconds, last = run.trained_seconds, run.last_step or 0
    known = metrics.nearest_target(run.workload, run.step_hint or run.steps, seconds)
    steps = run.step_hint or (known and known.step_hint) or run.steps or longest
    allowed = run.allowed_s or (known and known.max_allowed_runtime_sec) or math.inf
    # The limit that the run was given may lie below the step hint.
    is_whole = last >= LEAST * min(steps, run.steps or steps) or seconds >= LEAST * allowed
    if is_whole or run.state != "done":
        return run
    try:
        target = metrics.target_of_run(run, selection.VALIDATION, run.last_step, seconds)
    except metrics.UnknownTargetError:
        return run
    if target.metric.column(target.split) not in run.evals:
        return run
    row = selection.best_step(run, target.metric)
    if row and target.is_reached(target.metric.shown(row[target.metric.column(target.split)])):
        return run
    time = f" and {seconds:,.0f} of {allowed:,.0f} s" if seconds and allowed < math.inf else ""
    reason = f"it ended at step {last:,} of {steps:,}{time}, without reaching {target.words}"
    return dataclasses.replace(
        run,
        state="failed",
        reason=reason,
        problems=(*run.problems, Problem("failed", run.name, "", reason)),
    )


def _find_init2winit(root: pathlib.Path) -> list[Run]:
    """Returns the trials of the experiment that `root` is, and of those in it, unread."""
    runs = []
    patterns = (f"{VISIBLE}/{INIT2WINIT_FILE}", f"{VISIBLE}/{VISIBLE}/{INIT2WINIT_FILE}")
    for path in (path.parent for pattern in patterns for path in root.glob(pattern)):
        name = path.relative_to(root).as_posix()
        record = trials.TrialFiles(path, name).json(INIT2WINIT_FILE)
        # AlgoPerf's files have another name and no worker.
        if "worker_id" in record and "status" in record:
            seed = int(record["worker_id"])
            runs.append(Run("", "its own", "init2winit", 0, seed, path, name, "pending"))
    return sorted(runs, key=lambda run: (str(run.path.parent), len(run.path.name), run.path.name))


def _init2winit(run: Run, files: trials.TrialFiles, whole: bool) -> Run:
    """Returns the trial with its records and evaluations; its file is read `whole` in any case.
    One that init2winit calls incomplete is `running`: it may have been killed. A seed that was
    drawn is recorded nowhere, and the worker's number takes its place. `hyperparameters` are all
    of hparams.json, the seed if it is recorded."""
    meta, evals = files.json(INIT2WINIT_FILE), _evaluations(files)
    hyperparameters = records.flattened(files.json(layout.HPARAMS))
    for name in records.VARIANT.keys() & hyperparameters.keys():
        meta[name] = hyperparameters.pop(name)
    seed = hyperparameters.pop(SEED, None)
    if isinstance(seed, int) and seed >= 0:
        hyperparameters[SEED] = seed
    state, kind = STATES.get(str(meta.get("status")), ("failed", "failed"))
    steps = meta.get("num_train_steps")
    last = max(evals.columns.get(STEP, ()), default=None)
    if state == "done" and last is None:
        kind = "missing"
    elif state == "done" and steps and last < steps:
        kind = "truncated"
    if kind is not None:
        text = f"status is {meta.get('status')!r}, last evaluation at step {last} of {steps}"
        files.report(kind, text)
    run = dataclasses.replace(
        run,
        workload=f"init2winit:{meta.get('dataset', 'unknown')}_{meta.get('model', 'model')}",
        seed=hyperparameters.get(SEED, run.seed),
        state=state,
        steps=steps,
        hyperparameters=hyperparameters,
        # Rows of training: `train_cost` is the mean cost since the last evaluation.
        losses=lambda: {
            "loss" if name == "train_cost" else name: values
            for name, values in files.losses().items()
            if "/" not in name
        },
    )
    return _measured(run, files, evals, meta, {})


def _evaluations(files: trials.TrialFiles) -> Measurements:
    """Returns the rows of measurements.csv that evaluate, with our columns."""
    read = files.read(layout.MEASUREMENTS) or Measurements({})
    names = {}
    for name in read.columns:
        split, _, metric = name.partition("/")
        if metric and split in SPLITS:
            names[name] = f"{SPLITS[split]}/{NAMES.get(metric, metric)}"
    if not names:
        return Measurements({})
    names |= {name: name for name in (STEP, ATTEMPT, *TIMES) if name in read.columns}
    evals = only_evaluations(
        Measurements(
            {
                ours: 1 - read.columns[name]
                if name.endswith(f"/{ERROR_RATE}")
                else read.columns[name]
                for name, ours in names.items()
            },
            {ours: read.empty[name] for name, ours in names.items() if name in read.empty},
        )
    )
    # Unknown from the first time on that is not recorded.
    times = {
        ours: np.cumsum(evals.columns[name])
        for name, ours in TIMES.items()
        if name in evals.columns
    }
    return Measurements({**evals.columns, **times}, evals.empty)


def _maxtext(run: Run, files: trials.TrialFiles, whole: bool) -> Run:
    """Returns the run with its record and evaluations; its file is read `whole` in any case."""
    run, evals, record = maxtext.read(run, files)
    return _measured(run, files, evals, record, {})


def _with_points(runs: Sequence[Run]) -> list[Run]:
    """Returns the runs with the numbers of their hyperparameter points, of the hyperparameters only
    those in which trials differ."""
    names = {name for run in runs for name in run.hyperparameters} - {SEED}
    differing = [
        name
        for name in sorted(names)
        if len({json.dumps(run.hyperparameters.get(name)) for run in runs}) > 1
    ]
    numbers: dict[str, int] = {}
    numbered = []
    for run in runs:
        point = {n: run.hyperparameters[n] for n in differing if n in run.hyperparameters}
        number = numbers.setdefault(json.dumps(point), len(numbers))
        numbered.append(dataclasses.replace(run, point=number, hyperparameters=point))
    return numbered
