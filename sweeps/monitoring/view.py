"""The view of a study: a survey as text, the same for `run`, `status` and `status --watch`."""

import json
import pathlib
import time
from collections.abc import Mapping

from attention.common import files
from sweeps.monitoring.survey import (
    COLUMNS,
    LISTED,
    EngineJob,
    Survey,
    TrialStatus,
)

# Running trials in such a line.
_IN_A_LINE = 4


def plural(noun: str, count: int) -> str:
    """Returns a noun as it stands behind a number of things."""
    return noun if count == 1 else f"{noun}s"


def render(survey: Survey) -> str:
    """Returns the states by stage and variant, the time left, running trials, then problems."""
    lines = [f"study {survey.name} in {survey.directory}", *_table(survey)]
    if preemptions := sum(row.preemptions for row in survey.rows.values()):
        lines.append(f"preemptions and other new attempts so far: {preemptions}")
    for launcher, counts in survey.jobs.items():
        states = ", ".join(f"{counts[state]} {state}" for state in ("running", "waiting", "over"))
        lines.append(f"jobs of {launcher}: {states}")
    lines += queue(survey.directory, survey.at_engines, survey.queue_warn_s)
    lines += [f"engine not asked: {problem}" for problem in survey.unanswered]
    lines.append(time_left(survey))
    lines += _listed("running", [_running(trial) for trial in survey.running.values()])
    for state in ("preempted", "diverged", "failed"):
        trials = [trial for trial in survey.problems.values() if trial.state == state]
        lines += _listed(state, [_problem(trial) for trial in trials])
    damaged = [f"damaged: {problem}" for problem in survey.damaged.values()]
    return "\n".join([*lines, *_listed("damaged", damaged)])


def queue(directory: pathlib.Path, jobs: Mapping[str, EngineJob], warn_s: float) -> list[str]:
    """Returns a line per job in an engine's queue, and how to submit again what has waited for
    longer than `warn_s`, where that is not 0."""
    queued = [(handle, job) for handle, job in jobs.items() if job.reason is not None]
    queued.sort(key=lambda item: -round(item[1].queued_s))
    lines = [
        f"job {handle} queued for {duration(job.queued_s)}: {job.reason or 'no reason is given'}"
        for handle, job in queued
    ]
    lines = _listed("queued", lines)
    if overdue := [handle for handle, job in queued if job.queued_s > warn_s > 0]:
        command = f"python -m sweeps resubmit {files.quoted(directory)} {' '.join(overdue)}"
        lines.append(f"queued for more than {duration(warn_s)}: to submit again, {command}")
    return lines


def as_json(survey: Survey) -> str:
    """Returns the survey as one object; ages are by two hosts' clocks, times are seconds."""
    now = time.time()
    record = {
        "study": survey.name,
        "directory": str(survey.directory),
        "complete": survey.complete,
        "seconds_left": survey.time_left() or None,
        "stages": [
            {"stage": stage, "variant": row.variant} | {name: row.counts[name] for name in COLUMNS}
            for stage in survey.stages
            for row in survey.of_stage(stage)
        ],
        "running": [
            {
                "path": path,
                "host": trial.status.get("host"),
                "step": trial.status["global_step"],
                "steps": trial.steps,
                "age_s": now - trial.status.get("heartbeat", now),
            }
            for path, trial in survey.running.items()
        ],
        "jobs": [
            {
                "name": handle,
                "launcher": job.batch.launcher,
                "state": job.state if job.reason is None else "queued",
                "queued_s": None if job.reason is None else job.queued_s,
                "reason": job.reason,
                "trials": job.batch.jobs[job.index],
            }
            for handle, job in survey.at_engines.items()
        ],
        "problems": [
            {"path": path, "state": trial.state, "reason": trial.status["reason"]}
            for path, trial in survey.problems.items()
        ],
        "damaged": survey.damaged,
        "unanswered": survey.unanswered,
    }
    return json.dumps(record, indent=1, allow_nan=False)


def _table(survey: Survey) -> list[str]:
    rows = [
        (stage, row.variant, *(str(row.counts[name]) for name in COLUMNS))
        for stage in survey.stages
        for row in survey.of_stage(stage)
    ]
    table = [("stage", "variant", *COLUMNS), *rows]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    layout = "  ".join(f"{{:<{width}}}" for width in widths)
    return [layout.format(*cells).rstrip() for cells in table]


def _listed(state: str, lines: list[str], most: int = LISTED) -> list[str]:
    more = len(lines) - most
    return [*lines[:most], f"and {more:,} more {state}"] if more > 0 else lines


def time_left(survey: Survey) -> str:
    """Returns the time left of each stage and in all; 'complete' where nothing is left."""
    if survey.complete:
        return "complete"
    left = survey.time_left()
    if not left:
        return "time left: unknown until a trial runs and its steps are timed"
    parts = ", ".join(f"{name} {duration(seconds)}" for name, seconds in left.items())
    total = duration(sum(left.values()))
    return f"time left: about {total} ({parts}) with {survey.at_once} at a time"


def _running(trial: TrialStatus) -> str:
    record = trial.status
    host = f" on {record['host']}" if record.get("host") else ""
    figures = (record.get("figures") or {}) | (record.get("evaluation") or {})
    parts = [f"{trial.path} running{host}: step {record['global_step']}/{trial.steps}"]
    parts += [
        f"{name} {value:.4g}"
        for name, value in figures.items()
        if name != "global_step" and value is not None
    ]
    note = f"; {record['note']}" if record.get("note") else ""
    return ", ".join(parts) + note


def _problem(trial: TrialStatus) -> str:
    log = (f"    {line}" for line in trial.log_tail)
    return "\n".join([f"{trial.path} {trial.state}: {trial.status['reason']}", *log])


def line(survey: Survey) -> str:
    """Returns the survey in a line: states by stage, the time left, some of the running trials."""
    parts = []
    for stage in survey.stages:
        counts = survey.counts(stage)
        states = (f"{counts[name]} {name}" for name in COLUMNS if counts[name])
        parts.append(" ".join([stage, *states]))
    running = [_running(trial) for trial in survey.running.values()]
    return "; ".join(
        [", ".join(parts), time_left(survey), *_listed("running", running, _IN_A_LINE)]
    )


def duration(seconds: float) -> str:
    """Returns a time as people say it: '80 s', '12 min', '3.2 h', '5.0 days'."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    if seconds < 172_800:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 86_400:.1f} days"
