"""Parity of variants: our model with a variant, and AlgoPerf's with `attention.inject`."""

from collections.abc import Iterator
from typing import Any

import jax

from attention import registry
from workloads import table
from workloads.algoperf import parity_pairs
from workloads.algoperf.installation import Installation
from workloads.algoperf.parity_pairs import Pair
from workloads.algoperf.parity_rows import CLOSE, SPEECH_GRADIENT, Row, largest, norm_ratio

_KEY = 13
_TAU = 0.9
# Every mixer and every modifier; the Conformer's steps take a minute each to compile on CPU cores.
_VARIANTS = (
    "standard",
    "laser",
    "diff",
    "diff_laser",
    "standard+temp",
    "laser+qk_norm",
    "laser+per_dim_temp",
)


def variants_of(name: str) -> tuple[str, ...]:
    """Returns the variants compared on a workload: those that its host model can have."""
    twice = set(table.entry(name).host_modifiers)
    return tuple(row for row in _VARIANTS if not twice & set(row.split("+")[1:]))


def variant_rows(name: str, variant: str, installation: Installation) -> Iterator[Row]:
    """Yields tree, initial values, and a training step without dropout; small models."""
    hyperparameters: dict[str, Any] = {"tau": _TAU} if "temp" in variant.split("+") else {}
    chosen = registry.get(variant, **hyperparameters)
    pair = parity_pairs.make(name, installation, variant=chosen, small=True)
    label = f"{name}, small, {variant}"
    key = jax.random.PRNGKey(_KEY)
    starts = [side.initial(key, *pair.examples()) for side in (pair.ours, pair.theirs)]
    yield Row(label, "tree and initial values, same key", largest(*starts), 0)
    params = parity_pairs.moved(starts[1][0], jax.random.key(1))
    yield from _step_rows(label, pair, params, starts[1][1], key)


def _step_rows(label: str, pair: Pair, params: Any, state: Any, key: Any) -> Iterator[Row]:
    batch = pair.batch(size=64)
    ours, theirs = (
        side.outputs(params, state, batch, key, train=True, gradient=True)
        for side in (pair.ours, pair.theirs)
    )
    (loss, (logits, _)), gradient = ours
    (their_loss, (their_logits, _)), their_gradient = theirs
    yield Row(label, "logits, training", largest(logits, their_logits), CLOSE)
    yield Row(label, "loss, training", largest(loss, their_loss), CLOSE)
    allowed = SPEECH_GRADIENT if pair.is_speech else CLOSE
    yield Row(label, "gradient, training", norm_ratio(gradient, their_gradient), allowed)
