"""Jobs that wait in an engine's queue: how long and why, and how they are submitted again."""

import pathlib
from collections.abc import Sequence

from attention import files
from attention.table import unknown
from sweeps.launchers.protocol import EngineError
from sweeps.monitoring import survey
from sweeps.records import layout, submissions
from sweeps.scheduling import engines
from sweeps.study import config


def ask(study: survey.Survey) -> engines.Engines:
    """Fills in how long and why jobs of a survey are queued; returns the engines that were asked.

    Engines that cannot be asked are named in `unanswered`. None is loaded where no job is alive.
    """
    settings = config.completed(layout.study_record(study.directory)["config"])
    asked = engines.Engines(settings, study.directory, say=study.unanswered.append)
    jobs = {handle: job.batch for handle, job in study.at_engines.items()}
    for handle, reason in asked.queued(jobs).items():
        job = study.at_engines[handle]
        job.queued_s, job.reason = study.queued_s(job.batch, job.index), reason
    study.queue_warn_s = 3600.0 * settings["queue_warn_hours"]
    return asked


def resubmit(directory: pathlib.Path, handles: Sequence[str]) -> str:
    """Withdraws jobs from their engines' queues, so that their trials are submitted again.

    Returns a report. Raises ValueError for a job that is not queued, or where the directory holds
    no study: nothing is withdrawn then. Raises EngineError where an engine cannot be reached.
    """
    study = survey.StudyReader(directory).look()
    asked = ask(study)
    if study.unanswered:
        raise EngineError("; ".join(study.unanswered))
    queued = {
        handle: job.batch for handle, job in study.at_engines.items() if job.reason is not None
    }
    for handle in handles:
        if handle not in queued:
            raise ValueError(unknown("job", handle, queued, f" in the queue of {directory}"))
    chosen = {handle: queued[handle] for handle in handles}
    asked.cancel(chosen)
    submissions.withdraw(directory, chosen)
    return (
        f"{len(chosen)} jobs are withdrawn. The driver submits their trials again; if none runs, "
        f"start one: python -m sweeps resume {files.quoted(directory)}"
    )
