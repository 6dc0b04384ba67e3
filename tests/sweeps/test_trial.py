"""Trials: their directories, ids and programs, and their records on disk."""

import dataclasses

import pytest

from sweeps.records import layout, submissions
from sweeps.scheduling import cancel
from sweeps.study import study, study_directory, trial
from tests.sweeps.conftest import begin_stage, resolve, trial_ids


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
