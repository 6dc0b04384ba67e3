"""Diagnostics while training: what is recorded, that nothing else changes, kills and resumes."""

import contextlib
import dataclasses
import itertools
import json
import time

import jax
import numpy as np
import pytest

from attention import registry as variants
from attention.verification import layer_statistics
from sweeps.records import layout, lease
from sweeps.study import study_directory, trial
from sweeps.training import diagnostics, loop, train_step
from tests.sweeps.chaos import equality
from workloads import catalog, registry
from workloads.base.options import Options
from workloads.base.workload import Sizes
from workloads.speech import conformer
from workloads.text.language_models import LMWorkload
from workloads.text.text_specs import TransformerSize

pytestmark = pytest.mark.slow

TINY = TransformerSize(2, 8, 16, 2, 4, vocabulary=1024, context=12)
KEYS = [
    "global_step",
    "preemption_count",
    "layer",
    "index",
    "share_below_1e-3",
    "share_below_1e-7",
    "histogram",
    "entropy",
    "entropy_share",
    "jacobian_mean",
    "jacobian_max",
    "logit_grad_norm",
    "query_grad_norm",
    "key_grad_norm",
    "value_grad_norm",
    "value_range_min",
    "value_range_median",
    "value_range_max",
    "channels",
    "floored_channels",
]


@pytest.fixture(scope="module")
def program():
    """The train step that all trials of this file share, compiled once."""
    return train_step.TrainStep(registry.make("digits_vit", variants.get("standard")), "nadamw")


class KilledError(Exception):
    """The process is no more."""


def _attempt(directory, program, data_dir, dies_after=None, stops_after=None):
    """Trains one attempt; after so many updates it dies before it saves, or is told to stop."""
    attempt, updates = lease.claim(directory), itertools.count(1)

    def stop_requested():
        update = next(updates)
        if update == dies_after:
            raise KilledError
        return update == stops_after

    run = loop.Training(trial.read(directory), attempt, program, data_dir, stop_requested)
    with contextlib.suppress(KilledError, loop.Preempted):
        run.run()
    attempt.end("over")
    return run


def _lines(directory):
    text = (directory / layout.DIAGNOSTICS).read_text()
    return [json.loads(line) for line in text.splitlines()]


def test_curves_are_the_same_with_and_without(make_trial, program, data_dir):
    off, on = make_trial(name="off"), make_trial(name="on", diagnostics=5)
    assert trial.read(off).id == trial.read(on).id
    assert trial.read(off).program == trial.read(on).program
    _attempt(off, program, data_dir)
    compilations = program.compilations
    _attempt(on, program, data_dir)
    assert program.compilations == compilations
    assert equality.curves(off) == equality.curves(on)
    heads = [(path / layout.MEASUREMENTS).read_text().splitlines()[0] for path in (off, on)]
    assert heads[0] == heads[1]
    assert not (off / layout.DIAGNOSTICS).exists()
    head, *lines = _lines(on)
    assert head == {
        "format": "attnperf-diagnostics-1",
        "histogram_edges_log10": list(layer_statistics.HISTOGRAM_EDGES),
        "examples": 8,
    }
    assert [(line["global_step"], line["index"]) for line in lines] == [
        (step, index) for step in (0, 5, 10, 12) for index in (0, 1)
    ]
    assert all(list(line) == KEYS for line in lines)
    # 8 examples, 4 heads, 64 patches; the head starts at 0, so the first gradients are 0.
    assert {sum(line["histogram"]) for line in lines} == {8 * 4 * 64 * 64}
    assert {line["logit_grad_norm"] for line in lines[:2]} == {0.0}
    assert all(line["logit_grad_norm"] > 0 for line in lines[2:])


def test_killed_and_resumed_has_every_row_once(make_trial, program, data_dir):
    whole = make_trial(name="whole", diagnostics=3)
    _attempt(whole, program, data_dir)
    directory = make_trial(name="killed", diagnostics=3)
    _attempt(directory, program, data_dir, dies_after=4)  # before the checkpoint at 4
    _attempt(directory, program, data_dir, dies_after=8)  # after it, before that at 8
    _attempt(directory, program, data_dir, stops_after=2)  # from 4: saved at 6
    run = _attempt(directory, program, data_dir)
    expected, found = (
        [{k: v for k, v in line.items() if k != "preemption_count"} for line in _lines(path)]
        for path in (whole, directory)
    )
    assert found == expected
    steps = {line["global_step"]: line["preemption_count"] for line in _lines(directory)[1:]}
    assert steps == {0: 1, 3: 1, 6: 2, 9: 3, 12: 3}
    assert run.times.accumulated_logging_time > 0


