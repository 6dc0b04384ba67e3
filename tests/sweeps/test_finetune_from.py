"""config.finetune_from: which checkpoint a trial starts from, what its id knows of it, and that its
parameters, and nothing else, are taken over."""

import dataclasses
import pathlib
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sweeps.records import layout, lease, status
from sweeps.study import selection, start, study, study_directory
from sweeps.study import trial as trials
from sweeps.training import checkpoints, train_step
from tests.sweeps.conftest import begin_stage, resolve

FINETUNED = "pydoc_lm:pydoc_returns"


def _resolved(folder, **changes):
    settings = {
        **{"experiment_dir": folder, "steps": 20, "eval_every": 10, "seeds": 2},
        **{"variants": "standard", "protocol": "grid", "points": 1},
    }
    return resolve("pydoc_lm_quick", **settings | changes)


def _record(directory, step, value):
    """Writes what a checkpoint says of its parameters."""
    folder = directory / layout.CHECKPOINTS / str(step)
    (folder / layout.CHECKPOINT_RECORD).parent.mkdir(parents=True, exist_ok=True)
    names = (".params['w']", ".optimizer['w']")
    record = {
        "trial": trials.read(directory).id,
        "shapes": dict.fromkeys(names, "float32[3]"),
        "sums": {names[0]: value, names[1]: 7},
    }
    layout.write_json(folder / layout.CHECKPOINT_RECORD, record)
    return folder


def _trained(folder, **changes):
    """Returns another study's trial directories, as if it were trained."""
    made = _resolved(folder, name="other", **changes)
    directories = []
    for number, trial in enumerate(begin_stage(made, "grid")):
        directory = made.directory / trial.path
        status.write(directory, "done", global_step=20, steps=20)
        _record(directory, 10, 1)
        _record(directory, 20, 100 + number)
        directories.append(directory)
    return directories


@pytest.fixture
def other(tmp_path):
    """Another study's directory, of seeds 0 and 1."""
    return _trained(tmp_path)[0].parents[3]


def _tuned(folder, **changes):
    return _resolved(folder, name="tuned", workload=FINETUNED, finetune_from="other", **changes)


def test_a_trial_starts_from_the_last_checkpoint_of_its_variant_and_seed(other, tmp_path):
    tuned = _tuned(tmp_path).trials("grid")
    folder = f"{other}/grid/standard/pydoc_lm_jax"
    assert [trial.start_from for trial in tuned] == [
        f"{folder}/trial_{number}/checkpoints/20" for number in (1, 2)
    ]
    # A path says the same as a name in experiment_dir.
    by_path = _resolved(tmp_path, name="tuned", workload=FINETUNED, finetune_from=str(other))
    assert by_path.trials("grid") == tuned


def test_seeds_that_there_are_not_are_taken_in_turn(other, tmp_path):
    tuned = _tuned(tmp_path, seeds=5).trials("grid")
    numbers = [pathlib.Path(trial.start_from).parents[1].name for trial in tuned]
    assert numbers == ["trial_1", "trial_2", "trial_1", "trial_2", "trial_1"]
    assert len({trial.id for trial in tuned}) == 5  # seeds still draw the order of the questions
    assert _tuned(tmp_path, first_seed=3, seeds=2).trials("grid") == tuned[3:]


def test_of_several_points_the_one_that_validation_prefers(tmp_path, monkeypatch):
    losses = dict(zip(_trained(tmp_path, points=3, seeds=1), (3.0, 2.0, 4.0), strict=True))
    monkeypatch.setattr(start.selection, "trial_value", lambda path, metric, mode: losses[path])
    (trial,) = _tuned(tmp_path, seeds=1).trials("grid")
    assert "trial_1001/" in trial.start_from


