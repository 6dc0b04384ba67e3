"""`python -m sweeps cancel`: every trial of a study saved and stopped, wherever it runs."""

import contextlib
import os
import pathlib
import signal
import time
from typing import Any

from sweeps.launchers import table as launchers
from sweeps.launchers.protocol import Launcher
from sweeps.records import layout, lease, study_reader
from sweeps.records import submissions as jobs


def cancel(directory: pathlib.Path) -> str:
    """Marks the study as cancelled, cancels its jobs, stops this host's workers; returns a report.

    Workers on other hosts notice the mark at their next heartbeat, whatever engine they run on;
    `resume` or `run` takes the mark away. A study that is complete stays as it is.

    Raises ValueError where the directory holds no study, or a record in it is damaged, EngineError
    where the engine cannot be reached (the mark is there by then).
    """
    record = layout.study_record(directory)
    if study_reader.Surveyor(directory).look().complete:
        return f"{directory} is complete: every trial has ended, and there is nothing to cancel"
    layout.write_json(directory / jobs.CANCELLED, {"cancelled_at": time.time()})
    cancelled = _cancel_jobs(directory, record["config"])
    stopped = len({_stop_worker(path) for path in _leases(directory)} - {None})
    return (
        f"{directory} is cancelled: {cancelled} jobs withdrawn, {stopped} workers of this host "
        f"told to save. Continue with: python -m sweeps resume {directory}"
    )


def _cancel_jobs(directory: pathlib.Path, settings: dict[str, Any]) -> int:
    """Cancels what engines may still have; returns how many jobs that is."""
    by_launcher: dict[str, list[jobs.Submission]] = {}
    for submission in jobs.submissions(directory):
        by_launcher.setdefault(submission.launcher, []).append(submission)
    count = 0
    for name, submissions in by_launcher.items():
        engine = launchers.module(name).launcher(settings, directory.resolve())
        try:
            handles = [handle for one in submissions for handle in _handles(engine, one)]
            states = engine.status(handles)
            alive = [handle for handle in handles if states[handle] != "gone"]
            if alive:
                engine.cancel(alive)
            count += len(alive)
        finally:
            engine.close()
    return count


def _handles(engine: Launcher, submission: jobs.Submission) -> list[str]:
    """Returns a batch's handles, by its name where its submission was cut short."""
    known = submission.handles
    return known if known is not None else engine.find(submission.batch) or []


def _leases(directory: pathlib.Path) -> list[pathlib.Path]:
    """Returns the last attempts of trials whose worker is alive."""
    found = []
    for stage in layout.study_record(directory)["stages"]:
        for row in layout.planned(directory, stage) or []:
            trial = directory / row["path"]
            attempt = trial / layout.ATTEMPTS / str(lease.latest(trial))
            if attempt.name != "0" and lease.is_alive(attempt):
                found.append(attempt)
    return found


def _stop_worker(attempt: pathlib.Path) -> int | None:
    """Tells a worker of this host to save; returns its process, None where there was none."""
    record, here = layout.read_json(attempt / lease.LEASE), lease.identity()
    if any(record[key] != here[key] for key in ("boot_id", "pid_namespace")):
        return None
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(record["pid"], signal.SIGTERM)
        return int(record["pid"])
    return None
