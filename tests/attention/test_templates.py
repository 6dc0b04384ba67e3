"""Learned leaves outside Flax, by Variant.leaves; both versions of docs/templates.md's blocks."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from flax import traverse_util
from jax.sharding import PartitionSpec

from attention import registry, table
from attention.kernels.inputs import make_call
from attention.variant import Variant
from attention.verification import check
from tests.floor_plan import ROOT
from tests.python_processes import start_python

PAGE = (ROOT / "docs/templates.md").read_text(encoding="utf-8")
LINEN, RAW = re.findall(r"^```diff\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
WIDTH, HEADS = 16, 4


def side(block, sign):
    """Returns what a diff's side defines; sign: "-" of the template, "+" of ours."""
    lines = [line[1:] for line in block.splitlines() if line[:1] in ("", " ", sign)]
    names = {"functools": functools, "jax": jax, "jnp": jnp, "nn": nn, "Variant": Variant}
    names |= {"PartitionSpec": PartitionSpec, "make_call": make_call}
    exec("\n".join(lines), names)
    return names


def normal(*shape):
    return jnp.asarray(np.random.default_rng(shape).normal(size=shape), jnp.float32)


def test_a_linen_module_with_its_softmax_inline():
    x = normal(4, 6, WIDTH)
    before = side(LINEN, "-")["CausalAttn"](HEADS)
    made = functools.partial(side(LINEN, "+")["CausalAttn"], HEADS)
    params = before.init(jax.random.key(0), x)
    same = made(registry.get("standard")).apply(params, x)
    np.testing.assert_allclose(same, before.apply(params, x), rtol=1e-5, atol=1e-6)
    learning = made(registry.get("laser+fox+gate+qk_norm"))
    params = learning.init(jax.random.key(0), x)
    gradient = jax.grad(lambda params: jnp.sum(learning.apply(params, x) ** 2))(params)
    assert {"gate", "fox", "query_ln", "key_ln"} <= set(params["params"])
    assert all(map(np.any, jax.tree.leaves(gradient)))


# On two by two devices as on one: the output's gradients with respect to everything.
EXPLICIT = """
import functools
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
from attention import registry
from tests.attention.test_templates import RAW, normal, side

enter = jax.set_mesh if hasattr(jax, "set_mesh") else jax.sharding.use_mesh
template, ours = side(RAW, "-"), side(RAW, "+")
heads = dict.fromkeys(("query", "key", "value"), P(None, "model"))
x = normal(4, 6, 16)

def results(devices, layer, variant, groups):
    mesh = jax.make_mesh(devices, ("data", "model"), axis_types=(AxisType.Explicit,) * 2)
    lie = lambda array, spec: jax.device_put(array, NamedSharding(mesh, spec))
    shapes = {"query": (16, 4, 4), "key": (16, groups, 4), "value": (16, groups, 4)}
    params = {name: lie(normal(*shape) / 4, heads[name]) for name, shape in shapes.items()}
    params["out"] = lie(normal(4, 4, 16), P("model"))
    attend = functools.partial(jax.nn.dot_product_attention, is_causal=True)
    with enter(mesh):
        rows = lie(x, P("data"))
        if variant is not None:
            params = ours["initial"](variant, params, rows, jax.random.key(0))
            attend = variant.attend
        loss = lambda params, x: jnp.sin(layer(params, x, attend)).sum()
        return jax.jit(jax.value_and_grad(loss, (0, 1)))(params, rows)

def compare(first, second):
    for one, other in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
        assert np.any(one)
        np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=1e-4, atol=1e-4)

standard = registry.get("standard")
_, (before, _) = results((2, 2), template["layer"], None, 4)
_, (after, _) = results((2, 2), ours["layer"], standard, 4)
assert after.pop("attention") == {}
compare(before, after)
learning = registry.get("laser+fox+gate+qk_norm")
one, four = (results(devices, ours["layer"], learning, 2) for devices in ((1, 1), (2, 2)))
compare(one, four)
print("equal", sorted(one[1][0]["attention"]))
"""


@pytest.mark.skipif(jax.__version_info__ < (0, 10), reason="JAX refuses jnp.where of two shardings")
def test_raw_arrays_on_a_mesh_with_explicit_axes():
    """The template's numbers, and of grouped heads and learned leaves those of one device."""
    output, errors = start_python(EXPLICIT, 4).communicate()
    learned = ["fox/scale", "fox/scale_bias", "gate/scale", "key_ln/scale", "query_ln/scale"]
    assert output.strip() == f"equal {learned}", errors[-1500:]


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
        return host.apply({"params": traverse_util.unflatten_dict(leaves, sep="/")}, **arrays)

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
