"""The training loop: one compilation for a sweep, data-parallel equality, what is traced."""

import itertools
import json
import os
import subprocess
import sys

import jax
import numpy as np
import pytest

from attention import registry as variants
from sweeps.job import trainer
from sweeps.records import layout, status
from sweeps.training import train_step
from tests.sweeps.conftest import begin_stage
from workloads import registry

pytestmark = pytest.mark.slow


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
    scalars = {name: jax.numpy.float32(value) for name, value in {**POINT, **point}.items()}
    queue, measured = step_function.workload._build_input_queue(0, "train", data_dir, 16), []
    for batch in itertools.islice(queue, count):
        update = step_function.compile(state, batch, scalars, key)
        state, metrics = update(state, batch, scalars, key)
        measured.append((float(metrics.loss), float(metrics.grad_norm)))
    return measured, state


def _on_all_devices(data_dir):
    """Returns losses, metrics, compilations and devices of this process."""
    step_function = _step_function()
    losses, state = _updates(step_function, data_dir)
    key = train_step.seed_key(0, train_step.DROPOUT)
    metrics = step_function.workload.eval_model(400, state.params, None, key, data_dir)
    return losses, metrics, step_function.compilations, len(jax.devices())


@pytest.fixture(scope="module")
def step_function():
    """A train step that tests share, compiled once."""
    return _step_function()


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


def test_dropout_differs_from_batch_to_batch_and_by_seed(step_function, data_dir):
    point = {"learning_rate": 0.0, "dropout_rate": 0.5}
    by_seed = [_updates(step_function, data_dir, 2, seed, **point)[0] for seed in (0, 1)]
    assert len({norm for measured in by_seed for _, norm in measured}) == 4


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
    (one, one_metrics, _, single), (eight, eight_metrics, compilations, many) = results
    assert (single, many, compilations) == (1, 8, 1)
    np.testing.assert_allclose(one, eight, rtol=2e-4)
    assert one_metrics == pytest.approx(eight_metrics, rel=2e-3)


def test_bfloat16_compute_trains(data_dir):
    workload = registry.make("digits_vit", variants.get("laser+qk_norm"), "bfloat16")
    step_function = train_step.TrainStep(workload, "nadamw")
    state = step_function.first_state(0)
    assert {leaf.dtype.name for leaf in jax.tree.leaves(state.params)} == {"float32"}
    batch = next(workload._build_input_queue(0, "train", data_dir, 16))
    logits, _ = workload.model_fn(
        state.params, batch, None, train_step.spec.ForwardPassMode.EVAL, jax.random.key(0), False
    )
    assert logits.dtype == np.float32
    full = registry.make("digits_vit", variants.get("laser+qk_norm"))
    tokens = full._model.apply({"params": state.params}, batch["inputs"])
    np.testing.assert_allclose(logits, tokens, atol=0.1)
