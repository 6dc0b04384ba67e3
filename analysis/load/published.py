"""Reads AlgoPerf's published logs: `study_<k>/<workload>_<framework>/trial_<n>/`.

They have no study.json: a submission's directory takes the variant's place where its trials record
none, the study's number the seed's, and the trial's number the hyperparameter
point's. Their seeds are drawn at random for each trial (`rng_seed` of flags_0.json), so that trials
of one study are no pairs.

A trial's own record says which variant it trained: its folder may be called anything.
`python -m workloads algoperf` has AlgoPerf write `attention` and `attention_tau` into flags_0.json
(what was asked for) and `workload.attention…` into meta_data_0.json (what trained); an export of
ours has `variant_hyperparameters` in its flags. Logs of AlgoPerf itself have neither.
"""

import collections
import dataclasses
import pathlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from analysis.load import cross_checks, metrics
from analysis.load.files import measurements, trial_files
from analysis.load.files.json_records import FLAGS_FILE, META_FILE, VISIBLE
from analysis.load.files.measurements import Measurements
from analysis.load.files.trial_files import TrialFiles
from analysis.load.records import Run, StudyRuns
from attention import table as variants
from sweeps.records import layout

PATTERN = "study_<seed>/<workload>_<framework>/trial_<n>"
STAGE = "published"
STUDY_NAME = re.compile(r"study_(\d+)")
WORKLOAD_NAME = re.compile(r"(.+)_(jax|pytorch)")
# AlgoPerf's targets to their keys in meta_data_0.json.
TARGETS = {
    "metric": "workload.target_metric_name",
    "validation": "workload.validation_target_value",
    "test": "workload.test_target_value",
}
TRIAL_NAME = re.compile(r"trial_(\d+)")
VARIANT_NAME = re.compile(r"\w+(\+\w+)*", re.ASCII)


class Entry(NamedTuple):
    """A directory whose name fits a pattern, and the parts of the name."""

    parts: tuple[str, ...]
    path: pathlib.Path


def read_logs(root: pathlib.Path, whole: bool = False) -> StudyRuns | None:
    """Returns the logs in `root` (one submission, or a directory of submissions) as a study, or
    None where there are none. `whole` also checks every measurements.csv. Our own studies beside
    them are left alone.

    Nothing there says how many trials were meant to be: a trial is missing where other studies of
    its submission have it. It is taken as done where it left evaluations, as logs carry no state,
    unless it ended long before it was meant to (`cross_checks`).
    """
    if not root.is_dir():
        return None
    inside = [path for path in sorted(root.glob(VISIBLE)) if path.is_dir()]
    problems: list[str] = []
    submissions = [path for path in (root, *inside) if fitting(path, STUDY_NAME)]
    planned = [run for path in submissions for run in _submission(root, path, problems)]
    if not planned:
        return None
    read = trial_files.read_each(
        [(run.path, run.name) for run in planned],
        lambda index, files: _read_trial(planned[index], files, whole),
    )
    folders = {run.path: run.variant for run in planned}
    runs, contradictions = _named(
        cross_checks.with_absent_columns(cross_checks.with_early_endings(read)), folders
    )
    problems = [*contradictions, *problems, *cross_checks.duplicates(runs)]
    return StudyRuns(
        name=root.resolve().name,
        config={},
        runs=runs,
        problems=(*problems, *(problem for run in runs for problem in run.problems)),
        directory=root,
        notes=tuple(note for run in runs for note in run.notes),
        stages=(STAGE,),
        planned=(STAGE,),
        published=True,
        shares_seeds=False,
    )


def fitting(directory: pathlib.Path, name: re.Pattern[str]) -> list[Entry]:
    """Returns the directories in `directory` whose names match, in the order of their numbers."""
    matches = ((name.fullmatch(path.name), path) for path in directory.iterdir() if path.is_dir())
    found = [Entry(match.groups(), path) for match, path in matches if match]
    return sorted(found, key=lambda entry: (len(entry.parts[0]), entry.parts))


def _submission(root: pathlib.Path, submission: pathlib.Path, problems: list[str]) -> list[Run]:
    """Returns a submission's trials, unread; adds what fits nowhere to `problems`."""
    every = fitting(submission, STUDY_NAME)
    # One of ours may be called `study_1`, too.
    studies = [entry for entry in every if not (entry.path / layout.STUDY).is_file()]
    trials = [
        (study, workload, trial)
        for study in studies
        for workload in fitting(study.path, WORKLOAD_NAME)
        for trial in fitting(workload.path, TRIAL_NAME)
    ]
    frameworks = collections.defaultdict(set)
    for _, workload, _ in trials:
        frameworks[workload.parts[0]].add(workload.parts[1])
    name = submission.resolve().name
    runs = [
        Run(
            workload=workload.parts[0],
            # A submission that has one workload in both frameworks has two results on it.
            variant=f"{name} ({workload.parts[1]})"
            if len(frameworks[workload.parts[0]]) > 1
            else name,
            stage=STAGE,
            point=int(trial.parts[0]),
            seed=int(study.parts[0]),
            path=trial.path,
            name=trial.path.relative_to(root).as_posix(),
            state="pending",
        )
        for study, workload, trial in trials
    ]
    problems += [*_misfits(root, studies), *_missing(root, runs)]
    return runs


