"""Trials: directories, ids, programs and records on disk, and how often one is tried again."""

import dataclasses
import types

import pytest

from sweeps.records import attempts, layout, status, submissions
from sweeps.scheduling import cancel
from sweeps.scheduling.retry_policy import Next, RetryPolicy
from sweeps.study import study, study_directory, trial
from tests.sweeps.conftest import begin_attempt, begin_stage, resolve, trial_ids


@pytest.mark.parametrize(
    "changes", [{"points": 9, "seeds": 5}, {"first_seed": 1, "seeds": 1, "tuning_seeds": 1}]
)
def test_trial_numbers_never_move(changes):
    """Trials stay where they are when points or seeds are added; later seeds keep their numbers."""
    usual = {"points": 3, "seeds": 2, "tuning_seeds": 2}
    before, after = trial_ids(resolve(**usual)), trial_ids(resolve(**{**usual, **changes}))
    fewer, more = sorted((before, after), key=len)
    assert fewer.items() < more.items()


def test_a_trial_s_directory():
    assert resolve(first_seed=997, seeds=2)
    assert layout.trial_path("tune", "laser", "digits_vit", 3, 1) == (
        "tune/laser/digits_vit_jax/trial_3002"
    )
    with pytest.raises(ValueError, match="seeds run from 0 to 999"):
        layout.trial_path("tune", "standard", "digits_vit", 0, 1000)


@pytest.mark.parametrize(
    ("changes", "same_id", "same_program"),
    [
        ({"study": "other", "stage": "x", "point": 9}, True, True),
        ({"seed": 1}, False, True),
        ({"steps": 3}, False, True),
        ({"variant": "laser"}, False, False),
        ({"kernel": "jax_xla"}, False, False),
        ({"compute_dtype": "bfloat16"}, False, False),
        ({"matmul_precision": "float32"}, False, False),
        ({"eval_every": 1}, False, True),
        ({"mesh": (4, 2, 1)}, True, False),
        ({"remat": True}, True, False),
        ({"loss_chunk_tokens": 4096}, True, False),
        ({"microbatches": 4}, True, False),
        ({"checkpoint_every": 100}, True, True),
        ({"diagnostics": 5}, True, True),
        ({"algoperf_dir": "/elsewhere"}, True, True),
    ],
)
def test_ids_and_programs_follow_what_is_computed(changes, same_id, same_program):
    first = resolve().trials("tune")[0]
    other = dataclasses.replace(first, **changes)
    assert (other.id == first.id) == same_id
    assert (other.program == first.program) == same_program


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": 4}, r"trial\.json: id .* does not belong to its content"),
        ({"schema": 3}, "its id is of schema 3.*Choose another --config.exp"),
        ({"mesh": 5}, "is not a trial record"),
        (None, "is not a trial record"),
    ],
)
def test_record_on_disk_is_checked(tmp_path, changes, message):
    record = resolve().trials("tune")[0]
    layout.write_json(tmp_path / layout.TRIAL, record.to_json())
    assert trial.read(tmp_path) == record
    content = [] if changes is None else {**record.to_json(), **changes}
    layout.write_json(tmp_path / layout.TRIAL, content)
    with pytest.raises(ValueError, match=message):
        trial.read(tmp_path)


def test_a_study_with_settings_of_another_version_is_refused_and_can_be_cancelled(make_study):
    made = make_study()
    study_directory.prepare(made)
    record = layout.study_record(made.directory)
    record["config"] |= {"pack": 4, "local": {**record["config"]["local"], "packed": True}}
    layout.write_json(made.directory / layout.STUDY, record)
    match = "local.packed, pack. Choose another --config.experiment_dir"
    with pytest.raises(ValueError, match=match):
        study.from_record(record, made.directory)
    with pytest.raises(ValueError, match=match):
        study_directory.prepare(made)
    cancel.cancel(made.directory)
    assert submissions.is_cancelled(made.directory)