def test_the_id_knows_the_parameters_and_not_where_they_lie(other, tmp_path):
    """Nor the moments."""
    first = _tuned(tmp_path).trials("grid")[0]
    random = dataclasses.replace(first, start="", start_from="")
    moved = dataclasses.replace(first, start_from="/elsewhere/checkpoints/20")
    looked_at = dataclasses.replace(first, keep_checkpoints=5, downstream="pydoc")
    assert first.id == moved.id == looked_at.id != random.id
    folder = pathlib.Path(first.start_from)
    before = layout.read_json(folder / layout.CHECKPOINT_RECORD)
    for name, differs in ((".optimizer['w']", False), (".params['w']", True)):
        record = {**before, "sums": {**before["sums"], name: 12345}}
        layout.write_json(folder / layout.CHECKPOINT_RECORD, record)
        assert (_tuned(tmp_path).trials("grid")[0].id != first.id) == differs


def test_a_study_remembers_where_it_started(other, tmp_path):
    """It is resumed without the other study, and refuses other parameters than it began with."""
    made = _tuned(tmp_path)
    recorded = begin_stage(made, "grid")
    lease.claim(made.directory / recorded[0].path)
    _record(other / "grid/standard/pydoc_lm_jax/trial_1", 20, 5)
    with pytest.raises(ValueError, match="holds other parameters than when the study began"):
        study_directory.prepare(_tuned(tmp_path))
    shutil.rmtree(other)
    again = study.from_record(layout.study_record(made.directory), made.directory)
    assert again.trials("grid") == recorded
    assert again.starts == made.starts


def test_what_cannot_be_started_from_is_refused(other, tmp_path):
    with pytest.raises(selection.NotYetError, match="no trial of laser that is done.*standard"):
        _tuned(tmp_path, variants="standard,laser")
    absent = {"workload": FINETUNED, "finetune_from": "nothing"}
    with pytest.raises(selection.NotYetError, match="nothing is no study: .*; train it first"):
        _resolved(tmp_path, **absent)
    assert len(_resolved(tmp_path, planning=True, **absent).trials("grid")) == 2
    for changes, words in (
        ({"workload": "c4_lm:superglue"}, "its model is pydoc_lm there and c4_lm here"),
        ({"param_dtype": "bfloat16"}, "param_dtype is float32 there and bfloat16 here"),
        ({"scan_layers": True}, "scan_layers is False there and True here"),
    ):
        settings = {"workload": FINETUNED, "finetune_from": "other", **changes}
        with pytest.raises(ValueError, match=words):
            _resolved(tmp_path, name="tuned", **settings)
    directory = other / "grid/standard/pydoc_lm_jax/trial_1"
    (directory / layout.CHECKPOINTS / "20" / layout.CHECKPOINT_RECORD).write_text("{}")
    with pytest.raises(ValueError, match="is damaged: shapes"):
        _tuned(tmp_path)
    shutil.rmtree(directory / layout.CHECKPOINTS)
    with pytest.raises(ValueError, match="has no checkpoint, so there is nothing to start from"):
        _tuned(tmp_path)


def test_only_parameters_are_taken_over(other, tmp_path):
    directory = other / "grid/standard/pydoc_lm_jax/trial_1"
    shutil.rmtree(directory / layout.CHECKPOINTS)
    params = {"w": jnp.arange(3.0)}
    trained = train_step.TrainState(jnp.int32(20), params, None, {"w": params["w"]}, jnp.int32(-1))
    store = checkpoints.Checkpoints(directory / layout.CHECKPOINTS, trials.read(directory))
    store.save(20, trained, {}, {})
    store.close()
    trial = _tuned(tmp_path, seeds=1).trials("grid")[0]
    started, model_state = checkpoints.start(trial, jax.tree.map(jnp.zeros_like, params), None)
    np.testing.assert_array_equal(started["w"], [0, 1, 2])
    assert model_state is None
    with pytest.raises(ValueError, match=f"than those that the trial starts from .{'0' * 16}."):
        checkpoints.start(dataclasses.replace(trial, start="0" * 16), params, None)