def _misfits(root: pathlib.Path, studies: Iterable[Entry]) -> Iterable[str]:
    """Names directories that hold no trials where trials were looked for."""
    for study in studies:
        workloads = fitting(study.path, WORKLOAD_NAME)
        known = {entry.path for entry in workloads}
        for path in sorted(path for path in study.path.glob(VISIBLE) if path.is_dir()):
            name = path.relative_to(root).as_posix()
            if path not in known:
                yield f"unknown format: {name}: not <workload>_jax or _pytorch, left out"
            elif not fitting(path, TRIAL_NAME):
                yield f"missing: {name}: no trial_<n> in it"


def _missing(root: pathlib.Path, runs: list[Run]) -> Iterable[str]:
    """Names trials that other studies of the submission have on the same workload."""
    numbers = collections.defaultdict(set)
    for run in runs:
        numbers[run.variant, run.workload].add(run.point)
    present = {run.path for run in runs}
    for directory, run in {run.path.parent: run for run in runs}.items():
        for number in sorted(numbers[run.variant, run.workload]):
            if directory / f"trial_{number}" not in present:
                name = (directory / f"trial_{number}").relative_to(root).as_posix()
                yield f"missing: {name}: other studies of {run.variant} have this trial"


def _read_trial(planned: Run, files: TrialFiles, whole: bool) -> Run:
    """Returns the trial with what it left: `done` where that are evaluations, `failed` where it
    began and left none, `pending` where it left nothing. `steps` is the run's own limit
    (`max_global_steps` of flags_0.json)."""
    evals = files.evaluations()
    if whole:
        files.check_losses()
    meta, flags = files.json(META_FILE), files.json(FLAGS_FILE)
    columns = evals.columns if evals else {}
    metric = metrics.target(columns, meta.get(TARGETS["metric"]), planned.workload)
    hyperparameters = _hyperparameters(files, flags)
    recorded = recorded_by(files.name, flags, meta)
    state, reason = _state(files, evals, bool(meta or flags))
    problems, notes = _said_of(files.name, evals, metric)
    run = dataclasses.replace(
        planned,
        variant=recorded.variant or planned.variant,
        state=state,
        reason=reason,
        steps=flags.get("max_global_steps"),
        step_hint=meta.get("workload.step_hint"),
        allowed_s=meta.get("workload.max_allowed_runtime_sec"),
        metric=metric,
        targets={name: meta[key] for name, key in TARGETS.items() if meta.get(key) is not None},
        hyperparameters=hyperparameters,
        variant_hyperparameters=recorded.hyperparameters,
        evals=columns,
        losses=files.losses,
        problems=(
            *files.problems,
            *problems,
            *recorded.problems,
            *trial_files.fabricated(files.name, meta),
        ),
        notes=(*files.notes, *notes),
    )
    return run


def _hyperparameters(files: TrialFiles, flags: dict[str, Any]) -> dict[str, Any]:
    """Self-tuning submissions have none; of the others a trial without them cannot be told."""
    found = files.json_if_there(layout.HPARAMS)
    if found is None and flags.get("tuning_ruleset") == "external":
        files.problems.append(f"missing: {files.name}: no {layout.HPARAMS}")
    return found or {}


def _state(
    files: TrialFiles, evals: Measurements | None, has_records: bool
) -> tuple[str, str | None]:
    if evals is not None and len(evals.columns.get("global_step", ())):
        return "done", None
    began = has_records or files.has(layout.MEASUREMENTS)
    what = f"no {layout.EVAL_MEASUREMENTS}" if evals is None else "no complete evaluation"
    if not began:
        files.problems.append(f"missing: {files.name}: {what}")
        return "pending", None
    reason = f"it began and left {what}"
    if not files.names_damage(layout.EVAL_MEASUREMENTS):
        files.problems.append(f"failed: {files.name}: {reason}")
    return "failed", reason


