"""Jobs whose heartbeat stands still, and hosts that sleep: who is ended, and what counts."""

import os
import signal
import time

import pytest

from sweeps.records import lease, status
from tests.sweeps.chaos import equality
from tests.sweeps.conftest import Drivers

LEASE_S = 6.0
AWAY_S = 8.0
ENDED = "silent for too long"


@pytest.fixture
def run(tmp_path, data_dir, stub_environment):
    """Drivers of one trial of 12 seconds whose leases last LEASE_S; nothing is trained."""
    variables = stub_environment(STUB_UPDATE_S="0.1", ATTNPERF_LEASE_S=str(LEASE_S))
    made = Drivers(tmp_path, data_dir, variables)
    made.settings(points=1, steps=120, eval_every=60, **{"local.workers": 1})
    yield made
    made.close()


def _worker(run, wait_until, attempt=1):
    """Returns the process that trains the trial as its attempt of that number, once it has noted
    its claim: without one its trial is put back, and no kill is counted."""

    def pid():
        trains = status.recorded(run.trial(0))["state"] == "running"
        claims = "".join(file.read_text() for file in run.study.glob("jobs/*.claims"))
        is_latest = lease.latest(run.trial(0)) == claims.count("trial_") == attempt
        return is_latest and trains and run.worker(0)

    return wait_until(pid)


def _stopped(pids, seconds):
    """Stops processes for a while, all at once."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(seconds)
    for pid in pids:
        os.kill(pid, signal.SIGCONT)


@pytest.mark.slow
def test_a_driver_that_was_away_ends_no_job(run, wait_until):
    """As a laptop that sleeps, with driver and job, or a driver that is paused."""
    driver = run.run()
    job = _worker(run, wait_until)
    for pids in ([driver.pid, job], [driver.pid]):
        _stopped(pids, AWAY_S)
        time.sleep(2.0)
    shown = run.finish(driver)
    assert ENDED not in shown
    assert equality.outcomes(run.trial(0)) == ["done"]


@pytest.mark.nightly
def test_a_job_that_hangs_is_ended_and_its_trial_given_up_after_three(run, wait_until):
    driver = run.run()
    for attempt in (1, 2, 3):
        os.kill(_worker(run, wait_until, attempt), signal.SIGSTOP)
    shown = run.finish(driver, 1)
    assert shown.count(ENDED) == 3
    assert "0 failures, 3 kills" in shown
    assert equality.outcomes(run.trial(0)) == ["killed"] * 3
