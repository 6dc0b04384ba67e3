"""Optimizers whose hyperparameters are traced: a sweep over them compiles once.

Each takes the hyperparameters as scalars inside the traced train step; its state never depends on
them. optax's schedules branch in Python on their arguments, so the schedule is written in jnp.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax

Array = jax.Array
Scalars = Mapping[str, Array]


def learning_rate(step: Array, scalars: Scalars) -> Array:
    """Returns the rate of update `step` (from 0): linear warmup from 0, then cosine to 0.

    `warmup_steps` = int(warmup_factor · step_hint); the cosine spans the rest of `step_hint`, at
    least one step (AlgoPerf: algorithms/baselines/external_tuning/jax_nadamw_full_budget.py).
    """
    step = step.astype(jnp.float32)
    warmup, horizon = scalars["warmup_steps"], scalars["step_hint"]
    rising = step / jnp.maximum(warmup, 1.0)
    span = jnp.maximum(horizon - warmup, 1.0)
    falling = 0.5 * (1.0 + jnp.cos(jnp.pi * jnp.clip((step - warmup) / span, 0.0, 1.0)))
    return scalars["learning_rate"] * jnp.where(step < warmup, rising, falling)


def scale_by_nadam(beta1: Any, beta2: Any, epsilon: Any) -> optax.GradientTransformation:
    """Returns AlgoPerf's NAdam: Adam whose first moment looks one step ahead.

    m̂ = (β1·m + (1 − β1)·g)/(1 − β1^t), v̂ = v/(1 − β2^t), update m̂/(√v̂ + ε), after
    arXiv:1910.05446, table 1. optax.nadam corrects m and g by different powers and differs by up
    to a third in the first steps; it is available as 'nadamw_optax'.
    """

    def init(params: Any) -> optax.ScaleByAdamState:
        zeros = jax.tree.map(jnp.zeros_like, params)
        return optax.ScaleByAdamState(jnp.zeros([], jnp.int32), zeros, zeros)

    def update(gradients: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        del params
        count = state.count + 1

        def toward(moment: Any, target: Any, decay: Any) -> Any:
            return jax.tree.map(lambda m, t: (1 - decay) * t + decay * m, moment, target)

        first = toward(state.mu, gradients, beta1)
        second = toward(state.nu, jax.tree.map(jnp.square, gradients), beta2)
        ahead = toward(first, gradients, beta1)
        first_bias, second_bias = 1 - beta1**count, 1 - beta2**count
        updates = jax.tree.map(
            lambda m, v: (m / first_bias) / (jnp.sqrt(v / second_bias) + epsilon), ahead, second
        )
        return updates, optax.ScaleByAdamState(count, first, second)

    return optax.GradientTransformation(init, update)


def _nadam(scalars: Scalars) -> optax.GradientTransformation:
    return scale_by_nadam(1.0 - scalars["one_minus_beta1"], scalars["beta2"], scalars["epsilon"])


def _nadam_optax(scalars: Scalars) -> optax.GradientTransformation:
    return optax.scale_by_adam(
        1.0 - scalars["one_minus_beta1"],
        scalars["beta2"],
        scalars["epsilon"],
        nesterov=True,
    )


OPTIMIZERS: dict[str, Callable[[Scalars], optax.GradientTransformation]] = {
    "nadamw": _nadam,
    "nadamw_optax": _nadam_optax,
}


def init(name: str, params: Any) -> Any:
    """Returns the optimizer's first state."""
    nothing = {key: jnp.zeros(()) for key in ("one_minus_beta1", "beta2", "epsilon")}
    return OPTIMIZERS[name](nothing).init(params)


def step(
    name: str, gradients: Any, state: Any, params: Any, update: Array, scalars: Scalars
) -> tuple[Any, Any]:
    """Returns new parameters and optimizer state after update number `update` (from 0).

    Decoupled weight decay is multiplied by the learning rate, as in AlgoPerf, and applies to all
    parameters.
    """
    directions, state = OPTIMIZERS[name](scalars).update(gradients, state, params)
    rate, decay = learning_rate(update, scalars), scalars["weight_decay"]
    new = jax.tree.map(lambda p, d: p - rate * (d + decay * p), params, directions)
    return new, state


def clip(gradients: Any, norm: Array, limit: Array) -> Any:
    """Returns gradients scaled to at most `limit` in norm; an infinite limit changes nothing.

    Factor min(1, limit/(norm + 1e-6)) as in AlgoPerf's NAdamW baseline.
    """
    factor = jnp.clip(limit / (norm + 1e-6), 0.0, 1.0)
    return jax.tree.map(lambda gradient: gradient * factor, gradients)