def _said_of(name: str, evals: Measurements | None, metric: str) -> tuple[list[str], list[str]]:
    if evals is None or not evals.columns:
        return [], []
    found = measurements.non_finite(evals, empty_is_nan=True)
    absent = measurements.absent(evals, metric)
    notes = [f"{name}: no column {', '.join(absent)}"] if absent else []
    return [f"non-finite: {name}: {where}" for where in found], notes


@dataclass(frozen=True)
class Recorded:
    """`variant` is the canonical name, None where nothing is recorded; `hyperparameters` are the
    variant's own (`tau`)."""

    variant: str | None
    hyperparameters: dict[str, Any]
    problems: tuple[str, ...] = ()


def recorded_by(name: str, flags: Mapping[str, Any], meta: Mapping[str, Any]) -> Recorded:
    """Returns what the records of the trial `name` say: meta_data_0.json first."""
    asked, trained = flags.get("attention"), meta.get("workload.attention")
    variant = asked if trained is None else trained
    if variant is None:
        return Recorded(None, {})
    if not VARIANT_NAME.fullmatch(variant):
        damage = f"unreadable: {name}: its attention is {variant[:40]!r}, no variant's name"
        return Recorded(None, {}, (f"{damage}; its folder names it",))
    hyperparameters = dict(flags.get("variant_hyperparameters") or {})
    tau = flags.get("attention_tau") if trained is None else meta.get("workload.attention_tau")
    # Of variants without a temperature the runner records that it is 1.
    if tau is not None and "temp" in variants.modifiers(variant):
        hyperparameters["tau"] = tau
    problem = (
        f"mismatch: {name}: {FLAGS_FILE} says attention {asked}, {META_FILE} {trained}; the "
        "latter is what trained, and counts"
    )
    differs = asked is not None and _canonical(asked) != _canonical(variant)
    return Recorded(_canonical(variant), hyperparameters, (problem,) * differs)


def _canonical(variant: str) -> str:
    return "+".join((variants.mixer(variant), *variants.modifiers(variant)))


def _named(runs: Sequence[Run], folders: Mapping[Any, str]) -> tuple[tuple[Run, ...], list[str]]:
    """Returns the runs with names that tell apart what is not the same, and what contradicts them.

    Of one variant on one workload, runs with other hyperparameters have these behind the name, and
    runs of another submission its folder, but for the one that is called as the variant is.
    `folders` is what a run's submission is called, by the run's path.
    """
    alike = collections.defaultdict(set)
    places = collections.defaultdict(set)
    for run in runs:
        alike[run.workload, run.variant].add(in_words(run))
        places[run.workload, run.variant, in_words(run)].add(folders[run.path])

    def name(run: Run) -> str:
        folder, words = folders[run.path], in_words(run)
        several = len(alike[run.workload, run.variant]) > 1
        found = f"{run.variant} ({words})" if several and words else run.variant
        is_shared = len(places[run.workload, run.variant, words]) > 1
        return f"{found} ({folder})" if is_shared and folder != run.variant else found

    known = {run.variant for run in runs if run.variant != folders[run.path]}
    problems = list(_contradictions(runs, folders, known))
    return tuple(dataclasses.replace(run, variant=name(run)) for run in runs), problems


def in_words(run: Run) -> str:
    values = sorted(run.variant_hyperparameters.items())
    return ", ".join(f"{name} = {value}" for name, value in values)


def _contradictions(
    runs: Sequence[Run], folders: Mapping[Any, str], known: set[str]
) -> Iterable[str]:
    """Names folders that are called like a variant and hold another one, and those in which some
    trials say what they trained and others do not; for each workload, by a trial of it."""
    inside = collections.defaultdict(list)
    for run in runs:
        inside[run.workload, folders[run.path]].append(run)
    for (_, folder), trials in inside.items():
        others = [run for run in trials if run.variant != folder]
        recorded = ", ".join(sorted({run.variant for run in others}))
        if others and _is_variant(folder, known) and _canonical(folder) != recorded:
            yield (
                f"mismatch: {folder}: the folder is called so, and the records of {len(others)} of "
                f"its {len(trials)} trials say attention {recorded}, the first of them "
                f"{others[0].name}; rows are named by the records"
            )
        elif others and len(others) < len(trials):
            silent = next(run for run in trials if run.variant == folder)
            yield (
                f"mismatch: {folder}: {len(trials) - len(others)} of its trials record no "
                f"attention, the first of them {silent.name}, and the others {recorded}; they are "
                f"the row {folder}"
            )


def _is_variant(folder: str, known: set[str]) -> bool:
    parts = variants.mixer(folder) in variants.MIXERS, *(
        name in variants.MODIFIERS for name in variants.modifiers(folder)
    )  # fmt: skip
    return all(parts) or folder in known
