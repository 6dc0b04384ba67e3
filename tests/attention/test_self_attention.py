"""Which calls are self-attention, and what a call of a module can and cannot say."""

import contextlib
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from flax import nnx

from attention import inject, registry
from attention.kernels.inputs import make_call
from tests.python_processes import start_python

FLAX = nn.MultiHeadDotProductAttention
MASK = np.tril(np.ones((2, 1, 6, 6), bool))
LAYER = functools.partial(FLAX, num_heads=2, name="layer")

pytestmark = pytest.mark.filterwarnings(
    "ignore:SelfAttention will be deprecated", "ignore:The inputs_kv arg will be deprecated"
)


class MaskFirst(FLAX):
    """A subclass with arguments in another order."""

    @nn.compact
    def __call__(self, mask, hidden):
        return super().__call__(hidden, mask=mask)


class OwnProjections(FLAX):
    """A subclass that never calls flax's method: what it attends to is not in its arguments."""

    @nn.compact
    def __call__(self, mask, hidden, context=None):
        context = hidden if context is None else context
        heads = [nn.DenseGeneral((2, 4), name=name)(hidden) for name in ("query", "key")]
        value = nn.DenseGeneral((2, 4), name="value")(context)
        output = self.attention_fn(*heads, value, mask=mask)
        return nn.DenseGeneral(8, axis=(-2, -1), name="out")(output)


class Scanned(FLAX):
    """A step of nn.scan: queries of the carry, keys of an array that all steps share."""

    @nn.compact
    def __call__(self, inputs_q, inputs_k):
        return super().__call__(inputs_q, inputs_k), None


SCAN = functools.partial(
    nn.scan, length=2, in_axes=nn.broadcast, variable_axes={"params": 0}, split_rngs={"params": 1}
)


class Model(nn.Module):
    """One layer, called by `call`."""

    call: object

    @nn.compact
    def __call__(self, inputs):
        return self.call(inputs)


def _plain(x):
    return LAYER()(x, mask=MASK)


@pytest.fixture
def inputs():
    return jnp.asarray(np.random.default_rng(1).standard_normal((2, 6, 8)), jnp.float32)


def _of_two_norms(x):
    norm = nn.LayerNorm(use_scale=False, use_bias=False)
    return LAYER()(norm(x), norm(x), mask=MASK)


def _of_one_norm(x):
    norm = nn.LayerNorm(use_scale=False, use_bias=False)
    return LAYER()(norm(x), mask=MASK)


def _apply(call, inputs, name="standard+gate+rope", **settings):
    """Returns the output of a model with a variant injected, its parameters far from the start."""
    variant = registry.get(name)
    with inject.injected(variant, **settings):
        params = Model(_plain).init(jax.random.key(0), inputs)
        params = jax.tree.map(lambda leaf: leaf + 0.1, params)
        return Model(call).apply(params, inputs)


@pytest.mark.parametrize(
    ("call", "settings", "plain"),
    [
        (lambda x: nn.SelfAttention(2, name="layer")(x, MASK), {}, _plain),
        (lambda x: nn.MultiHeadAttention(2, name="layer")(x, x, mask=MASK), {}, _plain),
        (lambda x: LAYER()(mask=MASK, inputs_k=x, inputs_q=x), {}, _plain),
        (lambda x: LAYER()(x, inputs_kv=x, mask=MASK), {}, _plain),
        (lambda x: nn.remat(FLAX)(2, name="layer")(x, x, mask=MASK), {"is_cross": False}, _plain),
        (lambda x: nn.jit(FLAX)(2, name="layer")(x, mask=MASK), {}, _plain),
        (lambda x: MaskFirst(2, name="layer")(mask=MASK, hidden=x), {}, _plain),
        (lambda x: OwnProjections(2, name="layer")(mask=MASK, hidden=x), {}, _plain),
        (_of_two_norms, {"is_cross": lambda path: path != "layer"}, _of_one_norm),
        (_of_two_norms, {"is_cross": False}, _of_one_norm),
    ],
    ids=[
        *("SelfAttention", "alias", "keywords", "inputs_kv", "remat", "jit"),
        *("mask_first", "own_projections", "said_by_path", "said"),
    ],
)
def test_self_attention_is_what_the_call_binds_or_the_user_says(inputs, call, settings, plain):
    """RoPE and a gate of the block's input act as in a plain call of flax's module."""
    output = _apply(call, inputs, **settings)
    np.testing.assert_allclose(output, _apply(plain, inputs), atol=1e-6)
    assert np.abs(output - _apply(plain, inputs, "standard+gate")).max() > 1e-3


