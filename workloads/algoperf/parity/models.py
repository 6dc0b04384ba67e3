"""Parity of models: trees, initial values, forward pass, loss, gradient, batch statistics.

Parameters are AlgoPerf's, moved by noise so that no factor is at its neutral start.
"""

from collections.abc import Iterator
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

from workloads.algoperf.installation import Installation
from workloads.algoperf.parity import workload_pairs
from workloads.algoperf.parity.rows import CLOSE, SPEECH_GRADIENT, Row, largest, norm_ratio
from workloads.algoperf.parity.workload_pairs import Pair
from workloads.base import dropout

_KEY = 11
_RATE = 0.1


def shape_rows(name: str, installation: Installation) -> Iterator[Row]:
    """Yields the comparison of the full-size parameter trees, which computes nothing."""
    pair = workload_pairs.make(name, installation)
    key = jax.random.PRNGKey(_KEY)
    trees = [
        jax.eval_shape(side.workload.init_model_fn, key)[0] for side in (pair.ours, pair.theirs)
    ]
    ours, theirs = (_shapes(tree) for tree in trees)
    yield Row(name, "leaves whose path, shape or dtype differ", len(ours ^ theirs), 0)
    counts = [sum(leaf.size for leaf in jax.tree.leaves(tree)) for tree in trees]
    text = f"{counts[0]:,} parameters"
    yield Row(name, "number of parameters", abs(counts[0] - counts[1]), 0, text)


def _shapes(tree: Any) -> set[tuple[str, tuple[int, ...], str]]:
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {(jax.tree_util.keystr(path), leaf.shape, str(leaf.dtype)) for path, leaf in leaves}


def model_rows(name: str, installation: Installation, *, small: bool) -> Iterator[Row]:
    """Yields the comparison from the same parameters, at full size or small."""
    pair = workload_pairs.make(name, installation, small=small)
    key = jax.random.PRNGKey(_KEY)
    label = f"{name}, small" if small else name
    ours, theirs = (_start(side, pair, key, small) for side in (pair.ours, pair.theirs))
    yield Row(label, "initial values and model state, same key", largest(ours, theirs), 0)
    params, state = workload_pairs.moved(theirs[0], jax.random.key(1)), theirs[1]
    yield from _forward_rows(label, pair, params, state, key)
    yield from _training_rows(label, pair, params, state, key)
    if small:
        yield from _dropout_rows(label, pair, params, state, key)


def _start(side: Any, pair: Pair, key: Any, small: bool) -> tuple[Any, Any]:
    """By the workload's own function at full size; by its model where that was made smaller."""
    if small:
        return side.initial(key, *pair.examples())
    params, state = side.workload.init_model_fn(key)
    # Without model state AlgoPerf returns an empty dictionary, ours None.
    return params, state or {}


def _forward_rows(label: str, pair: Pair, params: Any, state: Any, key: Any) -> Iterator[Row]:
    batch = pair.batch()
    (ours, (logits, _)), (theirs, (expected, _)) = (
        side.outputs(params, state, batch, key) for side in (pair.ours, pair.theirs)
    )
    yield Row(label, "logits, evaluation", largest(logits, expected), CLOSE, _about(pair))
    yield Row(label, "loss, evaluation", largest(ours, theirs), CLOSE)


def _about(pair: Pair) -> str:
    return "padded audio, and paddings of the logits" if pair.is_speech else ""


def _training_rows(label: str, pair: Pair, params: Any, state: Any, key: Any) -> Iterator[Row]:
    settings: dict[str, Any] = {"train": True, "gradient": True}
    yield from _step_rows(label, "training, dropout 0", pair, params, state, key, settings)


def _dropout_rows(label: str, pair: Pair, params: Any, state: Any, key: Any) -> Iterator[Row]:
    """Dropout's places, keys and rates: with `jax.random.bernoulli`'s bits in our mask.

    Our own bits are others on purpose (`workloads.base.dropout.keep_mask`); SpecAugment's coincide.
    """
    settings: dict[str, Any] = {"train": True, "gradient": True, "dropout_rate": _RATE}
    with mock.patch.object(dropout, "keep_mask", jax.random.bernoulli):
        what = f"training, dropout {_RATE}, jax.random.bernoulli's bits"
        yield from _step_rows(label, what, pair, params, state, key, settings)


def _step_rows(
    label: str, what: str, pair: Pair, params: Any, state: Any, key: Any, settings: Any
) -> Iterator[Row]:
    batch = pair.batch()
    ours, theirs = (
        side.outputs(params, state, batch, key, **settings) for side in (pair.ours, pair.theirs)
    )
    ((loss, (logits, new_state)), gradient) = ours
    ((their_loss, (their_logits, their_state)), their_gradient) = theirs
    yield Row(label, f"logits, {what}", largest(logits, their_logits), CLOSE)
    yield Row(label, f"loss, {what}", largest(loss, their_loss), CLOSE)
    allowed = SPEECH_GRADIENT if pair.is_speech else CLOSE
    yield Row(label, f"gradient, {what}", norm_ratio(gradient, their_gradient), allowed)
    if pair.is_speech:
        difference = largest(flat(new_state), flat(their_state))
        yield Row(label, f"batch statistics, {what}", difference, CLOSE)


def flat(state: Any) -> Any:
    """AlgoPerf's averages become [1, 1, C] when they are first moved, ours stay [C]."""
    return jax.tree.map(np.ravel, state)


def loss_rows(installation: Installation) -> Iterator[Row]:
    """Yields the loss functions alone: smoothing, weights, mixed labels, per example."""
    pair = workload_pairs.make("imagenet_vit", installation)
    logits = jax.random.normal(jax.random.key(2), (6, 1000)) * 5
    labels = jax.random.randint(jax.random.key(3), (6,), 0, 1000)
    mixed = 0.3 * jax.nn.one_hot(labels, 1000) + 0.7 * jax.nn.one_hot(labels[::-1], 1000)
    weights = jnp.asarray([1.0, 1, 0, 1, 1, 0])
    for what, target in (("labels", labels), ("mixed labels", mixed)):
        ours, theirs = (
            side.workload.loss_fn(target, logits, weights, label_smoothing=0.1)
            for side in (pair.ours, pair.theirs)
        )
        quantity = f"loss of {what}, smoothing 0.1, weights of 0: summed, valid, per example"
        yield Row("imagenet_vit", quantity, largest(ours, theirs), CLOSE)
