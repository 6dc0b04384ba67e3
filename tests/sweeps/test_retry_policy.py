"""How often a trial is tried again: attempts' ends counted, by hand and on disk."""

import types

import pytest

from sweeps.records import attempts, status
from sweeps.scheduling.retry_policy import Next, RetryPolicy
from tests.sweeps.conftest import begin_attempt


@pytest.mark.parametrize(
    ("ends", "expected"),
    [
        ([], (0, 0)),
        ([("failed", 0)] * 3, (3, 0)),
        ([("failed", 0), ("killed", 0), ("failed", 0)], (2, 1)),
        ([("failed", 0)] * 3 + [("failed", 100)], (1, 0)),
        ([("failed", 0)] * 3 + [("preempted", 0), ("failed", 100)], (1, 0)),
        ([("failed", 0), ("preempted", 0)] * 30, (30, 0)),
        ([("preempted", 0)] * 30, (0, 0)),
        ([("failed", 8), ("killed", None), ("failed", 8)], (2, 1)),  # died before it could say
        ([("killed", None)] * 4, (0, 4)),
        ([("failed", 0), ("killed", None), ("failed", 8)], (1, 1)),
        ([("lost", 0), ("lost", 0)], (0, 2)),  # a worker that hangs each time
        ([("failed", 50), ("failed", 100), ("failed", 50)], (3, 0)),  # its checkpoint was damaged
        ([("failed", 0)] * 2 + [("done", 0)], (0, 0)),
        ([("done", 0)] + [("failed", 0)] * 2, (2, 0)),  # of an evaluation that is made again
    ],
)
def test_failures_since_the_last_progress(ends, expected):
    assert attempts.count_failures(reversed(ends)) == expected


# --- on disk


@pytest.fixture
def trial(tmp_path):
    """A trial with a function that adds an attempt to it."""
    directory = tmp_path / "compare/laser/digits_vit_jax/trial_1"

    def attempt(outcome, step, **fields):
        made = begin_attempt(directory, resumed=step)
        state = "pending" if outcome == "preempted" else "failed"
        status.write(directory, state, global_step=step, reason="as told")
        made.end(outcome, **fields)

    path = str(directory.relative_to(tmp_path))
    return types.SimpleNamespace(path=path, root=tmp_path, attempt=attempt)


def _run(trial, max_attempts=3, outcomes=("failed",), step=0, most=40, **policy):
    """Runs a trial whose attempts end as told, again and again; returns how many there were."""
    decides = RetryPolicy(trial.root, max_attempts, **policy)
    decides.begin(trial)
    for count in range(1, most + 1):
        trial.attempt(outcomes[(count - 1) % len(outcomes)], step)
        if decides.decide(trial)[0] is Next.GIVE_UP:
            return count
    return most


@pytest.mark.parametrize("max_attempts", [1, 3])
def test_a_crash_at_one_step_is_tried_max_attempts_times_in_each_run(trial, max_attempts):
    assert _run(trial, max_attempts) == max_attempts
    # Another step: failures of the earlier run are not in this streak.
    assert _run(trial, max_attempts, step=100) == max_attempts
    assert _run(trial, max_attempts, step=100) == max_attempts


def test_a_broken_trial_on_a_queue_that_preempts_is_given_up(trial):
    assert _run(trial, outcomes=("preempted", "failed")) == 6  # of which three failed
    assert _run(trial, outcomes=("preempted",)) == 40
    assert _run(trial, outcomes=("preempted", "killed"), max_kills=4) == 8


def test_jobs_without_an_attempt_are_counted_until_the_trial_makes_progress(trial):
    decides = RetryPolicy(trial.root, 2)
    decides.begin(trial)
    assert [decides.count_unrecorded(trial, excused=True) for _ in range(3)] == [1, 2, 3]
    assert decides.count_unrecorded(trial) == 1
    trial.attempt("preempted", 0)  # no progress
    assert decides.may_retry(trial)
    assert decides.count_unrecorded(trial) == 2
    assert decides.decide(trial)[0] is Next.GIVE_UP
    trial.attempt("preempted", 4)
    assert decides.decide(trial)[0] is Next.AGAIN
    assert decides.count_unrecorded(trial, excused=True) == 1


def test_bad_input_is_not_tried_again_in_one_run(trial):
    decides = RetryPolicy(trial.root, 3)
    decides.begin(trial)
    trial.attempt("failed", 0, error="no such column", retry=False)
    assert decides.decide(trial)[0] is Next.GIVE_UP
    again = RetryPolicy(trial.root, 3)
    again.begin(trial)
    assert again.decide(trial)[0] is Next.AGAIN


def test_the_end_of_a_log(tmp_path):
    (tmp_path / "log.txt").write_bytes(b"1\n\xff2\n3\n")
    assert attempts.tail(tmp_path / "log.txt", 2) == ["\ufffd2", "3"]
    assert attempts.tail(tmp_path / "absent") == attempts.log_tail(tmp_path) == []
    assert "cannot be read" in attempts.tail(tmp_path)[0]
