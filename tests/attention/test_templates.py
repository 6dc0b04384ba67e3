"""docs/templates.md: both versions of each block, the template's and the one with a variant."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from jax.sharding import PartitionSpec

from attention import registry
from attention.kernels.inputs import make_call
from attention.variant import Variant
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