def test_queries_and_keys_decide_and_values_do_not(inputs):
    """Queries and keys with positions added, values without, as in DETR."""

    def attend(factor, x):
        query = x + 1.0
        return LAYER()(query, query, factor * x)

    outputs = [_apply(functools.partial(attend, factor), inputs) for factor in (1, 2)]
    assert np.abs(outputs[0] - outputs[1]).max() > 1e-3


# By name: a call of another sequence, or of one that is not known to be the same, and settings.
OTHERS = {
    "other": (lambda x: LAYER()(x, x[::-1]), {}),
    "length": (lambda x: LAYER()(x[:, :1], x), {}),
    "remat": (lambda x: nn.remat(FLAX)(2, name="layer")(x, x[::-1]), {}),
    "own_projections": (lambda x: OwnProjections(2, name="layer")(MASK, x, x[::-1]), {}),
    "carry": (lambda x: SCAN(Scanned)(2, name="layer")(x, x)[0], {}),
    "norms": (_of_two_norms, {}),
    "said": (_plain, {"is_cross": lambda path: True}),
    "no_answer": (_plain, {"is_cross": lambda path: "no"}),
}


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *(("rope", kind) for kind in OTHERS),
        ("window", "other"),
        ("alibi", "length"),
        ("xsa", "said"),
    ],
)
def test_other_calls_are_refused(inputs, name, kind):
    call, settings = OTHERS[kind]
    with (
        pytest.raises(ValueError, match="is_cross|1 query and 6 keys .a cached decoder"),
        inject.injected(registry.get(f"standard+{name}"), **settings),
    ):
        Model(call).init(jax.random.key(0), inputs)


@pytest.mark.parametrize("name", ["rope", "window", "alibi", "xsa"])
def test_a_bare_variant_does_not_know_whose_keys_it_gets(inputs, name):
    """Of a module's attention_fn; AttentionFunction knows, for Linen and NNX."""
    variant = registry.get(f"standard+{name}")

    def linen(function):
        return FLAX(2, attention_fn=function).init_with_output(jax.random.key(0), inputs)[0]

    def of_nnx(function):
        settings = {"decode": False, "rngs": nnx.Rngs(0)}
        return nnx.MultiHeadAttention(2, 8, attention_fn=function, **settings)(inputs)

    for run in (linen, of_nnx):
        with pytest.raises(ValueError, match="AttentionFunction"):
            run(variant)
        assert run(inject.AttentionFunction(variant)).shape == inputs.shape
    query = inputs.reshape(2, 6, 2, 4)
    assert variant(query, query, query).shape == query.shape


@pytest.mark.parametrize("index", [0, np.int64(0), np.array(0), jnp.int32(0)])
def test_a_layers_index_may_be_any_integer(inputs, index):
    """The first layer of a value residual leaves its values, by a rule and by hand."""
    variant = registry.get("standard+value_residual")
    expected = registry.get("standard")
    outputs = []
    for chosen, rule in ((variant, lambda path: index), (expected, None)):
        with inject.injected(chosen, layer=rule):
            params = FLAX(2).init(jax.random.key(0), inputs)
            outputs.append(FLAX(2).apply(params, inputs))
    np.testing.assert_array_equal(*outputs)
    query = inputs.reshape(2, 6, 2, 4)
    assert type(make_call(query, query, query, layer=index).layer.index) is int


@pytest.mark.parametrize("index", [-1, np.int64(-1), 0.0, np.float32(1), "1", True, [0], None])
def test_other_indices_are_refused_at_their_path(inputs, index):
    with (
        pytest.raises(ValueError, match=r"layer"),
        inject.injected(registry.get("diff"), layer=lambda path: index),
    ):
        Model(_plain).init(jax.random.key(0), inputs)


@pytest.mark.parametrize("names", [("standard", "laser"), ("laser", "laser"), ("laser",) * 3])
def test_nested_contexts_are_named(inputs, names):
    with contextlib.ExitStack() as stack:
        stack.enter_context(
            pytest.raises(RuntimeError, match=f"{names[0]!r} is injected around {names[1]!r}")
        )
        for name in names:
            stack.enter_context(inject.injected(registry.get(name)))
        Model(_plain).init(jax.random.key(0), inputs)


