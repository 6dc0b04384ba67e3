"""Optimizers whose hyperparameters are traced: a sweep over them compiles once.

NAdamW by AlgoPerf's formula and by optax's, AdamW and LAMB by optax's. Each takes the
hyperparameters as scalars inside the traced train step; its state never depends on them. optax's
schedules branch in Python on their arguments, so the schedule is written in jnp.

Weight decay is decoupled (arXiv:1711.05101), multiplied by the rate afterwards, and applies to all
parameters, as in AlgoPerf.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax

from workloads.base.options import STACKED

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


def scale_by_nadam(
    beta1: Any, beta2: Any, epsilon: Any, rests: tuple[Any, Any]
) -> optax.GradientTransformation:
    """Returns AlgoPerf's NAdam: Adam whose first moment looks one step ahead.

    m̂ = (β1·m + (1 − β1)·g)/(1 − β1^t), v̂ = v/(1 − β2^t), update m̂/(√v̂ + ε), after
    arXiv:1910.05446, table 1. optax.nadam corrects m and g by different powers and differs by up
    to a third in the first steps; it is available as 'nadamw_optax'.

    rests: 1 − β1 and 1 − β2. AlgoPerf rounds them to float32 from more digits than β1 and β2 have
    in float32: its v̂ for β2 = 0.999 differs by 1.3e-5 in the first step.
    """

    def init(params: Any) -> optax.ScaleByAdamState:
        zeros = jax.tree.map(jnp.zeros_like, params)
        return optax.ScaleByAdamState(jnp.zeros([], jnp.int32), zeros, zeros)

    def update(gradients: Any, state: Any, _: Any = None) -> tuple[Any, Any]:
        count = state.count + 1

        def toward(moment: Any, target: Any, decay: Any, rest: Any) -> Any:
            return jax.tree.map(lambda m, t: rest * t + decay * m, moment, target)

        first = toward(state.mu, gradients, beta1, rests[0])
        second = toward(state.nu, jax.tree.map(jnp.square, gradients), beta2, rests[1])
        ahead = toward(first, gradients, beta1, rests[0])
        first_bias, second_bias = 1 - beta1**count, 1 - beta2**count
        updates = jax.tree.map(
            lambda m, v: (m / first_bias) / (jnp.sqrt(v / second_bias) + epsilon), ahead, second
        )
        return updates, optax.ScaleByAdamState(count, first, second)

    return optax.GradientTransformation(init, update)


def _nadamw(scalars: Scalars) -> optax.GradientTransformation:
    beta1, beta2 = 1.0 - scalars["one_minus_beta1"], scalars["beta2"]
    rests = 1 - beta1, 1 - beta2
    if "one_minus_beta2" in scalars:  # from an AlgoPerf submission, in AlgoPerf's roundings
        beta1 = scalars["beta1"]
        rests = scalars["one_minus_beta1"], scalars["one_minus_beta2"]
    return optax.chain(
        scale_by_nadam(beta1, beta2, scalars["epsilon"], rests),
        optax.add_decayed_weights(scalars["weight_decay"]),
    )


def _adamw(scalars: Scalars, nesterov: bool = False) -> optax.GradientTransformation:
    beta1 = 1.0 - scalars["one_minus_beta1"]
    adam = optax.scale_by_adam(beta1, scalars["beta2"], scalars["epsilon"], nesterov=nesterov)
    return optax.chain(adam, optax.add_decayed_weights(scalars["weight_decay"]))


def _lamb(scalars: Scalars) -> optax.GradientTransformation:
    """Returns Adam's direction with decay, per parameter scaled to its norm (arXiv:1904.00962)."""
    return optax.chain(_adamw(scalars), _scale_by_trust_ratio_of_layers())


def _scale_by_trust_ratio_of_layers() -> optax.GradientTransformation:
    """Returns optax's trust ratio, taken layer by layer also where scan_layers stacks them.

    Over a stack it would be one ratio for all layers: another algorithm.
    """
    ratio = optax.scale_by_trust_ratio()

    def scaled(path: Any, update: Array, param: Array) -> Array:
        def scale_layer(u: Array, p: Array) -> Array:
            result: Array = ratio.update(u, ratio.init(p), p)[0]
            return result

        stacked = any(getattr(part, "key", None) == STACKED for part in path)
        return (jax.vmap(scale_layer) if stacked else scale_layer)(update, param)

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        return jax.tree_util.tree_map_with_path(scaled, updates, params), state

    return optax.GradientTransformation(ratio.init, update)


OPTIMIZERS: dict[str, Callable[[Scalars], optax.GradientTransformation]] = {
    "nadamw": _nadamw,
    "nadamw_optax": functools.partial(_adamw, nesterov=True),
    "adamw": _adamw,
    "lamb": _lamb,
}


def init(name: str, params: Any) -> Any:
    """Returns the optimizer's first state: moments in float32 whatever the parameters are in.

    In bfloat16 a second moment with β2 = 0.99 would stand still: 1 % of it is less than half its
    last digit's weight (2^-8).
    """
    nothing = dict.fromkeys(("one_minus_beta1", "beta2", "epsilon", "weight_decay"), jnp.zeros(()))
    return OPTIMIZERS[name](nothing).init(_float32(params))


def step(
    name: str, gradients: Any, state: Any, params: Any, update: Array, scalars: Scalars
) -> tuple[Any, Any]:
    """Returns new parameters, in their dtypes, and optimizer state after update `update` (from 0).

    Computed in float32; parameters in bfloat16 are rounded to nearest at the end.
    """
    gradients, wide = _float32(gradients), _float32(params)
    directions, state = OPTIMIZERS[name](scalars).update(gradients, state, wide)
    rate = learning_rate(update, scalars)
    new = jax.tree.map(lambda p, w, d: (w - rate * d).astype(p.dtype), params, wide, directions)
    return new, state


def _float32(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf.astype(jnp.float32), tree)


def clip(gradients: Any, norm: Array, limit: Array) -> Any:
    """Returns gradients scaled to at most `limit` in norm; an infinite limit changes nothing.

    Factor min(1, limit/(norm + 1e-6)) as in AlgoPerf's NAdamW baseline.
    """
    factor = jnp.clip(limit / (norm + 1e-6), 0.0, 1.0)
    return jax.tree.map(lambda gradient: gradient * factor, gradients)
