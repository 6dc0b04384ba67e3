"""A scheduler with stub jobs, of this host or of an engine."""

import pytest

from sweeps.launchers.protocol import State
from sweeps.monitoring.progress import Progress
from sweeps.records import (
    code_snapshot,
    lease,
    status,
    submissions,
)
from sweeps.scheduling import places, submitter
from sweeps.scheduling import scheduler as schedulers
from sweeps.scheduling.scheduler import Scheduler
from tests.sweeps.conftest import begin_stage, change_lease
from tests.sweeps.simulation import referee


class Stub:
    """A host, or an engine, whose jobs claim and end real trials at once, without training.

    ends: how, (outcome, reason) of each in turn; 'done' once they are used up. lost: what is left,
    'log' or 'mark', of each job that ends before it claims a trial.
    """

    place = {}  # noqa: RUF012

    def __init__(self, is_this_host):
        self.is_this_host = is_this_host
        self.ends, self.lost, self.taken, self.batches, self.slots = [], [], [], [], 1
        self.running = set()  # handles of jobs of an earlier driver
        self.cancelled = []

    def capacity(self):
        return self.slots

    def find(self, batch):
        return [f"{batch.name}-{index}" for index in range(batch.size)]

    def submit(self, batch):
        self.batches.append(batch)
        for index in range(0, batch.size, batch.sharing):
            trace = self.lost.pop(0) if self.lost else None
            if trace is None:
                self._work(batch, index)
            elif trace == "log":
                batch.log(index).write_text("no such module")
            elif trace == "mark":
                submissions.note_start(batch.file, index)
            elif trace == "refusal":
                batch.refuse(index, "no data here")
        return self.find(batch)[:: batch.sharing]

    def _work(self, batch, index):
        root = batch.file.parents[1]
        for path in batch.jobs[index]:
            if status.recorded(root / path)["state"] == "done":
                continue
            self.taken.append(path)
            attempt = lease.claim(root / path)
            batch.note_claim(index, path)
            outcome, reason = self.ends.pop(0) if self.ends else ("done", None)
            if outcome == "killed":
                change_lease(attempt, pid=2**22 + 1)
                return
            status.write(root / path, outcome, reason=reason)
            is_full = str(reason).startswith("disk full")
            attempt.end(outcome, error=reason, retry=not is_full, is_disk_full=is_full)
            if outcome != "done":
                return
        batch.note_claim(index, submissions.CLAIMS_END)

    def status(self, handles):
        return {h: State.RUNNING if h in self.running else State.GONE for h in handles}

    def cancel(self, handles):
        self.cancelled += handles

    def close(self):
        pass


@pytest.fixture
def make_scheduler(make_study, monkeypatch):
    """Returns a function that makes a scheduler of stub jobs on a study of trials on disk.

    Jobs of this host share their trials, those of an engine have one each.
    """
    monkeypatch.setattr(schedulers, "_POLL_S", 0.01)
    monkeypatch.setattr(schedulers, "_WATCH_HERE_S", 0.05)
    monkeypatch.setattr(submitter, "_PAUSE_S", 0.05)
    monkeypatch.setattr(code_snapshot, "take", lambda directory, modules: directory)
    is_busy = places.Places.is_busy.fget

    def judged(judged_places):
        assert referee.misplaced(judged_places) == []
        return is_busy(judged_places)

    monkeypatch.setattr(places.Places, "is_busy", property(judged))

    def make(points=3, is_this_host=True, **changes):
        launcher = "local" if is_this_host else "slurm"
        settings = {"protocol": "grid", "variants": "standard", "points": points, **changes}
        made = make_study(launcher=launcher, **settings)
        trials = begin_stage(made, "grid")
        scheduler = Scheduler(made, Progress(), lambda: False, Stub(is_this_host))
        scheduler.poll_s = 0.01
        scheduler.progress.stage("grid", trials, made.directory)
        return scheduler, trials

    return make
