"""Trials: directories, ids, records on disk, retries, and points that validation chooses."""

import dataclasses
import math
import shutil
import types

import pytest

from sweeps.records import attempts, layout, lease, measurements, status, submissions
from sweeps.scheduling import engines
from sweeps.scheduling.retry_policy import Next, RetryPolicy
from sweeps.study import selection, study, study_directory, trial
from tests.sweeps.conftest import (
    begin_attempt,
    begin_stage,
    end_trial,
    evaluations,
    resolve,
    trial_ids,
)


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
    engines.cancel(made.directory)
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


def test_the_best_of_values_by_hand():
    """nan and infinities are passed over; ties go to the first."""
    values = [0.5, 0.8, 0.8, math.nan, math.inf]
    assert selection.best_index(values, "max") == 1
    assert selection.best_index(values, "min") == 0
    assert selection.best_index(values[3:], "max") is None
    losses = selection.point_losses({0: [0.5, None, 0.25], 1: [None], 2: []}, "max")
    assert losses == {0: -0.25, 1: math.inf}


@pytest.mark.parametrize("lost", [None, math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("mode", ["max", "min"])
def test_selection_by_hand(lost, mode):
    """A lost seed counts as the worst value; ties go to the lower point."""
    assert selection.best_point({2: [0.3, 0.5], 1: [0.4], 3: []}, mode) == 1
    assert selection.best_point({0: [lost, 0.2, 0.4], 1: [0.3, 0.3, 0.3]}, mode) is not None
    assert selection.best_point({0: [lost], 1: [0.3]}, mode) == 1
    assert selection.best_point({0: [0.5, lost], 1: [lost, 0.5], 2: []}, mode) is None


def _value(directory):
    return selection.trial_value(directory, "validation/accuracy", "max")


def test_a_stale_running_over_done_is_selected_by(make_trial):
    """A worker that was stopped between its check and its write has put `running` over `done`."""
    directory = make_trial()
    end_trial(directory, 0.9, "running")
    lease.claim(directory).end("done")
    assert _value(directory) == 0.9


@pytest.mark.parametrize(
    ("lost", "lacking"),
    [("1", "4 is|updates 4,"), ("2", "8, 12"), ("1/measurements.jsonl", "updates 4,")],
)
def test_a_value_is_of_every_evaluation_that_was_planned(make_trial, lost, lacking):
    """Attempt 1 evaluated once, 0.9, attempt 2 the rest: what is lost of them is named, and the
    best of the others is not taken for the trial's."""
    directory = make_trial()
    begin_attempt(directory, evaluations([0.9])).end("preempted")
    begin_attempt(directory, evaluations([0.5, 0.6], 2), resumed=4).end("done")
    status.write(directory, "done", global_step=12)
    assert _value(directory) == 0.9
    for path in (directory / layout.ATTEMPTS).glob(lost):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    with pytest.raises(ValueError, match=f"{directory} is done, but its attempts lack.*{lacking}"):
        _value(directory)


def test_what_is_done_and_cannot_be_read_is_not_passed_over(make_trial):
    directory = make_trial()
    assert _value(directory) is None  # nobody began it
    end_trial(directory, 0.9)
    resumed = directory / layout.ATTEMPTS / "1" / measurements.RESUMED
    resumed.write_text("{}")
    with pytest.raises(ValueError, match=f"{resumed} is damaged"):
        _value(directory)


@pytest.fixture
def tuned(make_study):
    """Returns a function that ends a study's tuning with accuracies by (point, seed)."""

    def tune(values, protocol="tune_then_compare", **changes):
        points = 1 + max(point for point, _ in values)
        changes = {"points": points, "tuning_seeds": 3, "protocol": protocol, **changes}
        made = make_study(**changes)
        for record in begin_stage(made):
            value = values.get((record.point, record.seed), 0.1)
            state = value if isinstance(value, str) else "done"
            end_trial(made.directory / record.path, 0.99 if state == value else value, state)
        return made

    return tune


def _begin(made):
    """Selects and lets the comparison begin; returns the selection."""
    chosen = study_directory.select(made)
    study_directory.materialise(made, "compare", made.trials("compare", chosen))
    return chosen


def test_a_point_that_lost_two_of_three_seeds_is_not_selected(tuned):
    chosen = _begin(tuned({(0, 0): "diverged", (0, 1): 0.9, (0, 2): "failed", (1, 0): 0.2}))
    assert chosen["points"] == {"standard": 1, "laser": 1}
    assert [path.rpartition("_")[2] for path in chosen["lost"]] == ["1", "3"]


def test_where_every_point_lost_its_seeds_nothing_is_selected(tuned):
    lost = {(0, seed): "diverged" for seed in range(3)}
    made = tuned(lost, variants="laser,standard+gate", baseline="laser")
    with pytest.raises(ValueError, match=f"{made.directory}: no point of standard ended"):
        study_directory.select(made)


@pytest.mark.parametrize("lost", ["laser", "standard", "both"])
def test_a_variant_that_lost_all_seeds_of_its_own_is_left_out(make_study, lost):
    """The others are compared, unless it is the baseline."""
    made = make_study(points=2, protocol="tune_each", variants="standard,laser,diff")
    for record in begin_stage(made):
        state = "diverged" if record.variant == lost or lost == "both" else "done"
        end_trial(made.directory / record.path, 0.5, state)
    if lost != "laser":
        names = "standard" if lost == "standard" else "standard, laser, diff"
        with pytest.raises(ValueError, match=f"no point of {names} ended"):
            study_directory.plan(made, "compare")
        return
    trials, chosen = study_directory.plan(made, "compare")
    assert chosen["points"] == {"standard": 0, "diff": 0}
    assert {trial.variant for trial in trials} == {"standard", "diff"}


@pytest.mark.parametrize("protocol", ["tune_then_compare", "tune_each"])
def test_a_comparison_that_has_begun_keeps_its_points(tuned, protocol):
    """Point 1 was chosen while point 0 had failed; by its repair validation would choose that."""
    repaired = {(0, seed): 0.9 for seed in range(3)}
    made = tuned({(0, 0): "failed", (0, 1): "failed", (1, 0): 0.2}, protocol)
    before = _begin(made)
    assert before["points"] == {"standard": 1, "laser": 1}
    made = tuned(repaired | {(1, 0): 0.2}, protocol)
    assert _begin(made)["points"] == before["points"]
    selection = made.directory / layout.SELECTION
    selection.write_text('{"points": {"standard": 1,')
    with pytest.raises(ValueError, match="remove it to choose anew"):
        study_directory.select(made)
    selection.unlink()
    assert _begin(made)["points"] == {"standard": 0, "laser": 0}


def test_points_and_variants_added_to_a_comparison(tuned):
    """More variants take its point, also where none of the earlier ones is left."""
    _begin(tuned({(0, 0): 0.2, (2, 0): 0.3, (2, 1): 0.3}))
    more = tuned({(0, 0): 0.9, (0, 1): 0.9, (2, 0): 0.3}, variants="standard,laser,diff")
    assert study_directory.select(more)["points"] == dict.fromkeys(("standard", "laser", "diff"), 2)
    others = tuned({(0, 0): 0.9, (0, 1): 0.9, (2, 0): 0.3}, variants="diff", baseline="diff")
    assert study_directory.select(others)["points"] == {"diff": 2}


def test_a_variant_that_is_dropped_leaves_its_point_behind(tuned):
    """Also if the study no longer has such a point."""
    made = tuned({(0, 0): 0.5, (2, 0): 0.1}, "tune_each")
    layout.write_json(made.directory / layout.SELECTION, {"points": {"standard": 0, "laser": 2}})
    fewer = tuned({(0, 0): 0.5, (1, 0): 0.1}, "tune_each", variants="standard,diff")
    study_directory.prepare(fewer)
    assert study_directory.select(fewer)["points"] == {"standard": 0, "diff": 0}
