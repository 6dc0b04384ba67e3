"""Tasks: jobs that were handed to an engine, with the trials they hold."""

import dataclasses
import pathlib
from collections.abc import Iterator, Mapping, Sequence

from sweeps.launchers.protocol import State
from sweeps.records import lease, submissions
from sweeps.study.trial import Trial


@dataclasses.dataclass
class Task:
    """A submitted job: its trials by path, and the number of each one's last attempt before it.

    `before` is None where an earlier driver submitted it: it may have begun since.
    """

    submission: submissions.Submission
    index: int
    trials: dict[str, Trial]
    before: dict[str, int] | None
    state: State = State.QUEUED

    def touched(self, root: pathlib.Path) -> bool:
        """Whether the job has claimed a trial, as far as is known."""
        if self.before is None:
            return True
        return any(lease.latest(root / path) != n for path, n in self.before.items())

    def ran(self) -> bool:
        """Whether the job was ever started: what it printed is there."""
        return self.submission.batch.log(self.index).exists()


def task(
    root: pathlib.Path, submission: submissions.Submission, index: int, trials: Sequence[Trial]
) -> Task:
    """Returns the task for job `index` of a batch."""
    by_path = {trial.path: trial for trial in trials}
    before = {path: lease.latest(root / path) for path in by_path}
    return Task(submission, index, by_path, before)


def tasks_of(
    submission: submissions.Submission, handles: Sequence[str], left: Mapping[str, Trial]
) -> dict[str, Task]:
    """Returns {handle: task} of a recorded batch for jobs with trials that are `left` to do."""
    found = {}
    for index, (handle, paths) in enumerate(zip(handles, submission.tasks, strict=False)):
        trials = [left[path] for path in paths if path in left]
        if trials:
            found[handle] = Task(submission, index, {one.path: one for one in trials}, None)
    return found


def earlier(
    root: pathlib.Path, launcher: str, left: Mapping[str, Trial]
) -> Iterator[submissions.Submission]:
    """Yields what earlier drivers submitted to an engine and holds trials that are left to do.

    Jobs of other engines are passed over: a trial's lease tells whether it still runs there.
    """
    for submission in submissions.submissions(root):
        paths = (path for task in submission.tasks for path in task)
        if submission.launcher == launcher and any(path in left for path in paths):
            yield submission


def grouped(trials: Sequence[Trial], per_job: int) -> list[tuple[Trial, ...]]:
    """Returns jobs of up to `per_job` trials that share a program, so that a job compiles once."""
    by_program: dict[object, list[Trial]] = {}
    for trial in trials:
        by_program.setdefault(trial.program, []).append(trial)
    return [
        tuple(same[start : start + per_job])
        for same in by_program.values()
        for start in range(0, len(same), per_job)
    ]
