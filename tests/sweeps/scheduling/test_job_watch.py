"""Jobs of this host that are silent: who is ended."""

import os
import signal
import time

import pytest

from sweeps.records import clock, lease, submissions
from sweeps.scheduling import places
from tests.sweeps.conftest import change_lease


@pytest.mark.parametrize(
    ("changes", "ahead_s", "beats", "is_ended"),
    [
        # The file server's clock is set: a job that beats is left alone, one that hangs is ended.
        *(({}, ahead_s, 1, False) for ahead_s in (-86400, -300, 0, 300, 86400)),
        *(({}, ahead_s, 0, True) for ahead_s in (-86400, -300, 0, 300, 86400)),
        # Archivers and object stores drop empty files; a job that lives makes it again.
        ({}, 0, None, True),
        ({"boot_id": "of another host"}, 0, 0, False),  # whose process has the number of ours
        ({"boot_id": None}, 0, 0, False),
        ({"pid_namespace": "pid:[1]"}, 0, 0, False),
    ],
)
def test_a_job_of_this_host_that_is_silent_is_ended(
    make_scheduler, monkeypatch, changes, ahead_s, beats, is_ended
):
    """A job of this process is silent at the third look, though the host sleeps an hour before
    each."""
    scheduler, [trial] = make_scheduler(points=1)
    signals = []
    monkeypatch.setattr(os, "kill", lambda *arguments: signals.append(arguments))
    monkeypatch.setattr(lease, "EXPIRES_AFTER_S", 2 * lease.HEARTBEAT_EVERY_S)
    attempt = lease.claim(scheduler.root / trial.path)
    batch = submissions.new(scheduler.root, "local", [(trial.path,)], {})
    scheduler.places.jobs["x"] = places.SubmittedJob(batch, 0, {trial.path: trial})
    change_lease(attempt, **changes)
    heartbeat, began = attempt.directory / lease.HEARTBEAT, round(time.time()) + ahead_s
    for look in range(3):
        assert signals == []
        heartbeat.unlink(missing_ok=True)
        if beats is not None:
            heartbeat.touch()
            os.utime(heartbeat, (began + beats * look, began + beats * look))
        monkeypatch.setattr(clock.clock, "monotonic", lambda now=3600.0 * (look + 1): now)
        scheduler.job_watch.end_silent()
    assert signals == [(os.getpid(), signal.SIGKILL)] * is_ended
