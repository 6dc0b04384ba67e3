"""The train step: compiled once, the same on more devices and in parts, by no user's option."""

import itertools
import json
import os
import subprocess
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention import registry as variants
from sweeps.job import job, trainer
from sweeps.records import layout, provenance, status
from sweeps.study import trial as trials
from sweeps.training import train_step
from tests.sweeps import test_live
from tests.sweeps.conftest import begin_stage
from workloads import catalog, registry
from workloads.base import dropout, sharding
from workloads.base.options import Options
from workloads.base.workload import Sizes
from workloads.text.language_models import BertWorkload, LMWorkload
from workloads.text.text_specs import TransformerSize


@pytest.mark.slow
def test_a_sweep_compiles_its_train_step_once(make_study, data_dir):
    """Several points in one process, counted where XLA is asked for an executable."""
    study = make_study(points=5, steps=1, eval_every=1, batch_size=8)
    trials = [study.directory / trial.path for trial in begin_stage(study)]
    one = trainer.Trainer()
    for trial in trials:
        one.run(trial, data_dir)
    assert {status.read(trial)["state"] for trial in trials} == {"done"}
    (program,) = one._programs.values()
    assert program.compilations == 1
    # The points did differ: traced hyperparameters are not baked in.
    norms = {(trial / layout.MEASUREMENTS).read_text().splitlines()[1] for trial in trials}
    assert len(norms) > 1


POINT = {
    "learning_rate": 3e-3,
    "one_minus_beta1": 0.1,
    "beta2": 0.99,
    "epsilon": 1e-8,
    "weight_decay": 0.1,
    "label_smoothing": 0.1,
    "dropout_rate": 0.1,
    "grad_clip": np.inf,
    "warmup_steps": 0.0,
    "step_hint": 10.0,
}


def _step_function():
    return train_step.TrainStep(registry.make("digits_vit", variants.get("laser")), "nadamw")


def _updates(step_function, data_dir, count=3, seed=0, **point):
    """Returns (loss, gradient norm) of some updates from one first state, and the last state."""
    state, key = step_function.first_state(0), train_step.seed_key(seed, train_step.DROPOUT)
    scalars = {name: jnp.float32(value) for name, value in {**POINT, **point}.items()}
    queue, measured = step_function.workload._build_input_queue(0, "train", data_dir, 16), []
    for batch in itertools.islice(queue, count):
        update = step_function.compile(state, batch, scalars, key)
        state, metrics = update(state, batch, scalars, key)
        measured.append((float(metrics.loss), float(metrics.grad_norm)))
    return measured, state


def _on_all_devices(data_dir):
    """Returns losses, metrics, compilations, devices and answers of this process."""
    step_function = _step_function()
    losses, state = _updates(step_function, data_dir)
    key = train_step.seed_key(0, train_step.DROPOUT)
    metrics = step_function.workload.eval_model(400, state.params, None, key, data_dir)
    answers = step_function.workload.answers.values.tolist()
    return losses, metrics, step_function.compilations, len(jax.devices()), answers


@pytest.fixture(scope="module")
def step_function():
    """A train step that tests share, compiled once."""
    return _step_function()


@pytest.mark.slow
def test_every_hyperparameter_reaches_the_step(step_function, data_dir):
    losses, _ = _updates(step_function, data_dir)
    assert _updates(step_function, data_dir)[0] == losses
    for name, value in (
        ("learning_rate", 1e-3),
        ("one_minus_beta1", 0.02),
        ("beta2", 0.9),
        ("weight_decay", 1.0),
        ("label_smoothing", 0.2),
        ("dropout_rate", 0.5),
        ("grad_clip", 1e-3),
        ("warmup_steps", 5.0),
        ("epsilon", 1.0),
    ):
        assert _updates(step_function, data_dir, **{name: value})[0] != losses, name
    assert step_function.compilations == 1


@pytest.mark.slow
def test_dropout_differs_from_batch_to_batch_and_by_seed(step_function, data_dir):
    point = {"learning_rate": 0.0, "dropout_rate": 0.5}
    by_seed = [_updates(step_function, data_dir, 2, seed, **point)[0] for seed in (0, 1)]
    assert len({norm for measured in by_seed for _, norm in measured}) == 4


