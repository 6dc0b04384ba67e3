"""The driver's real code against a simulated cluster, and faults planted in it, each found."""

import io
import os
import re

import pytest

from sweeps.launchers import table as launchers
from sweeps.launchers.protocol import State
from sweeps.records import clock, lease, status
from sweeps.scheduling import retry_policy
from tests.sweeps.simulation import engine, environment, simulate

# About as bad as a cluster can be in which a study of 100 trials still ends within a day.
BAD = {
    "killed": 0.1,
    "preempted": 0.2,
    "asleep": 0.1,
    "started_twice": 0.1,
    "forgotten": 0.05,
    "killed_in_step": 0.03,
    "stopped_in_step": 0.03,
    "node_lost_per_hour": 0.1,
    "engine_away_per_hour": 1.0,
    "driver_dies_in_submit": 0.02,
    "answer_lost": 0.1,
    "poison": 0.03,
    "beat_s": 45.0,
    "limit_h": 24.0,
}

# Where the same study ends within two hours.
CALM = dict.fromkeys(
    ("asleep", "node_lost_per_hour", "engine_away_per_hour", "driver_dies_in_submit", "poison"), 0.0
) | {"limit_h": 4.0, "crashes": 0, "killed_in_step": 0.0, "stopped_in_step": 0.0}


def run(seed=0, trials=100, **changes):
    """Returns the result of a bad cluster's study."""
    return simulate.simulate(trials, 20, seed, **{**BAD, **changes})


def test_nothing_is_lost_or_completed_twice():
    before = (os.stat, os.replace, io.open, open, clock.clock, launchers.launcher_class)
    result = run(1)
    assert result.violations == []
    assert sum(result.counts.values()) == result.trials
    assert set(result.counts) <= {"done", "failed"}
    assert result.drivers > 3
    assert {"killed", "preempted", "started twice", "stop within a step"} <= set(result.faults)
    # The real things have returned.
    assert before == (os.stat, os.replace, io.open, open, clock.clock, launchers.launcher_class)


def test_file_operations_per_trial_do_not_grow_and_a_seed_says_everything():
    """The same cluster, twice the trials: only what is done per poll weighs less."""
    small, again, large = (
        simulate.simulate(trials, 20, 0, crashes=1, beat_s=45.0) for trials in (100, 100, 200)
    )
    assert small.violations == large.violations == []
    assert large.operations_per_trial < 1.1 * small.operations_per_trial
    assert (small.hours, small.operations) == (again.hours, again.operations)
    assert small.faults == again.faults


@pytest.mark.parametrize("seed", [4, 8])
def test_jobs_that_sleep_between_reading_and_claiming_or_writing(seed):
    """Before their remedies, 4 cut a published CSV and 8 completed a trial twice."""
    changes = {"stopped_in_step": 0.05, "started_twice": 0.5, "answer_lost": 0.0}
    calm = {"crashes": 0, "engine_away_per_hour": 0.0, "beat_s": 45.0}
    assert simulate.simulate(200, 40, seed, **changes, **calm).violations == []


def _status_without_unknown(engine_under_way, handles):
    states = STATUS(engine_under_way, handles)
    return {h: State.GONE if s is State.UNKNOWN else s for h, s in states.items()}


STATUS = engine.Engine.status
CLOCK, POLICY = environment.SimulatedClock, retry_policy.RetryPolicy


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("place", "name", "fault", "found", "changes"),
    [
        (engine.Engine, "status", _status_without_unknown, "jobs at an engine that takes 20", {}),
        (
            *(lease.Attempt, "check", lambda self: None),
            *("while . has the trial|attempts lack the evaluation", {"asleep": 0.5}),
        ),
        (lease, "is_alive", lambda attempt: False, "after a heartbeat of attempt", {}),
        (lease, "EXPIRES_AFTER_S", 1e9, "the study does not end", CALM),
        (
            *(CLOCK, "server_time", lambda self, folder: self.time()),
            *("after a heartbeat of attempt|does not end", {}),
        ),
        (engine.Engine, "find", lambda self, batch: None, "jobs at an engine that takes 20", {}),
        (POLICY, "may_retry", lambda self, trial: False, "ended as failed, not done", {}),
    ],
    ids=[
        *("unknown is gone", "writes unchecked", "every lease is dead", "old heartbeats are alive"),
        *("own clock for heartbeats", "lost answers are refusals", "killed once and given up"),
    ],
)
def test_a_planted_fault_is_found(monkeypatch, place, name, fault, found, changes):
    monkeypatch.setattr(place, name, fault)
    try:
        violations = run(3, **changes).violations
    except ValueError as error:  # the driver refuses what the fault has left
        violations = [str(error)]
    assert any(re.search(found, text) for text in violations), violations[:3]


def test_done_stays_done_whatever_a_job_that_slept_writes_after(tmp_path):
    """Found by the simulation: stopped between its check and its write, awake after the end."""
    lease.claim(tmp_path).end("killed")
    second = lease.claim(tmp_path)
    status.write(tmp_path, "done", global_step=3)
    second.end("done")
    for state in ("running", "pending", "failed"):
        status.write(tmp_path, state, global_step=2)
        assert status.read(tmp_path)["state"] == "done"