def test_training_time_excludes_recording(make_trial, program, data_dir, monkeypatch):
    directory = make_trial(name="slow", diagnostics=4)
    row = diagnostics.Recorder.row

    def slow(self, step, state):
        time.sleep(0.5)
        return row(self, step, state)

    monkeypatch.setattr(diagnostics.Recorder, "row", slow)
    clock = _attempt(directory, program, data_dir).times
    assert clock.accumulated_logging_time > 4 * 0.5
    assert clock.columns()["total_duration"] > clock.accumulated_submission_time + 4 * 0.5


def test_other_examples_are_another_study_once_some_are_recorded(make_study):
    study_directory.prepare(make_study())
    study_directory.prepare(make_study(diagnostics=5, diagnostics_examples=4))
    study_directory.prepare(make_study(diagnostics=0, diagnostics_examples=4))
    recorded = make_study(diagnostics=5, diagnostics_examples=4)
    study_directory.prepare(recorded)
    lease.claim(recorded.directory / recorded.trials("tune")[0].path)
    with pytest.raises(ValueError, match="diagnostics_examples: 4 there, 2 now"):
        study_directory.prepare(make_study(diagnostics=5, diagnostics_examples=2))


def _recorded(workload, state, batch, examples):
    probe = diagnostics.CompiledDiagnostics(workload)
    few = probe.first(batch, examples)
    smoothing = jax.numpy.float32(0.1)
    return probe.layers(probe.measure(state.params, state.model_state, few, smoothing))


def _state(workload, init, *inputs):
    """Returns a state of random parameters: compiling their initial values takes seconds."""
    shapes = dict(jax.eval_shape(init, {"params": jax.random.key(0)}, *inputs))
    rng = np.random.default_rng(0)
    params = jax.tree.map(
        lambda leaf: 0.3 * rng.standard_normal(leaf.shape, np.float32), shapes.pop("params")
    )
    model_state = jax.tree.map(lambda leaf: np.ones(leaf.shape, np.float32), shapes)
    zero = np.zeros([], np.int32)
    return jax.device_put(
        train_step.TrainState(zero, params, model_state, None, zero), workload.devices.replicated()
    )


def _numbers(records):
    return [[v for v in record.values() if isinstance(v, int | float)] for record in records]


def test_layers_in_a_loop_are_recorded_as_those_outside():
    """diff_laser, whose λ_init depends on the layer; stacked parameters are unstacked."""
    found = {}
    for looped in (False, True):
        options = Options(scan_layers=looped, remat=looped)
        workload = LMWorkload(
            catalog.get("pydoc_lm"), variants.get("diff_laser"), options, TINY, Sizes(8, 8, 8, 8, 4)
        )
        state = _state(workload, workload._model.init, np.zeros((1, 12), np.int32))
        if looped:
            params = jax.tree.map(np.asarray, found["params"])
            layers = [params.pop(f"layer_{index}") for index in range(2)]
            stack = jax.tree.map(lambda *leaves: np.stack(leaves), *layers)
            stacked = params | {"layers": stack}
            assert jax.tree.structure(stacked) == jax.tree.structure(state.params)
            state = state._replace(params=jax.device_put(stacked, workload.devices.replicated()))
        found["params"] = state.params
        found[looped] = _recorded(workload, state, workload.example_batch(4), 3)
    assert [record["layer"] for record in found[True]] == ["layer_0/attention", "layer_1/attention"]
    # Causal: 12 tokens see 78 keys; 3 examples, 2 heads.
    assert {sum(record["histogram"]) for record in found[True]} == {3 * 2 * 78}
    np.testing.assert_allclose(_numbers(found[True]), _numbers(found[False]), rtol=1e-5)


def test_a_model_that_scales_its_queries_is_recorded():
    """A Conformer of one narrow layer; padding is not counted."""
    workload = registry.make("spoken_digits_conformer", variants.get("laser"))
    small = dataclasses.replace(
        workload._model.config, encoder_dim=8, num_heads=2, subsampling_channels=4, num_layers=1
    )
    workload._model = conformer.Conformer(small, workload.variant)
    batch = workload.example_batch(4)
    state = _state(workload, workload._model.init, *batch["inputs"])
    (record,) = _recorded(workload, state, batch, 2)
    assert record["layer"].startswith("ConformerBlock_0/")
    assert record["layer"].endswith("MultiHeadDotProductAttention_0")
    assert "nonfinite" not in record
    assert min(record[f"{name}_grad_norm"] for name in ("logit", "query", "key", "value")) > 0
    paddings = jax.jit(lambda given: workload._model.apply(*given)[1])(
        ({"params": state.params, **state.model_state}, *batch["inputs"])
    )
    valid = np.asarray(1 - paddings)[:2].sum(axis=1).astype(int)
    assert sum(record["histogram"]) == sum(2 * n**2 for n in valid) > 0
    assert 0 < record["entropy"] <= np.log(valid.max())
