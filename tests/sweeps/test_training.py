"""The training loop: one compilation for a sweep, data-parallel equality, what is traced."""

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


def test_a_fifty_trial_sweep_compiles_its_train_step_once(make_study, data_dir):
    """50 points in one process, counted where XLA is asked for an executable."""
    study = make_study(points=50, steps=1, eval_every=1, batch_size=8)
    trials = begin_stage(study)
    one = trainer.Trainer()
    for trial in trials:
        one.run(study.directory / trial.path, data_dir)
    assert {status.read(study.directory / t.path)["state"] for t in trials} == {"done"}
    (program,) = one._programs.values()
    assert program.compilations == 1
    # The points did differ: traced hyperparameters are not baked in.
    norms = {
        (study.directory / t.path / layout.MEASUREMENTS).read_text().splitlines()[1] for t in trials
    }
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


def _three_losses(data_dir, variant="laser", **point):
    workload = registry.make("digits_vit", variants.get(variant))
    step_function = train_step.TrainStep(workload, "nadamw")
    state = step_function.first_state(0)
    scalars = {**POINT, **point}
    scalars = {name: jax.numpy.float32(value) for name, value in scalars.items()}
    queue = workload._build_input_queue(0, "train", data_dir, 16)
    key = train_step.seed_key(0, train_step.DROPOUT)
    losses = []
    for _ in range(3):
        batch = next(queue)
        update = step_function.compile(state, batch, scalars, key)
        state, measured = update(state, batch, scalars, key)
        losses.append((float(measured.loss), float(measured.grad_norm)))
    metrics = workload.eval_model(400, state.params, None, key, data_dir)
    return losses, metrics, step_function.compilations, len(jax.devices())


@pytest.mark.parametrize(
    "change",
    [
        {"learning_rate": 1e-3},
        {"one_minus_beta1": 0.02},
        {"beta2": 0.9},
        {"weight_decay": 1.0},
        {"label_smoothing": 0.2},
        {"dropout_rate": 0.5},
        {"grad_clip": 1e-3},
        {"warmup_steps": 5.0},
        {"epsilon": 1.0},
    ],
)
def test_every_hyperparameter_reaches_the_step(data_dir, change, baseline):
    losses, _, compilations, _ = _three_losses(data_dir, **change)
    assert losses != baseline
    assert compilations == 1


@pytest.fixture(scope="module")
def baseline(data_dir):
    losses, *_ = _three_losses(data_dir)
    again, *_ = _three_losses(data_dir)
    assert losses == again
    return losses


def test_dropout_differs_from_step_to_step_and_by_seed(data_dir):
    workload = registry.make("digits_vit")
    step_function = train_step.TrainStep(workload, "nadamw")
    batch = next(workload._build_input_queue(0, "train", data_dir, 16))
    point = {**POINT, "learning_rate": 0.0, "dropout_rate": 0.5}
    scalars = {name: jax.numpy.float32(value) for name, value in point.items()}
    norms = []
    for seed in (0, 1):
        state, key = step_function.first_state(0), train_step.seed_key(seed, train_step.DROPOUT)
        for _ in range(2):
            update = step_function.compile(state, batch, scalars, key)
            state, measured = update(state, batch, scalars, key)
            norms.append(float(measured.grad_norm))
    assert len(set(norms)) == 4


def test_eight_devices_give_the_losses_of_one(data_dir, environment):
    """Data-parallel over 8 forced CPU devices: equal within rounding."""
    folder = os.path.dirname(__file__)
    code = (
        f"import sys; sys.path.insert(0, {folder!r}); import test_training, json;"
        f"print('RESULT', json.dumps(test_training._three_losses({data_dir!r})))"
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
