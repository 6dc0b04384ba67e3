"""The train step of several trials at once: `jax.vmap` of the unpacked one.

Mapped over members: parameters, moments, model state, hyperparameters; and, where seeds differ,
batches and dropout keys. What members share (the step number, a common seed's batch and key) is
not stacked, so it is neither copied nor computed per member.
"""

import functools
import time
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from sweeps.training import train_step
from sweeps.training.train_step import State, TrainStep

Array = jax.Array

# All members stand at the same step.
_AXES: Any = State(None, 0, 0, 0, 0)  # type: ignore[arg-type]


class PackedStep:
    """A program's step for packs; use `of`. Compilations are counted in its TrainStep.

    Raises ValueError where one trial of the program is divided over several devices.
    """

    def __init__(self, step_function: TrainStep) -> None:
        self._step_function = step_function
        layout = step_function.workload.layout  # type: ignore[attr-defined]
        if layout.mesh.size > 1:
            raise ValueError(
                f"a pack shares one device, and this process has {layout.mesh.size}, over which "
                "each batch is divided; set --config.pack=1, or give a worker one device"
            )
        self._whole = layout.replicated()
        self._stack = jax.jit(_stacked, out_shardings=self._whole)
        self._places: Any = None
        self._member: Any = None
        self._compiled: dict[Any, Any] = {}

    def pack(self, states: Sequence[State]) -> State:
        """Returns the states of members that stand at the same step as one, member axis first."""
        if self._member is None:
            places = jax.tree.map(lambda leaf: leaf.sharding, states[0])
            self._member = jax.jit(_member, out_shardings=places)
        return self.stack(states)._replace(step=states[0].step)

    def member(self, state: State, index: int) -> State:
        """Returns a member's state as its unpacked trial would have it."""
        one: State = self._member(state, index)
        return one

    def stack(self, trees: Sequence[Any]) -> Any:
        """Returns trees of equal shapes as one, with a first axis over members."""
        return self._stack(*trees)

    def scalars(self, trials: Sequence[Any]) -> dict[str, Array]:
        """Returns the members' traced hyperparameters, float32 [members]."""
        stacked: dict[str, Array] = self.stack([train_step.scalars_of(trial) for trial in trials])
        return stacked

    def keys(self, seeds: Sequence[int]) -> Array:
        """Returns the members' dropout keys, [members], or the one that all of them have."""
        keys = [train_step.seed_key(seed, train_step.DROPOUT) for seed in seeds]
        stacked: Array = keys[0] if len(set(seeds)) == 1 else self.stack(keys)
        return stacked

    def compile(self, state: State, batch: Any, scalars: dict[str, Array], key: Array) -> Any:
        """Returns the executable for these shapes, compiled the first time they are seen.

        It is called as the unpacked step is, donates the state, and returns the new state and
        `Measured` of [members]. key []: members share key and batch.
        """
        arguments = (state, batch, scalars, key)
        shapes = jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), arguments)
        signature = (jax.tree.structure(shapes), tuple(map(str, jax.tree.leaves(shapes))))
        if signature not in self._compiled:
            started = time.perf_counter()
            mapped = None if key.ndim == 0 else 0
            step = jax.vmap(
                self._step_function._step,
                in_axes=(_AXES, mapped, 0, mapped),
                out_axes=(_AXES, 0),
            )
            jitted = jax.jit(step, donate_argnums=0, out_shardings=self._whole)
            self._compiled[signature] = jitted.lower(*arguments).compile()
            self._step_function.compile_s += time.perf_counter() - started
            self._step_function.compilations += 1
        return self._compiled[signature]


@functools.cache
def of(step_function: TrainStep) -> PackedStep:
    """Returns the packed step of a program, made once: what it compiled stays for later packs."""
    return PackedStep(step_function)


def _stacked(*trees: Any) -> Any:
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


def _member(state: State, index: Array) -> State:
    return State(
        state.step, *(jax.tree.map(lambda leaf: leaf[index], part) for part in tuple(state)[1:])
    )
