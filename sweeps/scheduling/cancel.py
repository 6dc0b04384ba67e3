"""`python -m sweeps cancel`: every trial and evaluation of a study stopped, wherever it runs."""

import pathlib
import time
from typing import Any

from attention.common import files
from sweeps.launchers.protocol import EngineError, State
from sweeps.records import layout, submissions
from sweeps.records.submissions import Batch
from sweeps.scheduling import engines
from sweeps.study import config


def cancel(directory: pathlib.Path) -> str:
    """Marks the study as cancelled and cancels its jobs; returns a report.

    Jobs that cannot be told notice the mark at their next heartbeat, whatever engine they run on;
    `resume`, `run` or `evaluate` takes the mark away, where it is from before. A study that is
    complete is marked, too: a run may be preparing to extend it.

    Raises ValueError if the directory holds no study, or its study.json is damaged, and
    EngineError if an engine cannot be reached: a study is marked by then, and the jobs of other
    engines are withdrawn. What else is damaged is passed over, with a warning.
    """
    if (directory / layout.STUDY).exists():
        mark = directory / submissions.CANCELLED
        try:
            layout.write_json(mark, {"cancelled_at": time.time()})
        except OSError as error:
            raise ValueError(
                f"{mark} cannot be written: {error.strerror or error}. No job was told to stop: "
                "make room and permission there, and cancel again"
            ) from error
    settings = config.completed(layout.study_record(directory)["config"])
    cancelled = _cancel_jobs(directory, settings, list(submissions.batches(directory, config.warn)))
    return (
        f"{directory} is cancelled: {cancelled} jobs withdrawn; those that run save first. "
        f"Continue with: python -m sweeps resume {files.quoted(directory)}"
    )


def _cancel_jobs(directory: pathlib.Path, settings: dict[str, Any], batches: list[Batch]) -> int:
    """Cancels the jobs that engines may still have; returns their number.

    Raises EngineError, at the end, if an engine cannot be reached.
    """
    known, errors = engines.Engines(settings, directory, say=config.warn), []
    jobs = {handle: batch for batch in batches for handle in batch.handles or ()}
    for batch in batches:
        if batch.handles is None:  # by its name: its submission was cut short
            try:
                jobs |= dict.fromkeys(known.of(batch).find(batch) or (), batch)
            except EngineError as error:
                errors.append(str(error))
    states = known.status(jobs)
    living = {handle: jobs[handle] for handle in jobs if states[handle] is not State.GONE}
    try:
        known.cancel(living)
    except EngineError as error:
        errors.append(str(error))
    if errors:
        raise EngineError("; ".join(errors))
    return len(living)
