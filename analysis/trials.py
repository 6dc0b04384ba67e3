"""Reads one trial's directory: identity, state, measurements, and what is wrong with them."""

import pathlib
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from analysis import measurements, metrics
from analysis.measurements import STEP, Measurements
from analysis.records import Run
from sweeps import layout

NOTHING = Measurements({}, (), ())


def read_trial(study: pathlib.Path, entry: dict[str, Any], points: tuple[dict, ...]) -> Run:
    """Returns the run that `entry`, a line of trials.json, plans, with whatever is on disk of it.

    `points` are the study's hyperparameter points, for a trial that has not written its own
    record yet. Never raises for what a trial left on disk: that becomes the run's `problems`.
    """
    planned = _planned(study, entry, points)
    files = TrialFiles(planned.path, planned.name, [])
    # trials.json repeats what trial.json holds: it speaks for a trial that was deleted.
    record, status = entry | files.json(layout.TRIAL), files.json(layout.STATUS)
    if record.get("id") != entry.get("id"):
        mismatch = (
            f"mismatch: {planned.name}: {layout.TRIAL} has id {record['id']}, {layout.TRIALS} "
            f"plans {entry.get('id')}; the measurements are another trial's and are not read"
        )
        return replace(planned, problems=(*files.problems, mismatch))
    evals = files.measurements(layout.EVAL_MEASUREMENTS)
    trains = files.measurements(layout.MEASUREMENTS)
    run = _with_record(planned, record, status, evals or NOTHING, trains or NOTHING)
    problems = (*files.problems, *_state_problems(run, evals is not None, record))
    notes = tuple(f"{run.name}: {note}" for note in (evals or NOTHING).notes)
    return replace(run, problems=problems, notes=notes)


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
        metric=metrics.target({}, _stated(entry)),
        hyperparameters=dict(points[point]) if point < len(points) else {},
    )


@dataclass
class TrialFiles:
    """A trial's files; what cannot be read is collected in `problems`."""

    directory: pathlib.Path
    name: str
    problems: list[str]

    def json(self, file: str) -> dict[str, Any]:
        """Returns the JSON object in `file`, empty where it is missing or damaged."""
        try:
            record = layout.read_json_if_there(self.directory / file)
        except (ValueError, OSError) as error:
            self.problems.append(f"unreadable: {self.name}/{file}: {error}")
            return {}
        if record is None or isinstance(record, dict):
            return record or {}
        self.problems.append(f"unreadable: {self.name}/{file}: not a JSON object")
        return {}

    def measurements(self, file: str) -> Measurements | None:
        """Returns the rows of `file`, None where it is missing."""
        try:
            read = measurements.read(self.directory / file)
        except FileNotFoundError:
            return None
        except OSError as error:
            self.problems.append(f"unreadable: {self.name}/{file}: {error}")
            return None
        for problem in read.problems:
            kind, _, rest = problem.partition(" ")
            self.problems.append(f"{kind.rstrip(':')}: {self.name}/{file}: {rest}")
        return read


def _with_record(
    run: Run, record: dict, status: dict, evals: Measurements, trains: Measurements
) -> Run:
    return replace(
        run,
        state=status.get("state", "pending"),
        reason=status.get("reason"),
        steps=record.get("steps", run.steps),
        metric=metrics.target(evals.columns, _stated(record)),
        hyperparameters=record.get("hyperparameters", run.hyperparameters),
        variant_hyperparameters=record.get("variant_hyperparameters") or {},
        evals=evals.columns,
        trains=trains.columns,
    )


def _stated(record: dict[str, Any]) -> str | None:
    """Returns the metric of the workload's target, None where the record does not say."""
    targets = record.get("targets")
    return targets.get("metric") if isinstance(targets, dict) else None


def _state_problems(run: Run, published: bool, record: dict[str, Any]) -> list[str]:
    """Returns what the trial's state and the length of its curve say against it."""
    problems = []
    if run.state not in layout.STATES:
        known = ", ".join(layout.STATES)
        problems.append(f"unreadable: {run.name}: state is {run.state!r}, not one of {known}")
    if run.state in ("failed", "diverged"):
        reason = run.reason or "no reason was recorded"
        nothing = "" if published else f" (no {layout.EVAL_MEASUREMENTS})"
        problems.append(f"{run.state}: {run.name}: {reason}{nothing}")
    elif not published:
        problems.append(f"missing: {run.name}: {run.state}, no {layout.EVAL_MEASUREMENTS}")
    elif run.state in ("pending", "running"):
        reached = f"last evaluation at step {run.last_step} of {run.steps}"
        problems.append(f"unfinished: {run.name}: {run.state}, {reached}")
    elif run.state == "done":
        problems += _short(run, record.get("eval_every"))
    return problems


def _short(run: Run, eval_every: int | None) -> list[str]:
    """A curve that lacks an evaluation which was due was cut at the end of a line."""
    if run.last_step is None:
        return [f"truncated: {run.name}: done, but it has no complete evaluation"]
    gaps = np.diff(run.evals[STEP])
    due = eval_every or (int(gaps.max()) if len(gaps) else 0)
    if run.steps is None or not due or run.last_step + due > run.steps:
        return []
    return [f"truncated: {run.name}: done, but it ends at step {run.last_step} of {run.steps}"]