def test_what_ids_leave_out_may_change_until_a_trial_is_finished(make_study):
    """A trial that failed is tried again, perhaps because of the change."""
    changes = {"workload": "pydoc_lm", "points": 4, "variants": "standard", "seeds": 1}
    made = make_study(**changes)
    trials = begin_stage(made)
    states = ("pending", "failed", "diverged", "done")
    for record, state in zip(trials, states, strict=True):
        layout.write_json(made.directory / record.path / layout.STATUS, {"state": state})
    again = make_study(**changes, remat=True, checkpoint_every=8, **{"mesh.data": 1})
    standing = begin_stage(again)
    assert [record.id for record in standing] == [record.id for record in trials]
    after, before = (True, 8, 1), (False, 4, 0)
    changed = [(new.remat, new.checkpoint_every, new.mesh[0]) for new in standing]
    assert changed == [after, after, before, before]
    assert [trial.read(again.directory / new.path) for new in standing] == standing


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
def retried(tmp_path):
    """A trial with a function that adds an attempt to it."""
    directory = tmp_path / "compare/laser/digits_vit_jax/trial_1"

    def attempt(outcome, step, **fields):
        made = begin_attempt(directory, resumed=step)
        state = "pending" if outcome == "preempted" else "failed"
        status.write(directory, state, global_step=step, reason="as told")
        made.end(outcome, **fields)

    path = str(directory.relative_to(tmp_path))
    return types.SimpleNamespace(path=path, root=tmp_path, attempt=attempt)


def _run(retried, max_attempts=3, outcomes=("failed",), step=0, most=40, **policy):
    """Runs a trial whose attempts end as told, again and again; returns how many there were."""
    decides = RetryPolicy(retried.root, max_attempts, **policy)
    decides.begin(retried)
    for count in range(1, most + 1):
        retried.attempt(outcomes[(count - 1) % len(outcomes)], step)
        if decides.decide(retried)[0] is Next.GIVE_UP:
            return count
    return most


@pytest.mark.parametrize("max_attempts", [1, 3])
def test_a_crash_at_one_step_is_tried_max_attempts_times_in_each_run(retried, max_attempts):
    assert _run(retried, max_attempts) == max_attempts
    # Another step: failures of the earlier run are not in this streak.
    assert _run(retried, max_attempts, step=100) == max_attempts
    assert _run(retried, max_attempts, step=100) == max_attempts


def test_a_broken_trial_on_a_queue_that_preempts_is_given_up(retried):
    assert _run(retried, outcomes=("preempted", "failed")) == 6  # of which three failed
    assert _run(retried, outcomes=("preempted",)) == 40
    assert _run(retried, outcomes=("preempted", "killed"), max_kills=4) == 8


def test_jobs_without_an_attempt_are_counted_until_the_trial_makes_progress(retried):
    decides = RetryPolicy(retried.root, 2)
    decides.begin(retried)
    assert [decides.count_unrecorded(retried, excused=True) for _ in range(3)] == [1, 2, 3]
    assert decides.count_unrecorded(retried) == 1
    retried.attempt("preempted", 0)  # no progress
    assert decides.may_retry(retried)
    assert decides.count_unrecorded(retried) == 2
    assert decides.decide(retried)[0] is Next.GIVE_UP
    retried.attempt("preempted", 4)
    assert decides.decide(retried)[0] is Next.AGAIN
    assert decides.count_unrecorded(retried, excused=True) == 1


def test_bad_input_is_not_tried_again_in_one_run(retried):
    decides = RetryPolicy(retried.root, 3)
    decides.begin(retried)
    retried.attempt("failed", 0, error="no such column", retry=False)
    assert decides.decide(retried)[0] is Next.GIVE_UP
    again = RetryPolicy(retried.root, 3)
    again.begin(retried)
    assert again.decide(retried)[0] is Next.AGAIN


def test_the_end_of_a_log(tmp_path):
    (tmp_path / "log.txt").write_bytes(b"1\n\xff2\n3\n")
    assert attempts.tail(tmp_path / "log.txt", 2) == ["\ufffd2", "3"]
    assert attempts.tail(tmp_path / "absent") == attempts.log_tail(tmp_path) == []
    assert "cannot be read" in attempts.tail(tmp_path)[0]
