"""Learned leaves outside Flax: made by `Variant.leaves`, given to `Variant.attend`."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import traverse_util

from attention import registry, table
from attention.kernels.inputs import make_call
from attention.verification import check

NAMES = (
    *table.MIXERS,
    *(f"laser+{modifier}" for modifier in table.MODIFIERS),
    "diff+gate+per_dim_temp+qk_norm+rope+sink+softcap+temp+value_residual+window",
    "diff2_laser+alibi+fox+gate+qk_rms_norm+sink+ssmax+xsa",
)


def _layer(name):
    """Returns a variant, arrays by name, and a Linen module's leaves, away from their start."""
    variant = registry.get(name)
    arrays = {key: jnp.asarray(array) for key, array in check.draw(variant, (12, 2, 8)).items()}
    arrays.pop("cotangent")
    return variant, arrays, check.leaves(variant, arrays, 0.3)


def _call(arrays):
    inputs = {name: arrays[name] for name in ("query", "key", "value", "x") if name in arrays}
    memory = {name: array for name, array in arrays.items() if name not in inputs}
    return make_call(**inputs, layer=check.LAYER, memory=memory)


@pytest.mark.parametrize("name", NAMES)
def test_leaves_are_linen_s_and_give_its_output_and_gradients_to_the_bit(name):
    variant, arrays, params = _layer(name)
    host = check.Host(variant, check.LAYER)
    given = traverse_util.flatten_dict(params, sep="/")
    start = host.init(jax.random.key(0), **arrays).get("params", {})
    made = variant.leaves(_call(arrays), jax.random.key(1))
    assert {path: (leaf.shape, leaf.dtype) for path, leaf in made.items()} == {
        path: (leaf.shape, leaf.dtype)
        for path, leaf in traverse_util.flatten_dict(start, sep="/").items()
    }

    def ours(leaves, arrays):
        return variant.attend(_call(arrays), leaves=leaves)[0]

    def linen(leaves, arrays):
        params = traverse_util.unflatten_dict(leaves, sep="/")
        return host.apply({"params": params}, **arrays)

    for function in (ours, linen):
        output, pull = jax.vjp(function, given, arrays)
        results = [output, pull(jnp.cos(output))]
        if function is ours:
            expected = results
    jax.tree.map(np.testing.assert_array_equal, results, expected)


def test_what_is_no_tree_of_the_variant_is_refused_by_name():
    variant, arrays, _ = _layer("laser+gate+qk_norm")
    call = _call(arrays)
    leaves = variant.leaves(call)
    assert not any(map(np.any, leaves.values()))
    gate = leaves["gate/scale"]
    for changed, named in (
        ({key: leaf for key, leaf in leaves.items() if key != "gate/scale"}, "'gate/scale'"),
        (leaves | {"gate/scale": gate[1:]}, str(list(gate.shape))),
        (leaves | {"sink/scale": gate}, "'sink/scale'"),
        (list(leaves.values()), "list"),
    ):
        with pytest.raises(ValueError, match=re.escape(named)):
            variant.attend(call, leaves=changed)


@pytest.mark.parametrize("name", [name for name in table.MIXERS if name.startswith("diff_")])
def test_starts_that_are_drawn_need_a_key_and_differ_by_leaf(name):
    variant, arrays, _ = _layer(name)
    call = _call(arrays)
    with pytest.raises(ValueError, match=re.escape("jax.random.key")):
        variant.leaves(call)
    with pytest.raises(ValueError, match=re.escape("jax.random.key")):
        variant.leaves(call, 0)
    first, second = (variant.leaves(call, jax.random.key(seed)) for seed in (0, 1))
    drawn = [np.asarray(leaf).ravel() for leaf in first.values() if np.any(leaf)]
    assert len({float(leaf[0]) for leaf in drawn}) == len(drawn) > 1
    assert all(np.any(first[path] != second[path]) for path in first if np.any(first[path]))


def test_leaves_follow_jit_grad_and_shapes_alone():
    """Layers of one shape share a program, and no array of the call is computed with."""
    variant, arrays, params = _layer("standard+fox+gate")
    given = traverse_util.flatten_dict(params, sep="/")
    shapes = jax.eval_shape(lambda arrays: variant.leaves(_call(arrays)), arrays)
    assert {path: leaf.shape for path, leaf in shapes.items()} == {
        path: leaf.shape for path, leaf in given.items()
    }
    loss = jax.jit(lambda leaves: jnp.sum(variant.attend(_call(arrays), leaves=leaves)[0] ** 2))
    assert all(np.any(leaf) for leaf in jax.grad(loss)(given).values())
