"""The train step, compiled once per program, and its state.

Traced: learning rate, betas, ε, weight decay, warmup, label smoothing, clip norm, dropout rate,
seed. Compiled in: workload, variant with its τ, kernel, compute dtype, optimizer, shapes.
"""

import dataclasses
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from attention import registry as variants
from sweeps.study.trial import Trial
from sweeps.training import optimizers
from workloads import registry as workloads
from workloads.base import dropout, sharding, spec

Array = jax.Array

# Purposes of random draws, folded into a seed's key: none depends on variant, hyperparameters,
# attempt or number of workers, so that variants are paired by seed.
# (2 and 4 are the data's: workloads/images/image_workload.py, workloads/text/language_models.py.)
INIT, DROPOUT = 1, 3


class TrainState(NamedTuple):
    """What a checkpoint holds. `nonfinite_at` is the first update whose loss was not, or -1."""

    step: Array
    params: Any
    model_state: Any
    optimizer: Any
    nonfinite_at: Array


class StepMetrics(NamedTuple):
    """A step's mean loss and gradient norm before clipping, and the state's `nonfinite_at`.

    Nats per example; per token for text and CTC.
    """

    loss: Array
    grad_norm: Array
    nonfinite_at: Array


def seed_key(seed: int, purpose: int) -> Array:
    """Returns the key of a seed's purpose."""
    return jax.random.fold_in(jax.random.key(seed), purpose)


def scalars_of(trial: Trial) -> dict[str, Array]:
    """Returns a trial's traced hyperparameters, float32."""
    point = trial.hyperparameters
    values = {
        **{name: point[name] for name in point if name != "warmup_factor"},
        "grad_clip": point.get("grad_clip", math.inf),
        "warmup_steps": int(point["warmup_factor"] * trial.step_hint),
        "step_hint": trial.step_hint,
    }
    return {name: jnp.asarray(value, jnp.float32) for name, value in values.items()}


def signature(arguments: Any) -> Any:
    """Returns what a compiled function's arguments must have in common: tree, shapes, shardings."""
    shapes = jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype, leaf.sharding), arguments)
    return jax.tree.structure(shapes), tuple(map(str, jax.tree.leaves(shapes)))


def precise(matmul_precision: str) -> Any:
    """Returns the context in which everything of a trial is traced: its products' precision.

    'default' is the platform's, whatever JAX_DEFAULT_MATMUL_PRECISION says: a trial's identity
    does not know the environment.
    """
    named = None if matmul_precision == "default" else matmul_precision
    return jax.default_matmul_precision(named)