class Twice(FLAX):
    """A module that calls its attention function twice."""

    @nn.compact
    def __call__(self, inputs):
        heads = inputs.reshape(*inputs.shape[:-1], 2, -1)
        return self.attention_fn(self.attention_fn(heads, heads, heads), heads, heads)


@pytest.mark.parametrize("name", ["laser+gate", "standard+qk_norm", "diff", "standard+sink"])
def test_learned_factors_are_made_once_in_a_module(inputs, name):
    """Two attention calls in one module: injected, and by functions that a user makes."""
    variant, heads = registry.get(name), inputs.reshape(2, 6, 2, 4)

    def call(x):
        for _ in range(2):
            inject.AttentionFunction(variant, 0, x)(heads, heads, heads)

    with pytest.raises(ValueError, match="twice in one module, Model"):
        Model(call).init(jax.random.key(0), inputs)
    with (
        pytest.raises(ValueError, match="twice in one module, Twice"),
        inject.injected(variant, layer=lambda path: 0),
    ):
        Twice(2).init(jax.random.key(0), inputs)


@pytest.mark.parametrize(
    ("name", "settings", "value"),
    [
        ("laser+window", {"width": np.int64(8)}, 8),
        ("laser+window", {"width": np.uint8(8)}, 8),
        ("laser+temp", {"tau": np.float32(0.5)}, 0.5),
        ("laser+temp", {"tau": np.float16(0.5)}, 0.5),
        ("laser+softcap", {"cap": np.int32(30)}, 30.0),
        ("laser+rope", {"base": np.float64(100)}, 100.0),
        ("laser+sink", {"learned": np.bool_(False)}, False),
        ("diff", {"head_norm": np.bool_(False)}, False),
        ("laser+gate", {"per": np.str_("head")}, "head"),
    ],
)
def test_numpys_numbers_are_pythons(name, settings, value):
    """In the identity of a variant, and by type; a boolean is no number."""
    (key,) = settings
    variant = registry.get(name, **settings)
    assert type(variant.hyperparameters[key]) is type(value)
    assert variant == registry.get(name, **{key: value})
    if not isinstance(value, bool):
        with pytest.raises(ValueError, match=key):
            registry.get(name, **{key: np.bool_(True)})


EXPLICIT = """
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
from attention import registry
from attention.flex import flex

enter = jax.set_mesh if hasattr(jax, "set_mesh") else jax.sharding.use_mesh
mesh = jax.make_mesh((2, 2), ("data", "model"), axis_types=(AxisType.Explicit,) * 2)
capped = lambda logits, query, key, leaves: 5 * jnp.tanh(logits / 5)
functions = [lambda q, k, v: flex(q, k, v, score=capped, bias=jnp.ones((8, 1, 6)))]
functions += [registry.get(name) for name in ("standard+xsa", "standard+window")]
for groups, axis in ((2, "model"), (1, None), (4, None)):
    shapes = ((2, 6, 8, 4), (2, 6, groups, 4), (2, 6, groups, 4))
    arrays = [jax.random.normal(jax.random.key(i), shape) for i, shape in enumerate(shapes)]
    for function in functions:
        both = jax.value_and_grad(lambda *a: jnp.sin(function(*a)).sum(), argnums=(0, 1, 2))
        expected = both(*arrays)
        with enter(mesh):
            axes = ("model", axis, axis)
            lying = [NamedSharding(mesh, P("data", None, name, None)) for name in axes]
            output = jax.jit(both)(*map(jax.device_put, arrays, lying))
        for ours, theirs in zip(jax.tree.leaves(output), jax.tree.leaves(expected)):
            np.testing.assert_allclose(np.asarray(ours), theirs, rtol=1e-5, atol=3e-6)
print("equal")
"""


def test_fewer_heads_of_keys_on_a_mesh_with_explicit_axes():
    """Heads of keys divided over the devices, and too few to divide, beside a bias that is whole on
    each device: output and gradients."""
    output, errors = start_python(EXPLICIT, 4).communicate()
    assert output.strip() == "equal", errors[-1500:]
