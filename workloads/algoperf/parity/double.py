"""Parity of the Conformer in float64, where rounding is 1e-16 and formulas are all that is left.

In float32 both gradients are some 1e-5 off what they would be without rounding, so that comparing
them alone says little. Both models name float32 themselves here and there; while they are traced,
that name is given another meaning. Neither's code is changed.
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

from attention import registry
from workloads.algoperf.installation import Installation
from workloads.algoperf.parity import models, workload_pairs
from workloads.algoperf.parity.rows import DOUBLE, Row, largest, norm_ratio
from workloads.algoperf.parity.workload_pairs import Pair
from workloads.speech import spectrogram

_FRONT_END = "algoperf.workloads.librispeech_conformer.librispeech_jax.librispeech_preprocessor"
_KEY = 11
VARIANTS = ("standard", "laser", "diff_laser")
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


def rows(name: str, variant: str, installation: Installation) -> Iterator[Row]:
    """Yields a training step of the small model in float64, then float32's errors against it."""
    pair = workload_pairs.make(name, installation, variant=registry.get(variant), small=True)
    key = jax.random.PRNGKey(_KEY)
    params, state = pair.theirs.initial(key, *pair.examples())
    given = workload_pairs.moved(params, jax.random.key(1)), state, pair.batch()
    single = _steps(pair, given, key)
    with double(installation):
        wide = _steps(_doubled(pair), _wide(given), key)
    label = f"{name}, small, {variant}"
    yield from _step_rows(label, *wide)
    yield _error_row(label, single, wide)


def _steps(pair: Pair, given: Any, key: Any) -> tuple[Any, Any]:
    """Returns ours and AlgoPerf's losses, logits, states and gradients, in their precision."""
    settings: dict[str, Any] = {"train": True, "gradient": True}
    params, state, batch = given
    ours, theirs = (
        side.outputs(params, state, batch, key, **settings) for side in (pair.ours, pair.theirs)
    )
    return jax.device_get(ours), jax.device_get(theirs)


def _doubled(pair: Pair) -> Pair:
    ours, theirs = pair.ours.workload, pair.theirs.workload
    ours._model = ours._model.clone(
        config=dataclasses.replace(ours._model.config, dtype=jnp.float64)
    )
    theirs._model = theirs._model.clone(config=theirs._model.config.replace(dtype=jnp.float64))
    return pair


def _wide(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), tree)


def _step_rows(label: str, ours: Any, theirs: Any) -> Iterator[Row]:
    ((loss, (logits, state)), gradient) = ours
    ((their_loss, (their_logits, their_state)), their_gradient) = theirs
    _check_precision(ours, theirs)
    yield Row(label, "logits, training, float64", largest(logits, their_logits), DOUBLE)
    yield Row(label, "loss, float64", largest(loss, their_loss), DOUBLE)
    yield Row(label, "gradient, float64", norm_ratio(gradient, their_gradient), DOUBLE)
    difference = largest(models.flat(state), models.flat(their_state))
    yield Row(label, "batch statistics, float64", difference, DOUBLE)


def _check_precision(*trees: Any) -> None:
    """Raises TypeError where a result is not float64: the comparison would prove nothing."""
    found = {str(leaf.dtype) for leaf in jax.tree.leaves(trees)}
    if found != {"float64"}:
        raise TypeError(f"results have dtypes {sorted(found)}, wanted float64 alone")


def _error_row(label: str, single: Any, wide: Any) -> Row:
    ours, theirs = (norm_ratio(near[1], exact[1]) for near, exact in zip(single, wide, strict=True))
    remark = f"ours {ours:.1e}, AlgoPerf's {theirs:.1e}: their quotient"
    quantity = "gradient in float32 against float64"
    return Row(label, quantity, ours / theirs, _NO_WORSE, remark)
