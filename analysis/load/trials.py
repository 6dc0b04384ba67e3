"""Reads one trial's directory: identity, state, measurements, and what is wrong with them."""

import pathlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import pandas as pd

from analysis.load import measurements, metrics, samples
from analysis.load.records import META_FILE, STEP, Columns, Problem, Run, read_json
from sweeps.records import layout, status
from sweeps.records import measurements as attempts

# What trial.json repeats of its entry in trials.json.
IDENTITY = ("id", "variant", "workload", "point", "seed")


@dataclass
class TrialFiles:
    """The files of the trial `name`; what is wrong with them is collected in `problems`, and what
    is worth knowing in `notes`."""

    directory: pathlib.Path
    name: str
    problems: list[Problem] = field(default_factory=list)
    notes: list[Problem] = field(default_factory=list)

    def report(self, kind: str, text: str) -> None:
        """Adds a problem of the trial as a whole."""
        self.problems.append(Problem(kind, self.name, "", text))

    def json(self, file: str) -> dict[str, Any]:
        """Returns the JSON object in `file`, empty if it is missing or damaged; of its known
        keys only those that hold what they should."""
        return read_json(self.directory / file, self.name, self.problems) or {}

    def state(self) -> Mapping[str, Any]:
        """Returns what status.json says of the trial; a damaged one is a problem."""
        state: Mapping[str, Any] = status.seen(self.directory)
        if damage := state.get("damaged"):
            text = str(damage).removeprefix(f"{self.directory / layout.STATUS} is ")
            self.problems.append(Problem("unreadable", self.name, layout.STATUS, text))
        return state

    def read(self, file: str) -> measurements.Measurements | None:
        """Returns the rows of a CSV file, None if it is missing."""
        rows = measurements.read(self.directory / file, self.name)
        if rows is not None:
            self.problems += rows.problems
        return rows

    def evaluations(self) -> measurements.Measurements | None:
        """Returns the evaluations of eval_measurements.csv, None if it is missing."""
        rows = self.read(layout.EVAL_MEASUREMENTS)
        if rows is None:
            return None
        evals = measurements.only_evaluations(rows, self.name)
        self.notes += evals.notes
        return evals

    def losses(self) -> Columns:
        """Returns the rows of measurements.csv; before a trial's first evaluation wrote that, what
        its attempts logged so far, none if they cannot be read."""
        rows = measurements.read(self.directory / layout.MEASUREMENTS)
        if rows:
            return rows.columns
        try:
            logged = [row for row in attempts.curve(self.directory) if row["kind"] == "train"]
        except (OSError, ValueError):
            return {}
        frame = pd.DataFrame(logged).drop(columns="kind", errors="ignore").apply(pd.to_numeric)
        return {str(name): column.to_numpy() for name, column in frame.items()}

    def has(self, file: str) -> bool:
        """Returns whether there is such a file."""
        return (self.directory / file).is_file()

    def check_data(self, meta: Mapping[str, Any]) -> None:
        """Reports data that was made up to try AlgoPerf's workloads, as meta_data_0.json says."""
        if meta.get("workload.attnperf_tiny"):
            self.report("fabricated", "its data is made up: nothing follows from it")

    def check_evaluations(
        self, evals: measurements.Measurements, metric: str, state: str, empty_is_nan: bool
    ) -> None:
        """Notes columns that are absent, and reports numbers that are not finite, but for those of
        a trial that says itself that it diverged. `empty_is_nan` as in `non_finite`."""
        absent = measurements.absent(evals, metric) if evals.columns else []
        self.notes += [Problem("note", self.name, "", f"no column {name}") for name in absent]
        for where in measurements.non_finite(evals, empty_is_nan) if state != "diverged" else ():
            self.report("non-finite", where)

    def names_damage(self, file: str) -> bool:
        """Returns whether a problem with `file` has been named already."""
        return any(problem.file == file for problem in self.problems)


def read_each(
    places: Sequence[tuple[pathlib.Path, str]], read: Callable[[int, TrialFiles], Run]
) -> list[Run]:
    """Returns `read(index, files)` for the trials at `places`, directories and names, in order.

    Reading and Arrow's parsing leave Python's lock to another thread. Raises what `read` raises.
    """
    files = [TrialFiles(*place) for place in places]
    # What runs in Python itself cannot be shared: a third thread gained nothing on two cores.
    with ThreadPoolExecutor(2) as threads:
        return list(threads.map(read, range(len(files)), files))


