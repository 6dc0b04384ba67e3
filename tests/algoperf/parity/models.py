"""Parity of models: trees, initial values, forward pass, loss, gradient, batch statistics.

Parameters are AlgoPerf's, moved by noise so that no factor is at its neutral start.

The Conformer is compared in float64 too, where rounding is 1e-16 and formulas are all that is left:
in float32 both gradients are some 1e-5 off what they would be without rounding, so that comparing
them alone says little. Both models name float32 themselves here and there; while they are traced,
that name is given another meaning. Neither's code is changed.

Of a variant our model is compared with AlgoPerf's inside `attention.inject`. Both compute the
variant by our code, which says nothing of its formula: `formula_row` holds that against float64.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Iterator
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from attention import registry
from attention.variant import Variant
from attention.verification import reference
from tests.algoperf.parity import workload_pairs
from tests.algoperf.parity.workload_pairs import (
    CLOSE,
    DOUBLE,
    Pair,
    Row,
    Side,
    largest,
    norm_ratio,
    step_rows,
)
from workloads.algoperf.installation import Installation
from workloads.base import dropout
from workloads.speech import spectrogram

_KEY = 11
_RATE = 0.1


def shape_rows(installation: Installation, name: str) -> Iterator[Row]:
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


def model_rows(installation: Installation, name: str, small: bool) -> Iterator[Row]:
    """Yields the comparison from the same parameters, at full size or small."""
    pair = workload_pairs.make(name, installation, small=small)
    key = jax.random.PRNGKey(_KEY)
    label = f"{name}, small" if small else name
    ours, theirs = (_start(side, pair, key, small) for side in (pair.ours, pair.theirs))
    yield Row(label, "initial values and model state, same key", largest(ours, theirs), 0)
    params, state = workload_pairs.moved(theirs[0], jax.random.key(1)), theirs[1]
    arguments = (params, state, pair.batch(), key)
    (loss, (logits, _)), (their_loss, (their_logits, _)) = pair.outputs(*arguments)
    about = "padded audio, and paddings of the logits" if pair.is_speech else ""
    yield Row(label, "logits, evaluation", largest(logits, their_logits), CLOSE, about)
    yield Row(label, "loss, evaluation", largest(loss, their_loss), CLOSE)
    both = pair.outputs(*arguments, train=True)
    yield from _step_rows(label, "training, dropout 0", pair, both)
    if small:
        # Dropout's places, keys and rates, with `jax.random.bernoulli`'s bits in our mask: our own
        # are others on purpose (`workloads.base.dropout.keep_mask`); SpecAugment's coincide.
        with mock.patch.object(dropout, "keep_mask", jax.random.bernoulli):
            both = pair.outputs(*arguments, train=True, dropout_rate=_RATE)
        what = f"training, dropout {_RATE}, jax.random.bernoulli's bits"
        yield from _step_rows(label, what, pair, both)


def _start(side: Any, pair: Pair, key: Any, small: bool) -> tuple[Any, Any]:
    """By the workload's own function at full size; by its model where that was made smaller."""
    if small:
        return side.initial(key, *pair.examples())
    params, state = side.workload.init_model_fn(key)
    # Without model state AlgoPerf returns an empty dictionary, ours None.
    return params, state or {}


def _step_rows(label: str, what: str, pair: Pair, both: tuple[Any, Any]) -> Iterator[Row]:
    quantities = ("logits", "loss", "gradient", "batch statistics")[: 4 if pair.is_speech else 3]
    names = [f"{quantity}, {what}" for quantity in quantities]
    yield from step_rows(label, names, *both, pair.tolerances)


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


_FRONT_END = "algoperf.workloads.librispeech_conformer.librispeech_jax.librispeech_preprocessor"
# How much further than AlgoPerf's own our float32 gradient may be from float64's.
_NO_WORSE = 2.0


@contextlib.contextmanager
def double(installation: Installation) -> Iterator[None]:
    """Makes both models compute in float64 while they are traced and run inside.

    AlgoPerf's mel weights take their dtype as an argument, bound to float32 before. LibriSpeech's
    means and deviations have more digits in AlgoPerf than float32 holds; ours are the same in
    float32, and are given its digits here. Random numbers stay those of float32.
    """
    module = installation.module(_FRONT_END)
    mel = functools.partial(module.linear_to_mel_weight_matrix, dtype=jnp.float64)
    uniform = functools.partial(jax.random.uniform, dtype=np.float32)
    before = bool(jnp.asarray(0.0).dtype == np.float64)
    jax.config.update("jax_enable_x64", True)
    try:
        with contextlib.ExitStack() as patches:
            for where, name, value in (
                (jnp, "float32", jnp.float64),
                (jax.random, "uniform", uniform),
                (module, "linear_to_mel_weight_matrix", mel),
                (spectrogram, "_MEAN", module.LIBRISPEECH_MEAN_VECTOR),
                (spectrogram, "_STDDEV", module.LIBRISPEECH_STD_VECTOR),
            ):
                patches.enter_context(mock.patch.object(where, name, value))
            yield
    finally:
        jax.config.update("jax_enable_x64", before)


