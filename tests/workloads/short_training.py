"""A few updates of a workload, as a trial makes them."""

import jax.numpy as jnp
import numpy as np

from sweeps.training import train_step

POINT = {
    "learning_rate": 1e-2, "one_minus_beta1": 0.1, "beta2": 0.99, "epsilon": 1e-8,
    "weight_decay": 0.1, "label_smoothing": 0.1, "dropout_rate": 0.1, "grad_clip": np.inf,
    "warmup_steps": 1.0, "step_hint": 10.0,
}  # fmt: skip


def train(workload, batches, microbatches=1, **changes):
    """Trains on the batches, with changes of `POINT`; returns the step's compilations, the state,
    losses with gradient norms."""
    step_function = train_step.TrainStep(workload, "adamw", microbatches)
    state, key = step_function.first_state(0), train_step.seed_key(0, train_step.DROPOUT)
    scalars = {name: jnp.float32(value) for name, value in {**POINT, **changes}.items()}
    measured = []
    for batch in batches:
        update = step_function.compile(state, batch, scalars, key)
        state, metrics = update(state, batch, scalars, key)
        measured.append((float(metrics.loss), float(metrics.grad_norm)))
    return step_function.compilations, state, measured