@pytest.mark.slow
def test_eight_devices_give_the_losses_of_one(data_dir, environment):
    """Data-parallel over 8 forced CPU devices: equal within rounding."""
    folder = os.path.dirname(__file__)
    code = (
        f"import sys; sys.path.insert(0, {folder!r}); import test_training, json;"
        f"print('RESULT', json.dumps(test_training._on_all_devices({data_dir!r})))"
    )
    results = []
    for devices in (1, 8):
        flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count={devices}"
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            env=environment(XLA_FLAGS=flags),
        )
        line = next((x for x in done.stdout.splitlines() if x.startswith("RESULT")), None)
        assert line, done.stderr[-2000:]
        results.append(json.loads(line.removeprefix("RESULT ")))
    (one, one_metrics, _, single, answers), (eight, eight_metrics, compilations, many, same) = (
        results
    )
    assert np.mean(np.equal(answers, same)) > 0.99
    assert np.mean(answers) == pytest.approx(one_metrics["test/accuracy"])
    assert (single, many, compilations) == (1, 8, 1)
    np.testing.assert_allclose(one, eight, rtol=2e-4)
    assert one_metrics == pytest.approx(eight_metrics, rel=2e-3)


SIZE = TransformerSize(1, 8, 16, 2, 4, vocabulary=32, context=10)


def _two_updates(kind, options, microbatches):
    """Returns losses, gradient norms and parameters of 8 sequences that do not weigh the same."""
    workload = kind(catalog.get("pydoc_lm"), None, options, SIZE, Sizes(8, 8, 8, 8, 8))
    step_function = train_step.TrainStep(workload, "adamw", microbatches)
    state, batch = step_function.first_state(0), workload.example_batch(8)
    weights = np.linspace(0, 1, 8, dtype=np.float32)[:, None]
    batch = {**batch, "weights": jnp.broadcast_to(weights, batch["targets"].shape)}
    scalars = {name: jnp.float32(value) for name, value in {**POINT, "dropout_rate": 0.3}.items()}
    key, measured = train_step.seed_key(0, train_step.DROPOUT), []
    update = jax.jit(step_function._step)
    for _ in range(2):
        state, step_metrics = update(state, batch, scalars, key)
        measured.append((float(step_metrics.loss), float(step_metrics.grad_norm)))
    return measured, state


@pytest.mark.parametrize(
    ("kind", "options", "microbatches"),
    [
        (LMWorkload, Options(scan_layers=True, remat=True, loss_chunk_tokens=7), 4),
        (BertWorkload, Options("bfloat16", param_dtype="bfloat16"), 2),
    ],
)
def test_parts_give_what_the_whole_batch_gives(kind, options, microbatches):
    whole, state = _two_updates(kind, options, 1)
    parts, other = _two_updates(kind, options, microbatches)
    narrow = options.param_dtype == "bfloat16"
    np.testing.assert_allclose(parts, whole, rtol=2e-2 if narrow else 1e-5)
    assert int(other.step) == 2
    if not narrow:
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5),
            other.params,
            state.params,
        )


def test_a_part_draws_its_rows_of_the_batchs_mask():
    key, keep = jax.random.key(3), jnp.float32(0.6)
    whole = np.asarray(dropout.keep_mask(key, keep, (6, 5, 7)))
    rows = jnp.asarray([4, 1, 2])
    with dropout.rows_of_a_batch(rows):
        part = dropout.keep_mask(key, keep, (3, 5, 7))
    np.testing.assert_array_equal(part, whole[np.asarray(rows)])
    np.testing.assert_array_equal(dropout.keep_mask(key, keep, (6, 5, 7)), whole)


def test_every_row_is_in_one_part():
    batch = {"inputs": jnp.arange(24).reshape(12, 2), "targets": jnp.arange(12)}
    parts, rows = sharding.Devices().parts(batch, 3)
    assert parts["inputs"].shape == (3, 4, 2)
    assert sorted(rows.ravel().tolist()) == list(range(12))
    np.testing.assert_array_equal(parts["targets"], rows)
    np.testing.assert_array_equal(parts["inputs"], batch["inputs"][rows])
    with pytest.raises(ValueError, match="batch_size 12 cannot be divided into 5 microbatches"):
        sharding.Devices().parts(batch, 5)


def test_a_model_with_a_state_is_refused():
    workload = LMWorkload(catalog.get("pydoc_lm"), None, Options(), SIZE, Sizes(8, 8, 8, 8, 8))
    step_function = train_step.TrainStep(workload, "adamw", 2)
    state = step_function.first_state(0)._replace(model_state={"mean": jnp.zeros(3)})
    with pytest.raises(ValueError, match="pydoc_lm: 2 microbatches would change"):
        step_function._step(state, {}, {}, jax.random.key(0))


