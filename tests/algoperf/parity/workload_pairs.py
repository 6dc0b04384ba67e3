"""The parity table: its rows, and pairs of a workload of ours and AlgoPerf's of the same name.

Both are driven by AlgoPerf's interface alone (`model_fn`, `loss_fn`), from the same parameters and
batches. Small pairs have the same classes at fewer layers, which compile in seconds.
"""

import contextlib
import dataclasses
import functools
import importlib
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attention import inject
from workloads import algoperf_specs, registry
from workloads.algoperf.installation import Installation
from workloads.base import spec

# Greatest difference of a forward pass, relative to the greatest value where that is above 1, and
# of a gradient, as a ratio of norms. float32 has 6e-8; a dozen layers add up to some 1e-6.
CLOSE = 1e-5
# AlgoPerf's own Conformer changes its gradient by 0.7e-5 to 1.3e-5 (small model, three draws, jax
# 0.10.2) when every parameter moves by one rounding, 6e-8 of itself: four times that. Formulas are
# told apart in float64, where ours and AlgoPerf's gradients agree to 1e-14 (`double`).
SPEECH_GRADIENT = 5e-5
# In float64, which has 1.1e-16, the same sums leave some 1e-14.
DOUBLE = 1e-11
_SMALL_VIT = {"width": 48, "depth": 2, "mlp_dim": 96, "num_heads": 4}
# AlgoPerf's initialisation takes a batch of two utterances of 320,000 samples.
_SECOND = 16_000


@dataclasses.dataclass(frozen=True)
class Row:
    """`difference` passes where it is at most `tolerance`; a NaN does not.

    subject: workload, or what else is compared; quantity: what of it; remark: what the two numbers
    mean where that is not a difference of values.
    """

    subject: str
    quantity: str
    difference: float
    tolerance: float
    remark: str = ""

    def __str__(self) -> str:
        verdict = "pass" if self.passed else "**FAIL**"
        quantity = f"{self.quantity}; {self.remark}" if self.remark else self.quantity
        figures = f"{self.difference:.2g} | {self.tolerance:.2g}"
        return f"| {self.subject} | {quantity} | {figures} | {verdict} |"

    @property
    def passed(self) -> bool:
        return self.difference <= self.tolerance


def largest(ours: Any, theirs: Any) -> float:
    """Returns the greatest |ours - theirs| over two trees, over the greatest |theirs| above 1.

    Raises ValueError where trees or shapes differ: nothing may be broadcast away.
    """
    pairs = list(zip(*_leaves(ours, theirs), strict=True))
    # NumPy's maxima, which are NaN where anything is; Python's would lose it.
    difference = np.max([np.max(np.abs(a - b), initial=0.0) for a, b in pairs])
    return float(difference / np.max([1.0, *(np.max(np.abs(b), initial=0.0) for _, b in pairs)]))


def norm_ratio(ours: Any, theirs: Any) -> float:
    """Returns ‖ours - theirs‖ / ‖theirs‖ over two trees. Raises ValueError as `largest`."""
    pairs = list(zip(*_leaves(ours, theirs), strict=True))
    difference = sum(float(np.sum(np.square(a - b))) for a, b in pairs)
    return float(np.sqrt(difference / sum(float(np.sum(np.square(b))) for _, b in pairs)))


def _leaves(ours: Any, theirs: Any) -> tuple[list[np.ndarray], list[np.ndarray]]:
    trees = [str(jax.tree.structure(tree)) for tree in (ours, theirs)]
    if trees[0] != trees[1]:
        raise ValueError(f"trees differ: {trees[0]}, {trees[1]}")
    leaves = [
        [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(tree)] for tree in (ours, theirs)
    ]
    first, second = ([leaf.shape for leaf in side] for side in leaves)
    if first != second:
        raise ValueError(f"shapes differ: {first}, {second}")
    return leaves[0], leaves[1]


@dataclasses.dataclass(frozen=True)
class Side:
    """One of the two: a workload object, and its word for training and evaluation."""

    workload: Any
    modes: Any
    variant: Any = None

    def context(self) -> contextlib.AbstractContextManager[Any]:
        """Puts the variant into AlgoPerf's model; ours has it built in."""
        if self.variant is None:
            return contextlib.nullcontext()
        return inject.injected(self.variant, layer=_depth, float_masks=True)

    def initial(self, key: jax.Array, *example: jax.Array) -> tuple[Any, Any]:
        """Returns parameters and model state of the model as it is, small ones included.

        The key is split as both workloads' `init_model_fn` do it.
        """
        params_key, _ = jax.random.split(key)
        model = self.workload._model

        def init() -> Any:
            with self.context():
                return model.init({"params": params_key}, *example, train=False)

        state = dict(jax.jit(init)())
        return state.pop("params"), state

    def outputs(self, params: Any, state: Any, batch: Any, key: Any, **settings: Any) -> Any:
        """Returns loss, logits and model state of a forward pass, of a training step gradients too.

        settings: `train`, `dropout_rate`.
        """
        return jax.jit(functools.partial(self._outputs, **settings))(params, state, batch, key)

    def _outputs(
        self,
        params: Any,
        state: Any,
        batch: Any,
        key: Any,
        train: bool = False,
        dropout_rate: float = 0.0,
    ) -> Any:
        mode = self.modes.TRAIN if train else self.modes.EVAL

        def loss(params: Any) -> Any:
            with self.context():
                logits, new_state = self.workload.model_fn(
                    params, batch, state, mode, key, train, dropout_rate=dropout_rate
                )
            losses = self.workload.loss_fn(batch["targets"], logits)
            return losses["summed"] / losses["n_valid_examples"], (logits, new_state)

        if not train:
            return loss(params)
        return jax.value_and_grad(loss, has_aux=True)(params)


