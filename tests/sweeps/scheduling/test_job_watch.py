"""Jobs of this host that are silent: who is ended, and what counts if the driver was away."""

import os
import signal
import time

import pytest

from sweeps.records import (
    clock,
    lease,
    submissions,
)
from sweeps.scheduling import places
from tests.sweeps.conftest import change_lease


def _one_job(make_scheduler, monkeypatch):
    """Returns a scheduler of one job, its attempt by this process, and the signals that it sends.

    A job is silent at the third look.
    """
    scheduler, [trial] = make_scheduler(points=1)
    signals = []
    monkeypatch.setattr(os, "kill", lambda *arguments: signals.append(arguments))
    monkeypatch.setattr(lease, "EXPIRES_AFTER_S", 2 * lease.HEARTBEAT_EVERY_S)
    attempt = lease.claim(scheduler.root / trial.path)
    batch = submissions.new(scheduler.root, "local", [(trial.path,)], {})
    scheduler.places.jobs["x"] = places.SubmittedJob(batch, 0, {trial.path: trial})
    return scheduler, attempt, signals


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
    scheduler, attempt, signals = _one_job(make_scheduler, monkeypatch)
    change_lease(attempt, **changes)
    heartbeat, began = attempt.directory / lease.HEARTBEAT, round(time.time()) + ahead_s
    for look in range(3):
        assert signals == []
        heartbeat.unlink(missing_ok=True)
        if beats is not None:
            heartbeat.touch()
            os.utime(heartbeat, (began + beats * look, began + beats * look))
        scheduler.job_watch._look_for_silent_at = 0.0
        scheduler.job_watch.end_silent()
    assert signals == [(os.getpid(), signal.SIGKILL)] * is_ended


@pytest.mark.parametrize(
    ("asked_s", "slept_s", "set_s", "is_away"),
    [
        (0.5, 0.6, 0.0, False),
        (0.5, 9.0, 0.0, False),  # a busy host
        (0.5, 16.0, 0.0, True),
        (0.5, 0.5, 900.0, True),  # the clock was set; or the host slept, its monotonic clock too
        (0.5, 0.5, -900.0, True),
        (60.0, 60.0, 0.0, False),
        (60.0, 600.0, 0.0, True),
    ],
)
@pytest.mark.parametrize("is_ended", [True, False])
def test_a_driver_that_was_away_begins_to_look_anew(
    make_scheduler, monkeypatch, asked_s, slept_s, set_s, is_away, is_ended
):
    """Two looks before, one after: the job is silent only if the driver was there all the time. A
    kill that follows its return at once is a preemption, but not one by this driver before."""
    scheduler, attempt, signals = _one_job(make_scheduler, monkeypatch)
    now, wall = [1000.0], [1000.0]

    def sleep(seconds):
        assert seconds == asked_s
        now[0] += slept_s
        wall[0] += slept_s + set_s

    monkeypatch.setattr(clock.clock, "monotonic", lambda: now[0])
    monkeypatch.setattr(clock.clock, "time", lambda: wall[0])
    monkeypatch.setattr(clock.clock, "sleep", sleep)
    scheduler.poll_s = asked_s
    for look in range(3):
        if look == 2 and not is_ended:
            scheduler._sleep()
        scheduler.job_watch._look_for_silent_at = 0.0
        scheduler.job_watch.end_silent()
    assert bool(signals) is (is_ended or not is_away)
    if is_ended:
        scheduler._sleep()

    [trial] = scheduler.places.jobs["x"].trials.values()
    scheduler.places.left = {trial.path: trial}
    job = scheduler.places.jobs.pop("x")
    job.claimed.append(trial.path)
    scheduler.job_watch.follow_up_job(job, set(), set())
    assert not (attempt.directory / lease.OUTCOME).exists()  # the process lives: another job's
    scheduler.places.watched.clear()
    change_lease(attempt, pid=2**22 + 1)
    scheduler.job_watch.follow_up_job(job, set(), set())
    assert scheduler.follow_up.policy.count_failures(trial) == (0, int(is_ended or not is_away))