class TrainStep:
    """One program's compiled train step. `compilations` counts how often XLA was asked for it.

    microbatches: parts of a batch that are computed one after the other, their gradients summed in
    float32; loss and gradients are the whole batch's within rounding, dropout included.
    """

    def __init__(
        self,
        workload: spec.Workload,
        optimizer: str,
        microbatches: int = 1,
        matmul_precision: str = "default",
    ) -> None:
        self.workload = workload
        self.optimizer = optimizer
        self.microbatches = microbatches
        self.matmul_precision = matmul_precision
        self.compilations = 0
        self._compiled: dict[Any, Any] = {}
        self._first: Any = None

    def first_state(self, seed: int) -> TrainState:
        """Returns the state before the first update, of the seed alone."""
        params, model_state = self.workload.init_model_fn(seed_key(seed, INIT))
        if self._first is None:
            shardings = shardings_of(
                self.workload, jax.eval_shape(self._first_state, params, model_state)
            )
            self._first = jax.jit(self._first_state, out_shardings=shardings)
        state: TrainState = self._first(params, model_state)
        return state

    def _first_state(self, params: Any, model_state: Any) -> TrainState:
        optimizer = optimizers.init(self.optimizer, params)
        zero = jnp.zeros([], jnp.int32)
        return TrainState(zero, params, model_state, optimizer, zero - 1)

    def compile(self, state: TrainState, batch: Any, scalars: dict[str, Array], key: Array) -> Any:
        """Returns the executable for these shapes, compiled the first time they are seen."""
        arguments = (state, batch, scalars, key)
        known = signature(arguments)
        if known not in self._compiled:
            self._compiled[known] = self.traced(*arguments).lower().compile()
            self.compilations += 1
        return self._compiled[known]

    def traced(self, state: TrainState, batch: Any, scalars: dict[str, Array], key: Array) -> Any:
        """Returns the step as JAX traced it, to be lowered, or its `jaxpr` to be looked at."""
        shardings = shardings_of(self.workload, state), self.workload.devices.replicated()
        step = jax.jit(self._step, donate_argnums=0, out_shardings=shardings)
        with precise(self.matmul_precision):
            return step.trace(state, batch, scalars, key)

    def abstract_arguments(self, trial: Trial, devices: tuple[Any, ...]) -> tuple[Any, ...]:
        """Returns what `compile` takes, as shapes on devices that need not be here.

        The workload, one of ours, is bound to them, and can be compiled alone from then on.
        """
        workload: Any = self.workload
        devices_of_study = workload.devices
        workload.devices = sharding.Devices()  # the study's mesh needs more than are here
        example = workload.example_batch(1)
        workload.devices = dataclasses.replace(devices_of_study, over=devices)
        whole, rows = workload.devices.replicated(), workload.devices.batch()
        params, model_state = jax.eval_shape(workload.init_model_fn, seed_key(0, INIT))
        state = jax.eval_shape(self._first_state, params, model_state)

        def shaped(leaf: Any, placed: Any, shape: Any = None) -> jax.ShapeDtypeStruct:
            shape = leaf.shape if shape is None else shape
            return jax.ShapeDtypeStruct(shape, leaf.dtype, sharding=placed)

        def everywhere(leaf: Array) -> jax.ShapeDtypeStruct:
            return shaped(leaf, whole)

        return (
            jax.tree.map(shaped, state, shardings_of(self.workload, state)),
            jax.tree.map(
                lambda leaf: shaped(leaf, rows, (trial.batch_size, *leaf.shape[1:])), example
            ),
            jax.tree.map(everywhere, scalars_of(trial)),
            everywhere(seed_key(0, DROPOUT)),
        )

    def _step(
        self, state: TrainState, batch: spec.Batch, scalars: dict[str, Array], key: Array
    ) -> tuple[TrainState, StepMetrics]:
        rng = jax.random.fold_in(key, state.step)
        summed_loss = self._summed_loss if self.microbatches == 1 else self._accumulated
        (summed, (count, model_state)), gradients = summed_loss(state, batch, scalars, rng)
        loss = summed / count
        gradients = jax.tree.map(lambda leaf: leaf.astype(jnp.float32) / count, gradients)
        norm = jnp.sqrt(sum(jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(gradients)))
        gradients = optimizers.clip(gradients, norm, scalars["grad_clip"])
        params, optimizer = optimizers.step(
            self.optimizer, gradients, state.optimizer, state.params, state.step, scalars
        )
        first_bad = (state.nonfinite_at < 0) & ~jnp.isfinite(loss)
        nonfinite_at = jnp.where(first_bad, state.step, state.nonfinite_at)
        new = TrainState(state.step + 1, params, model_state, optimizer, nonfinite_at)
        return new, StepMetrics(loss, norm, nonfinite_at)

    def _summed_loss(
        self, state: TrainState, batch: spec.Batch, scalars: dict[str, Array], rng: Array
    ) -> tuple[tuple[Array, tuple[Array, Any]], Any]:
        """Returns ((summed loss, (examples, new model state)), gradients of the summed loss)."""

        def summed_loss(params: Any) -> tuple[Array, tuple[Array, Any]]:
            losses, model_state = self.workload.train_loss(
                params,
                batch,
                state.model_state,
                rng,
                scalars["dropout_rate"],
                scalars["label_smoothing"],
            )
            return losses["summed"], (losses["n_valid_examples"], model_state)

        return jax.value_and_grad(summed_loss, has_aux=True)(state.params)

    def _accumulated(
        self, state: TrainState, batch: spec.Batch, scalars: dict[str, Array], rng: Array
    ) -> tuple[tuple[Array, tuple[Array, Any]], Any]:
        """Returns what `_summed_loss` does, from microbatches; gradients in float32.

        Raises ValueError for a model with a state: BatchNorm would take a microbatch's statistics.
        """
        if state.model_state is not None:
            raise ValueError(
                f"{self.workload}: {self.microbatches} microbatches would change what a model with "
                "batch statistics computes; use 1"
            )

        def add(sums: Any, part: tuple[spec.Batch, Array]) -> tuple[Any, None]:
            batch, rows = part
            with dropout.rows_of_a_batch(rows):
                (summed, (count, _)), gradients = self._summed_loss(state, batch, scalars, rng)
            new = jax.tree.map(lambda a, b: a + b, sums, (summed, count, gradients))
            return (*new[:2], placed(new[2])), None

        def placed(gradients: Any) -> Any:
            return jax.lax.with_sharding_constraint(
                gradients, shardings_of(self.workload, gradients)
            )

        zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, jnp.float32), state.params)
        nothing = jnp.float32(0), jnp.float32(0), placed(zeros)
        parts = self.workload.devices.parts(batch, self.microbatches)
        (summed, count, gradients), _ = jax.lax.scan(add, nothing, parts)
        return (summed, (count, None)), gradients


def shardings_of(workload: Any, tree: Any) -> Any:
    """Returns where each part of a tree lies: by the workload's rules, or on all devices."""
    return sharding.shardings(tree, workload.parameter_rules, workload.devices.mesh)


def of_trial(trial: Trial, plain: bool = False) -> TrainStep:
    """Returns a trial's train step, not compiled yet: the same for all trials of a program.

    plain: with the attention that the model has of itself instead of the trial's variant.
    """
    variant = None
    if not plain:
        variant = variants.get(trial.variant, kernel=trial.kernel, **trial.variant_hyperparameters)
    workload = workloads.make(
        trial.workload, variant, extra_paths=trial.extra_paths, **trial.options
    )
    return TrainStep(workload, trial.optimizer, trial.microbatches, trial.matmul_precision)
