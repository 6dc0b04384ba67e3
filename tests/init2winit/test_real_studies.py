"""Our space in init2winit's own code, on a checkout; skips where there is none."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ml_collections import config_dict

from sweeps.init2winit import process
from sweeps.study import config, study
from sweeps.training import optimizers

POINT = {
    "learning_rate": 0.002, "one_minus_beta1": 0.1, "beta2": 0.99, "epsilon": 1e-8,
    "weight_decay": 0.05, "warmup_factor": 0.25, "label_smoothing": 0.0, "dropout_rate": 0.0,
}  # fmt: skip
STEPS = 12


@pytest.mark.parametrize("optimizer", ["nadamw", "adamw"])
def test_its_updates_by_our_points_are_ours(tree, tmp_path, optimizer):
    """Over a whole schedule, to the rounding of float32: of a parameter, or of an update near 0."""
    tree.main_module(None)
    from init2winit import schedules
    from init2winit.optimizer_lib import optimizers as theirs

    changes = [f"--config.experiment_dir={tmp_path}", f"--config.optimizer={optimizer}"]
    [trial, *_] = study.resolve(config.parse("init2winit_vit_demo", changes)).trials("tune")
    trial = dataclasses.replace(trial, hyperparameters=POINT, steps=STEPS, step_hint=STEPS)
    hps = config_dict.ConfigDict({"l2_decay_factor": None, **process.hparam_overrides(trial)})
    rate = schedules.get_schedule_fn(hps.lr_hparams, max_training_updates=STEPS)
    scalars = {name: jnp.float32(value) for name, value in POINT.items()}
    scalars |= {"warmup_steps": jnp.float32(3), "step_hint": jnp.float32(STEPS)}
    rates = [float(optimizers.learning_rate(jnp.int32(step), scalars)) for step in range(STEPS)]
    assert rates == pytest.approx([float(rate(step)) for step in range(STEPS)], rel=1e-6, abs=1e-9)

    begin, update = theirs.get_optimizer(hps)
    parameters = {"w": jnp.asarray([0.3, -2.0, 1e-3]), "b": jnp.asarray([0.0])}
    ours, state, moments = parameters, begin(parameters), optimizers.init(optimizer, parameters)
    for step in range(STEPS):
        draw = np.random.default_rng(step).normal(size=4).astype(np.float32)
        gradients = {"w": jnp.asarray(draw[:3]), "b": jnp.asarray(draw[3:])}
        state.hyperparams["learning_rate"] = rate(step)
        change, state = update(gradients, state, parameters)
        parameters = jax.tree.map(jnp.add, parameters, change)
        ours, moments = optimizers.step(
            optimizer, gradients, moments, ours, jnp.int32(step), scalars
        )
        for name, values in ours.items():
            np.testing.assert_allclose(
                parameters[name], values, rtol=2e-6, atol=2e-6 * POINT["learning_rate"]
            )
