"""Reads one trial's directory: identity, state, measurements, and what is wrong with them."""

import pathlib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from analysis.load import metrics
from analysis.load.files import downstream, measurements, trial_files
from analysis.load.files.json_records import META_FILE
from analysis.load.files.measurements import ATTEMPT, Measurements
from analysis.load.files.trial_files import TrialFiles
from analysis.load.records import Run
from sweeps.records import layout, status

NOTHING = Measurements({})
# What trial.json repeats of its entry in trials.json.
IDENTITY = ("id", "variant", "workload", "point", "seed")


def read_trials(
    study: pathlib.Path, entries: Sequence[dict], points: tuple[dict, ...], whole: bool = False
) -> list[Run]:
    """Returns the runs that `entries`, lines of trials.json, plan, with what is on disk of them.

    `points` are the study's hyperparameter points, for a trial that has not written its own
    record yet. `whole` also checks measurements.csv, which is otherwise left alone until its rows
    are asked for. Never raises for what a trial left on disk: that becomes the run's `problems`.
    """
    planned = [_planned(study, entry, points) for entry in entries]
    return trial_files.read_each(
        [(run.path, run.name) for run in planned],
        lambda index, files: _read_trial(planned[index], entries[index], files, whole),
    )


def _read_trial(planned: Run, entry: dict[str, Any], files: TrialFiles, whole: bool) -> Run:
    # trials.json repeats what trial.json holds: it speaks for a trial that was deleted.
    record, seen = entry | files.json(layout.TRIAL), status.seen(planned.path)
    if damage := seen.get("damaged"):
        named = str(damage).replace(str(planned.path), planned.name)
        files.problems.append(f"unreadable: {named}")
    if other := next((name for name in IDENTITY if record.get(name) != entry.get(name)), None):
        mismatch = (
            f"mismatch: {planned.name}: {layout.TRIAL} has {other} {record[other]}, "
            f"{layout.TRIALS} plans {entry.get(other)}; the measurements are another trial's and "
            "are not read"
        )
        return replace(planned, problems=(*files.problems, mismatch))
    evals = files.evaluations()
    if whole:
        files.check_losses()
        evaluations, strange = downstream.of_trial(planned.path, planned.name)
        files.problems += [*strange, *(text for each in evaluations for text in each.problems)]
    run = _with_record(planned, record, seen, evals or NOTHING, files)
    if run.state == "done":
        run = replace(run, ends_early=(run.last_step or 0) < (run.steps or 1))
    absent = measurements.absent(evals, run.metric) if evals and evals.columns else []
    problems = (*files.problems, *_problems(run, evals, files))
    notes = [f"{run.name}: no column {ATTEMPT}"] * (ATTEMPT in absent)
    return replace(run, problems=problems, notes=(*files.notes, *notes))


def _problems(run: Run, evals: Measurements | None, files: TrialFiles) -> Iterable[str]:
    """Yields what is wrong with a trial beside what its files could not say."""
    yield from _state_problems(run, evals, files)
    if run.workload.startswith("algoperf:"):  # no other workload has made-up data
        yield from trial_files.fabricated(files.name, files.json(META_FILE))
    # A trial writes trial.json before its first step, and losses before any evaluation.
    if (run.state != "pending" or run.evals) and not files.has(layout.TRIAL):
        yield f"missing: {run.name}: no {layout.TRIAL}, though it began: {layout.TRIALS} speaks"
    if run.state == "done" and run.evals and not files.has(layout.MEASUREMENTS):
        yield (
            f"missing: {run.name}: no {layout.MEASUREMENTS}: its logged losses are absent until "
            "`python -m sweeps resume` writes it anew"
        )
    # No trial evaluates after its last planned step: its record or its curve is another's.
    if run.steps is not None and run.last_step is not None and run.last_step > run.steps:
        yield f"mismatch: {run.name}: an evaluation at step {run.last_step} of {run.steps} planned"
    # A trial that says itself that it diverged need not be told so.
    if evals is not None and run.state != "diverged":
        for where in measurements.non_finite(evals, empty_is_nan=False):
            yield f"non-finite: {run.name}: {where}"


def _planned(study: pathlib.Path, entry: dict[str, Any], points: tuple[dict, ...]) -> Run:
    point = int(entry["point"])
    return Run(
        workload=entry["workload"],
        variant=entry["variant"],
        stage=entry["path"].split("/")[0],
        point=point,
        seed=int(entry["seed"]),
        path=study / entry["path"],
        name=entry["path"],
        state="pending",
        steps=entry.get("steps"),
        step_hint=entry.get("step_hint"),
        metric=metrics.target({}, _stated(entry), entry["workload"]),
        hyperparameters=dict(points[point]) if point < len(points) else {},
    )


def _with_record(run: Run, record: dict, seen: dict, evals: Measurements, files: TrialFiles) -> Run:
    targets = record.get("targets")
    return replace(
        run,
        state=seen["state"],
        reason=seen["reason"],
        steps=record.get("steps", run.steps),
        step_hint=record.get("step_hint"),
        metric=metrics.target(evals.columns, _stated(record), run.workload),
        targets=targets if isinstance(targets, dict) else {},
        hyperparameters=dict(record.get("hyperparameters", run.hyperparameters)),
        variant_hyperparameters=record.get("variant_hyperparameters") or {},
        evals=evals.columns,
        losses=files.losses,
    )


def _stated(record: dict[str, Any]) -> str | None:
    """Returns the metric of the workload's target, None where the record does not say."""
    targets = record.get("targets")
    return targets.get("metric") if isinstance(targets, dict) else None


def _state_problems(run: Run, evals: Measurements | None, files: TrialFiles) -> Iterable[str]:
    """Yields what the trial's state and the length of its curve say against it."""
    published = evals is not None
    if run.state in ("failed", "diverged"):
        reason = run.reason or "no reason was recorded"
        nothing = "" if published else f" (no {layout.EVAL_MEASUREMENTS})"
        yield f"{run.state}: {run.name}: {reason}{nothing}"
    elif not published and not files.names_damage(layout.EVAL_MEASUREMENTS):
        yield f"missing: {run.name}: {run.state}, no {layout.EVAL_MEASUREMENTS}"
    elif published and run.state in ("pending", "running"):
        reached = f"last evaluation at step {run.last_step} of {run.steps}"
        yield f"unfinished: {run.name}: {run.state}, {reached}"
    elif published and run.state == "done":
        # As the engine judges it; a file of which nothing could be read is named once.
        end = f"ends at step {run.last_step} of {run.steps}"
        if run.last_step is None:
            end = "has no complete evaluation"
        is_named = run.last_step is None and files.names_damage(layout.EVAL_MEASUREMENTS)
        if run.ends_early and not is_named:
            yield f"truncated: {run.name}: done, but it {end}"