def double_rows(installation: Installation, name: str, variant: str) -> Iterator[Row]:
    """Yields a training step of the small model in float64, then float32's errors against it."""
    pair = workload_pairs.make(name, installation, variant=registry.get(variant), small=True)
    key = jax.random.PRNGKey(_KEY)
    params, state = pair.theirs.initial(key, *pair.examples())
    arguments = workload_pairs.moved(params, jax.random.key(1)), state, pair.batch()
    wide_arguments = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), arguments)
    single = jax.device_get(pair.outputs(*arguments, key, train=True))
    ours, theirs = pair.ours.workload, pair.theirs.workload
    with double(installation):
        config = dataclasses.replace(ours._model.config, dtype=jnp.float64)
        ours._model = ours._model.clone(config=config)
        theirs._model = theirs._model.clone(config=theirs._model.config.replace(dtype=jnp.float64))
        wide = jax.device_get(pair.outputs(*wide_arguments, key, train=True))
    label = f"{name}, small, {variant}"
    assert {leaf.dtype for leaf in jax.tree.leaves(wide)} == {np.dtype("float64")}
    names = (
        "logits, training, float64",
        "loss, float64",
        "gradient, float64",
        "batch statistics, float64",
    )
    yield from step_rows(label, names, *wide, (DOUBLE, DOUBLE))
    error, their_error = (
        norm_ratio(near[1], exact[1]) for near, exact in zip(single, wide, strict=True)
    )
    remark = f"ours {error:.1e}, AlgoPerf's {their_error:.1e}: their quotient"
    quantity = "gradient in float32 against float64"
    yield Row(label, quantity, error / their_error, _NO_WORSE, remark)


def variant_rows(installation: Installation, name: str, variant: str) -> Iterator[Row]:
    """Yields tree, initial values, and a training step without dropout; small models."""
    hyperparameters: dict[str, Any] = {"tau": 0.9} if "temp" in variant.split("+") else {}
    chosen = registry.get(variant, **hyperparameters)
    pair = workload_pairs.make(name, installation, variant=chosen, small=True)
    label = f"{name}, small, {variant}"
    key = jax.random.PRNGKey(_KEY)
    starts = [side.initial(key, *pair.examples()) for side in (pair.ours, pair.theirs)]
    yield Row(label, "tree and initial values, same key", largest(*starts), 0)
    params = workload_pairs.moved(starts[1][0], jax.random.key(1))
    yield formula_row(label, chosen, pair.theirs, params, starts[1][1], pair.batch(size=64))
    both = pair.outputs(params, starts[1][1], pair.batch(size=64), key, train=True)
    names = ("logits, training", "loss, training", "gradient, training")
    yield from step_rows(label, names, *both, pair.tolerances)


def formula_row(
    label: str, variant: Variant, side: Side, params: Any, state: Any, batch: Any
) -> Row:
    """Returns what the attention layers of a model come to, against the variant's formula.

    Each layer's own queries, keys and values go through `attention.verification.reference`, which
    is float64, written from the definitions. Rows that see no key are left out: they are
    the host's.
    """

    def forward(params: Any) -> dict[str, dict[str, Any]]:
        spy = _Spy()
        with side.context(), nn.intercept_methods(spy.follow):
            key = jax.random.PRNGKey(_KEY)
            side.workload.model_fn(params, batch, state, side.modes.EVAL, key, False)
        return spy.layers

    outputs, exact = {}, {}
    for path, layer in jax.device_get(jax.jit(forward)(params)).items():
        mask = layer.get("mask")
        visible = True if mask is None else np.any(mask, axis=-1).swapaxes(-1, -2)[..., None] > 0
        outputs[path] = np.where(visible, layer["out"], 0)
        exact[path] = np.where(visible, _formula(variant, path, params, layer, mask), 0)
    return Row(label, "attention's outputs, float64 formula", largest(outputs, exact), CLOSE)


def _formula(
    variant: Variant, path: str, params: Any, layer: dict[str, Any], mask: Any
) -> np.ndarray:
    """Returns a layer's outputs [B, T, H, D] in float64, its learned factors and λ included."""
    leaves = params
    for name in path.split("/"):
        leaves = leaves[name]
    if "QueryScaler_0" in leaves:
        # The Conformer's own factor of the query has the formula of `per_dim_temp`.
        leaves = {**leaves, "per_dim_temp": leaves["QueryScaler_0"]}
        variant = registry.get(f"{variant.name}+per_dim_temp", **variant.hyperparameters)
    depth = workload_pairs._depth(path)
    names = ("query", "key", "value")
    return np.stack(
        [
            reference.compute(
                variant,
                leaves,
                {name: layer[name][at] for name in names},
                np.zeros_like(layer["query"][at]),
                None if mask is None else mask[at] > 0,
                layer=depth,
            ).output
            for at in range(len(layer["query"]))
        ]
    )


class _Spy:
    """Keeps queries, keys, values, mask and outputs of every attention layer, by its path."""

    def __init__(self) -> None:
        self.layers: dict[str, dict[str, Any]] = {}

    def follow(
        self, call: Any, args: Any, kwargs: Any, context: nn.module.InterceptorContext
    ) -> Any:
        output = call(*args, **kwargs)
        module, path = context.module, context.module.path
        if isinstance(module, nn.MultiHeadDotProductAttention):
            if kwargs.get("mask") is not None:
                self.layers["/".join(path)]["mask"] = kwargs["mask"]
        elif isinstance(module, nn.DenseGeneral) and context.method_name == "__call__":
            layer = self.layers.setdefault("/".join(path[:-1]), {})
            layer[path[-1]] = args[0] if path[-1] == "out" else output
        return output