def read_trial(
    entry: dict[str, Any],
    points: Sequence[dict[str, Any]],
    files: TrialFiles,
    whole: bool,
    is_planned: bool = True,
) -> Run:
    """Returns the run that `entry`, a line of trials.json, plans, with what is on disk of it. A
    trial that is no longer planned has its own record as its `entry`.

    `points` are the study's hyperparameter points, for a trial that has not written its own
    record yet. `whole` also checks measurements.csv, which is otherwise left alone until its rows
    are asked for. Never raises for what a trial left on disk: that becomes the run's `problems`.
    """
    # If trial.json is missing, its entry in trials.json is used.
    record = entry | files.json(layout.TRIAL)
    state = files.state()
    differing = [name for name in IDENTITY if record.get(name) != entry.get(name)]
    if differing:
        key = differing[0]
        text = f"{key} is {record[key]}, {layout.TRIALS} plans {entry.get(key)}"
        files.report("mismatch", f"{layout.TRIAL}: {text}; another trial's, and not read")
        record, state = entry, status.NEW
    evals = None if differing else files.evaluations()
    targets, point = record.get("targets") or {}, record["point"]
    columns = evals.columns if evals else {}
    last = int(columns[STEP][-1]) if len(columns.get(STEP, ())) else 0
    planned = points[point] if point < len(points) else {}
    run = Run(
        workload=record["workload"],
        variant=record["variant"],
        stage=record["path"].split("/")[0],
        point=point,
        seed=record["seed"],
        path=files.directory,
        name=files.name,
        state=state["state"],
        reason=state["reason"],
        steps=record.get("steps"),
        step_hint=record.get("step_hint"),
        eval_every=record.get("eval_every"),
        metric=metrics.target_metric(columns, targets.get("metric"), record["workload"]),
        targets=targets,
        hyperparameters=record.get("hyperparameters") or planned,
        variant_hyperparameters=record.get("variant_hyperparameters") or {},
        evals=columns,
        losses=files.losses,
        # As the engine judges what is done.
        ends_early=state["state"] == "done" and last < (record.get("steps") or 1),
        is_planned=is_planned,
        planned_by=record.get("git_commit") or "",
        data_digest=record.get("data_digest") or "",
        id=record.get("id") or "",
    )
    if not is_planned:
        text = "not planned now; `table` says whether it counts"
        files.notes.append(Problem("note", files.name, "", text))
    if not differing:
        _check(run, files, evals, whole)
    return replace(run, problems=tuple(files.problems), notes=tuple(files.notes))


def _check(
    run: Run, files: TrialFiles, evals: measurements.Measurements | None, whole: bool
) -> None:
    """Reports what the trial's files say against one another, and, where asked for the `whole`,
    what is wrong with those that no table needs."""
    reached = f"last evaluation at step {run.last_step} of {run.steps}"
    is_named = files.names_damage(layout.EVAL_MEASUREMENTS)
    if run.state in layout.LOST:
        files.report(run.state, run.reason or "no reason was recorded")
    elif evals is None:
        files.report("missing", f"{run.state}, no {layout.EVAL_MEASUREMENTS}")
    elif run.state != "done":
        files.report("unfinished", f"{run.state}, {reached}")
    # A file of which nothing could be read is named once.
    elif run.ends_early and not (run.last_step is None and is_named):
        files.report("truncated", f"done, {reached}")
    if evals is not None:
        files.check_evaluations(evals, run.metric, run.state, empty_is_nan=False)
        if text := measurements.missing_evaluations(evals, run.eval_every, run.steps):
            files.report("missing", text)
    if run.workload.startswith("algoperf:"):  # no other workload has made-up data
        files.check_data(files.json(META_FILE))
    # A trial writes trial.json before its first step, and losses before any evaluation.
    if (run.state != "pending" or run.evals) and not files.has(layout.TRIAL):
        files.report("missing", f"no {layout.TRIAL}, though it began: {layout.TRIALS} speaks")
    if run.state == "done" and run.evals and not files.has(layout.MEASUREMENTS):
        again = "`python -m sweeps resume` writes its logged losses again"
        files.report("missing", f"no {layout.MEASUREMENTS}; {again}")
    # No trial evaluates after its last planned step: its record or its curve is another's.
    if run.last_step is not None and run.last_step > (run.steps or run.last_step):
        files.report("mismatch", reached)
    if whole:
        files.read(layout.MEASUREMENTS)
        evaluations, problems = samples.of_trial(run.path, run.name)
        files.problems += [
            *problems,
            *(problem for evaluation in evaluations for problem in evaluation.problems),
        ]