def step_rows(
    label: str,
    names: Sequence[str],
    ours: Any,
    theirs: Any,
    tolerances: tuple[float, float],
) -> Iterator[Row]:
    """Yields the comparison of two training steps, from their `Side.outputs`.

    names: of logits, loss, gradient, and, where there are four, batch statistics, which AlgoPerf
    makes [1, 1, C] when they are first moved, where ours stay [C]. tolerances: as `Pair` has them.
    """
    (loss, (logits, state)), gradient = ours
    (their_loss, (their_logits, their_state)), their_gradient = theirs
    forward, backward = tolerances
    yield Row(label, names[0], largest(logits, their_logits), forward)
    yield Row(label, names[1], largest(loss, their_loss), forward)
    yield Row(label, names[2], norm_ratio(gradient, their_gradient), backward)
    for name in names[3:]:
        flat = (jax.tree.map(np.ravel, averages) for averages in (state, their_state))
        yield Row(label, name, largest(*flat), forward)


@dataclasses.dataclass(frozen=True)
class Pair:
    """Ours and AlgoPerf's of one name."""

    name: str
    ours: Side
    theirs: Side

    @property
    def is_speech(self) -> bool:
        return self.name in algoperf_specs.SPEECH

    @property
    def tolerances(self) -> tuple[float, float]:
        """Of a forward pass, and of a gradient."""
        return CLOSE, SPEECH_GRADIENT if self.is_speech else CLOSE

    def outputs(self, *arguments: Any, **settings: Any) -> tuple[Any, Any]:
        """Returns both sides' `Side.outputs` of parameters, model state, batch and key."""
        return self.ours.outputs(*arguments, **settings), self.theirs.outputs(
            *arguments, **settings
        )

    def examples(self) -> tuple[jax.Array, ...]:
        """Returns what models are initialised on; no parameter depends on its size."""
        if self.is_speech:
            return (jnp.zeros((1, _SECOND)), jnp.zeros((1, _SECOND)))
        return (jnp.ones((1, 32, 32, 3)),)

    def batch(self, size: int = 224) -> dict[str, Any]:
        """Returns two examples: images of `size` pixels, or padded speech of 3 and 2 seconds."""
        if self.is_speech:
            return _speech_batch()
        images = jax.random.normal(jax.random.key(5), (2, size, size, 3))
        return {"inputs": images, "targets": jnp.asarray([3, 997])}


def make(
    name: str, installation: Installation, *, variant: Any = None, small: bool = False
) -> Pair:
    """Returns the pair; AlgoPerf's model is built by its own `init_model_fn`, traced only."""
    ours: Any = registry.make(name, variant)
    theirs = installation.make_workload(name)
    jax.eval_shape(theirs.init_model_fn, jax.random.PRNGKey(0))
    if small:
        if name in algoperf_specs.SPEECH:
            _shrink_conformer(ours, theirs)
        else:
            ours._model = ours._model.clone(**_SMALL_VIT)
            theirs._model = theirs._model.clone(**_SMALL_VIT)
    modes = importlib.import_module("algoperf.spec").ForwardPassMode
    return Pair(name, Side(ours, spec.ForwardPassMode), Side(theirs, modes, variant))


def _shrink_conformer(ours: Any, theirs: Any) -> None:
    small = dataclasses.replace(ours._model.config, encoder_dim=64, num_heads=4, num_layers=2)
    ours._model = ours._model.clone(config=small)
    config = theirs._model.config.replace(
        encoder_dim=64, num_attention_heads=4, num_encoder_layers=2
    )
    theirs._model = theirs._model.clone(config=config)


def _depth(path: str) -> int:
    """A layer's index from its module's path, in AlgoPerf's names; the pooling head comes last."""
    numbers = [part.rpartition("_")[2] for part in path.split("/") if "block_" in part.lower()]
    return int(numbers[0]) if numbers else _SMALL_VIT["depth"]


def moved(params: Any, key: jax.Array) -> Any:
    """Returns parameters away from where they start: norms' factors, biases and heads too."""
    leaves, tree = jax.tree.flatten(params)
    keys = jax.random.split(key, len(leaves))
    noise = [0.05 * jax.random.normal(k, a.shape) for k, a in zip(keys, leaves, strict=True)]
    return jax.tree.unflatten(tree, [a + n for a, n in zip(leaves, noise, strict=True)])


def _speech_batch() -> dict[str, Any]:
    draw = np.random.default_rng(6)
    audio = draw.integers(-3000, 3000, (2, 3 * _SECOND)).astype(np.float32)
    paddings = (np.arange(audio.shape[1]) >= np.asarray([[3 * _SECOND], [2 * _SECOND]])) * 1.0
    ids = draw.integers(1, 1024, (2, 256)) * 1.0
    beyond = (np.arange(256) >= np.asarray([[9], [5]])) * 1.0
    inputs = (jnp.asarray(audio * (1 - paddings)), jnp.asarray(paddings))
    return {"inputs": inputs, "targets": (jnp.asarray(ids * (1 - beyond)), jnp.asarray(beyond))}
