"""Parity of variants: our model with a variant, and AlgoPerf's with `attention.inject`.

Both compute the variant by our code, which says nothing of the variant's formula: that is what
`formula_row` holds against float64.
"""

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from flax import linen as nn

from attention import registry
from attention.variant import Variant
from attention.verification import oracle
from tests.algoperf.parity import workload_pairs
from tests.algoperf.parity.rows import CLOSE, Row, largest
from tests.algoperf.parity.workload_pairs import Side, step_rows
from workloads.algoperf.installation import Installation

_KEY = 13
_TAU = 0.9


def variant_rows(installation: Installation, name: str, variant: str) -> Iterator[Row]:
    """Yields tree, initial values, and a training step without dropout; small models."""
    hyperparameters: dict[str, Any] = {"tau": _TAU} if "temp" in variant.split("+") else {}
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
    yield from step_rows(label, names, *both, pair.tolerances, select=workload_pairs.valid)


def formula_row(
    label: str, variant: Variant, side: Side, params: Any, state: Any, batch: Any
) -> Row:
    """Returns what the attention layers of a model come to, against the variant's formula.

    Each layer's own queries, keys and values go through `attention.verification.oracle`, which
    is numpy in float64, written from the definitions. Rows that see no key are left out: they are
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
    arrays = [layer[name] for name in ("query", "key", "value", "query")]
    return np.stack(
        [
            oracle.compute(
                variant, leaves, list(example), None if mask is None else mask[at] > 0, depth
            ).output
            for at, example in enumerate(zip(*arrays, strict=True))
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