def test_every_part_of_a_trial_is_traced_in_it_and_no_other_trial(make_trial, monkeypatch):
    """First state, step and evaluations; an environment that says otherwise changes nothing."""
    for name, named in (("float32", "float32"), ("default", None)):
        directory = make_trial(name=name, steps=4, matmul_precision=name)
        device = test_live.Device(lambda step: 1.0, monkeypatch)
        with jax.default_matmul_precision("tensorfloat32"):
            assert device.train(directory) == "done"
            assert jax.config.jax_default_matmul_precision == "tensorfloat32"
        assert device.precisions == [named] * 3


@pytest.mark.parametrize("precision", ["float32", "default"])
def test_a_step_is_traced_in_it_wherever_that_is_done(make_trial, precision):
    """Of a command that compiles and trains nothing, too."""
    trial = trials.read(make_trial(matmul_precision=precision))
    step = train_step.of_trial(trial)
    arguments = step.abstract_arguments(trial, tuple(jax.devices()))
    with jax.default_matmul_precision("tensorfloat32"):
        text = str(step.traced(*arguments).jaxpr)
    assert ("Precision.HIGHEST" in text) == (precision == "float32")
    assert "TF32" not in text


def test_it_is_recorded_beside_what_the_platform_makes_of_it(monkeypatch):
    workload = types.SimpleNamespace(param_shapes={})
    record = provenance.meta_data(workload, 0, "", "float32")
    assert (record["matmul_precision"], record["float32_products"]) == ("float32", "float32")
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(provenance, "hardware", dict)
    for capability, made in (("9.0", "TF32"), ("7.5", "float32")):
        gpu = types.SimpleNamespace(compute_capability=capability)
        monkeypatch.setattr(jax, "devices", lambda gpu=gpu: [gpu])
        assert provenance.meta_data(workload, 0, "")["float32_products"] == made


# Values of a user's variables that gave other losses (the first three), or ended trials.
_OF_A_USER = {
    "jax_default_prng_impl": "rbg",
    "jax_threefry_partitionable": False,
    "jax_random_seed_offset": 7,
    "jax_enable_x64": True,
    "jax_numpy_dtype_promotion": "strict",
    "jax_numpy_rank_promotion": "raise",
    "jax_disable_jit": True,
    "jax_debug_nans": True,
    "jax_debug_infs": True,
    "jax_transfer_guard": "disallow",
}


def _drawn():
    key = train_step.seed_key(3, train_step.INIT)
    return jax.device_get(jax.random.normal(key, (4,))).tolist()


@pytest.mark.parametrize("name", provenance.PINNED)
def test_a_job_computes_by_no_option_of_the_user(name):
    expected, before = _drawn(), jax.config.values[name]
    try:
        jax.config.update(name, _OF_A_USER[name])
        if name in list(_OF_A_USER)[:3]:
            assert _drawn() != expected
        job.set_up_jax("")
        assert _drawn() == expected
        assert jnp.asarray(np.float64(1)).dtype == jnp.float32
        assert jax.config.values[name] != _OF_A_USER[name]
    finally:
        jax.config.update(name, before)


def test_variables_that_may_change_a_result_are_noted(monkeypatch):
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")
    monkeypatch.setenv("HOME", "/elsewhere")
    workload = types.SimpleNamespace(param_shapes={})
    noted = provenance.meta_data(workload, 0, "/data")["variables"]
    assert noted["NVIDIA_TF32_OVERRIDE"] == "0"
    assert "HOME" not in noted


@pytest.mark.parametrize(
    ("name", "variant", "count"),
    [
        # QK-normalization: one head size of 16 for query and key, in each of 2 layers: 64 more.
        ("pydoc_lm", "standard", 164_160),
        ("pydoc_lm", "laser", 164_160),
        ("pydoc_lm", "laser+qk_norm", 164_224),
        ("c4_lm", "standard", 301_270_016),
    ],
)
def test_parameters_are_counted_without_being_made(name, variant, count) -> None:
    workload = registry.make(name, variants.get(variant))
    assert provenance.parameters(workload) == count
    assert provenance.meta_data(workload, 0, "/data")["parameters"] == count


def test_a_trial_records_what_its_workload_says_of_itself() -> None:
    """AlgoPerf's keys: `analysis` takes step hint and targets from them."""
    workload = registry.make("digits_vit", variants.get("standard"))
    record = provenance.meta_data(workload, 0, "")
    assert {name: value for name, value in record.items() if name.startswith("workload.")} == {
        "workload.eval_batch_size": 16,
        "workload.num_eval_train_examples": 400,
        "workload.num_test_examples": 400,
        "workload.num_train_examples": 997,
        "workload.num_validation_examples": 400,
        "workload.step_hint": 500,
        "workload.target_metric_name": "accuracy",
        "workload.test_target_value": 0.95,
        "workload.validation_target_value": 0.95,
    }
