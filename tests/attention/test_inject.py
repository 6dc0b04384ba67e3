"""Injection into models we did not write."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from flax import nnx

from attention import inject, registry

_FLAX = nn.MultiHeadDotProductAttention


class Block(nn.Module):
    """A plain host: two attention layers, one of them crossing."""

    @nn.compact
    def __call__(self, inputs):
        inputs = nn.MultiHeadDotProductAttention(2)(inputs)
        return nn.MultiHeadDotProductAttention(2)(inputs[:, :3], inputs)


class Scaler(nn.Module):
    """A learned factor on the query, as a host's own attention function may have."""

    @nn.compact
    def __call__(self, query):
        scale = self.param("scale", nn.initializers.constant(0.7), (query.shape[-1],))
        return query * (1 + scale)


def foreign_attention(
    query,
    key,
    value,
    bias=None,
    mask=None,
    broadcast_dropout=True,
    dropout_rng=None,
    dropout_rate=0.0,
    deterministic=False,
    dtype=jnp.float32,
    precision=None,
    temperature=1.0,
):
    """Flax's function with a learned scaler in it and a factor on its output."""
    query = Scaler()(query)
    output = nn.dot_product_attention(
        query, key, value, bias, mask, broadcast_dropout, dropout_rng, dropout_rate,
        deterministic, dtype, precision,
    )  # fmt: skip
    return output * temperature


@pytest.fixture
def inputs():
    return jnp.asarray(np.random.default_rng(1).standard_normal((2, 5, 8)), jnp.float32)


def _init(model, inputs, variant=None):
    if variant is None:
        return model.init(jax.random.key(0), inputs)
    with inject.injected(variant):
        return model.init(jax.random.key(0), inputs)


@pytest.mark.parametrize("name", ["standard", "laser", "standard+temp", "laser+temp"])
def test_parameter_tree_is_bit_identical_to_the_host(inputs, name):
    """And so is standard's output."""
    host, ours = _init(Block(), inputs), _init(Block(), inputs, registry.get(name))
    assert jax.tree.structure(host) == jax.tree.structure(ours)
    assert jax.tree.all(jax.tree.map(np.array_equal, host, ours))
    if name == "standard":
        with inject.injected(registry.get(name)):
            output = Block().apply(host, inputs)
        np.testing.assert_allclose(output, Block().apply(host, inputs), atol=1e-6)


def test_inside_jit_and_variants_do_not_mix(inputs):
    params = _init(Block(), inputs)

    @functools.partial(jax.jit, static_argnums=0)
    def run(variant, inputs):
        with inject.injected(variant):
            return Block().apply(params, inputs)

    of_standard, of_laser = (run(registry.get(name), inputs) for name in ("standard", "laser"))
    assert np.abs(of_standard - of_laser).max() > 1e-4
    np.testing.assert_array_equal(run(registry.get("standard"), inputs), of_standard)


def _nnx(variant, linen_params=None, **settings):
    """An NNX layer of width 8, with a Linen layer's parameters where they are given."""
    settings = {"decode": False, "rngs": nnx.Rngs(0), **settings}
    layer = nnx.MultiHeadAttention(2, 8, attention_fn=variant, **settings)
    for name, leaves in (linen_params or {}).items():
        for leaf, array in leaves.items():
            getattr(getattr(layer, name), leaf)[...] = array
    return layer


@pytest.mark.parametrize("name", ["standard", "laser+temp", "sigmoid", "laser+softcap"])
def test_nnx_takes_a_variant_as_its_attention_fn(inputs, name):
    """Forward as Linen's with a mask; one position at a time through NNX's cache the same."""
    variant = registry.get(name, **({"tau": 0.8} if "temp" in name else {}))
    linen = nn.MultiHeadDotProductAttention(2, attention_fn=variant)
    mask = jnp.tril(jnp.ones((5, 5), bool))
    params = linen.init(jax.random.key(0), inputs)
    whole = linen.apply(params, inputs, mask=mask)
    output = _nnx(variant, params["params"])(inputs, mask=mask)
    np.testing.assert_allclose(output, whole, atol=1e-6)
    cached = _nnx(variant, params["params"], decode=True)
    cached.init_cache(inputs.shape)
    steps = [cached(inputs[:, position : position + 1]) for position in range(5)]
    np.testing.assert_allclose(jnp.concatenate(steps, axis=1), whole, atol=2e-6)


class Grouped(_FLAX):
    """A subclass with half as many heads of keys and values, which calls its function."""

    @nn.compact
    def __call__(self, inputs, **kwargs):
        heads = nn.DenseGeneral((self.num_heads, 4), name="query")(inputs)
        return self.attention_fn(heads, heads[..., ::2, :], 3 * heads[..., ::2, :])


@pytest.mark.parametrize("name", ["standard", "laser"])
def test_grouped_heads_before_a_models_own_function(inputs, name):
    outputs = []
    for function in (nn.dot_product_attention, foreign_attention):
        layer = Grouped(num_heads=4, attention_fn=function)
        with inject.injected(registry.get(name)):
            params = layer.init(jax.random.key(0), inputs)
            outputs.append(layer.apply(jax.tree.map(jnp.ones_like, params), inputs))
    assert outputs[0].shape == outputs[1].shape == (2, 5, 4, 4)


@pytest.mark.parametrize("name", ["laser+qk_norm", "standard+sink", "diff"])
def test_nnx_has_no_place_for_learned_factors_and_cannot_be_injected_into(inputs, name):
    variant = functools.partial(registry.get(name), layer=0)
    with pytest.raises(ValueError, match="learned factors.*flax.linen.*variant.leaves"):
        _nnx(variant)(inputs)
    with (
        pytest.raises(RuntimeError, match=r"flax\.nnx model cannot be injected.*inject\.assign"),
        inject.injected(registry.get("laser")),
    ):
        _nnx(nnx.dot_product_attention)(inputs)


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("toy", "toy"),
        ("sigmoid", "sigmoid"),
        ("laser+softcap", "softcap"),
        ("standard+sink", "sink"),
    ],
)
def test_a_softmax_of_the_models_own_refuses_other_weights(inputs, toy, name, part):
    with pytest.raises(ValueError, match=f"'{part}'"), inject.injected(registry.get(name)):
        _foreign().init(jax.random.key(0), inputs)


def test_a_name_is_no_variant():
    with pytest.raises(ValueError, match=r"give registry.get\('laser'\)"), inject.injected("laser"):
        pass


def _foreign(temperature=1.0, **settings):
    return nn.MultiHeadDotProductAttention(
        num_heads=2,
        attention_fn=functools.partial(foreign_attention, temperature=temperature),
        **settings,
    )


def test_foreign_function_keeps_its_scaler_and_standard_is_untouched(inputs):
    layer = _foreign(1.7)
    host = _init(layer, inputs)
    assert "Scaler_0" in host["params"]
    for name in ("standard", "laser"):
        ours = _init(layer, inputs, registry.get(name))
        assert jax.tree.all(jax.tree.map(np.array_equal, host, ours))
    with inject.injected(registry.get("standard")):
        injected = layer.apply(host, inputs)
    np.testing.assert_allclose(injected, layer.apply(host, inputs), rtol=1e-6, atol=1e-7)


def _projected(leaves, inputs):
    """Returns query, key and value [B, T, H, D] of a layer's parameters."""
    return [
        jnp.einsum("bld,dhk->blhk", inputs, leaves[name]["kernel"])
        for name in ("query", "key", "value")
    ]


@pytest.mark.parametrize("masked", [False, True])
def test_foreign_laser_takes_the_log_before_the_output_factor(inputs, masked):
    """temperature·log(A·exp(V)), with the host's own scaled queries in A."""
    layer = _foreign(1.7)
    params = _init(layer, inputs)
    mask = jnp.arange(5) < 4 if masked else None
    with inject.injected(registry.get("laser")):
        output = layer.apply(params, inputs, mask=mask)
    leaves = params["params"]
    query, key, value = _projected(leaves, inputs)
    query = query * 1.7
    logits = jnp.einsum("bthd,bshd->bhts", query, key) / np.sqrt(4)
    if masked:
        logits = jnp.where(mask, logits, -jnp.inf)
    weights = jax.nn.softmax(logits)
    heads = 1.7 * jnp.log(jnp.einsum("bhts,bshd->bthd", weights, jnp.exp(value)))
    expected = jnp.einsum("bthd,hdo->bto", heads, leaves["out"]["kernel"])
    np.testing.assert_allclose(output, expected, atol=3e-6)


@pytest.mark.parametrize("layer", [functools.partial(_FLAX, num_heads=2), _foreign])
def test_dropout_is_seeded_and_active_in_training_only(inputs, layer):
    params = _init(layer(), inputs)

    def run(seed, train):
        model = layer(dropout_rate=0.8, deterministic=not train)
        with inject.injected(registry.get("laser")):
            return model.apply(params, inputs, rngs={"dropout": jax.random.key(seed)})

    assert np.isfinite(run(0, True)).all()
    assert np.abs(run(0, True) - run(1, True)).max() > 1e-4
    np.testing.assert_array_equal(run(0, True), run(0, True))
    np.testing.assert_array_equal(run(0, False), run(1, False))


def test_hosts_that_cannot_be_served_are_refused(inputs):
    def odd(query, key, value, window=3):
        return value

    cases = [
        (nn.MultiHeadDotProductAttention(2, attention_fn=odd), "laser", {}, "window"),
        (_foreign(), "laser", {"kernel": "jax_xla"}, "own attention function"),
        (nn.MultiHeadDotProductAttention(2, normalize_qk=True), "laser+qk_norm", {}, "twice"),
        (
            nn.MultiHeadDotProductAttention(2, attention_fn=registry.get("laser")),
            "standard",
            {},
            "built with attention_fn='laser'",
        ),
    ]
    for layer, name, settings, message in cases:
        with pytest.raises(ValueError, match=message):
            _init(layer, inputs, registry.get(name, **settings))


def test_cached_decoding_survives(inputs):
    """One position at a time through flax's cache gives the causal outputs."""
    layer = nn.MultiHeadDotProductAttention(num_heads=2, decode=True)
    with inject.injected(registry.get("laser")):
        variables = layer.init(jax.random.key(0), inputs)
        whole = nn.MultiHeadDotProductAttention(num_heads=2).apply(
            {"params": variables["params"]}, inputs, mask=jnp.tril(jnp.ones((5, 5), bool))
        )
        cache, steps = variables["cache"], []
        for position in range(5):
            step, mutated = layer.apply(
                {"params": variables["params"], "cache": cache},
                inputs[:, position : position + 1],
                mutable=["cache"],
            )
            cache = mutated["cache"]
            steps.append(step)
    np.testing.assert_allclose(jnp.concatenate(steps, axis=1), whole, atol=2e-6)


def test_masks_of_floats_are_taken_where_the_user_says_so(inputs):
    layer, mask = nn.MultiHeadDotProductAttention(num_heads=2), jnp.tri(5)[None, None]
    params = layer.init(jax.random.key(0), inputs)
    refused = pytest.raises(ValueError, match="mask has dtype float32")
    for queries in (5, 1):  # one query without a cache, too
        with refused, inject.injected(registry.get("standard")):
            layer.apply(params, inputs[:, :queries], inputs, mask=mask[..., :queries, :])
    with inject.injected(registry.get("standard"), float_masks=True):
        output = layer.apply(params, inputs, mask=mask)
    np.testing.assert_allclose(output, layer.apply(params, inputs, mask=mask), atol=1e-6)


class Stack(nn.Module):
    """Two numbered layers, as AlgoPerf names its blocks."""

    function: object = nn.dot_product_attention

    @nn.compact
    def __call__(self, inputs):
        for index in range(2):
            name = f"encoderblock_{index}"
            layer = nn.MultiHeadDotProductAttention(2, attention_fn=self.function, name=name)
            inputs = layer(inputs)
        return inputs


def _layer_of(path):
    return int(re.search(r"encoderblock_([0-9]+)", path)[1])


def test_layers_come_from_the_rule_and_may_be_traced(inputs):
    """Injected layers are those built with their own depth; a traced rule gives the same."""
    variant = registry.get("diff")

    @jax.jit
    def run(params, offset):
        with inject.injected(variant, layer=lambda path: _layer_of(path) + offset):
            return Stack().apply(params, inputs)

    with inject.injected(variant, layer=_layer_of):
        params = Stack().init(jax.random.key(0), inputs)
        output = Stack().apply(params, inputs)
    expected = inputs
    for index in range(2):
        layer = nn.MultiHeadDotProductAttention(
            2, attention_fn=functools.partial(variant, layer=index)
        )
        expected = layer.apply({"params": params["params"][f"encoderblock_{index}"]}, expected)
    np.testing.assert_array_equal(output, expected)
    np.testing.assert_allclose(run(params, 0), output, atol=1e-6)
    assert np.abs(run(params, 3) - output).max() > 1e-3


def test_differential_through_a_foreign_function(inputs):
    """The host's learned scaler is called once on heads of size D; its output factor comes last."""
    layer, variant = _foreign(1.7), registry.get("diff_laser")
    host = _init(layer, inputs)
    with inject.injected(variant, layer=lambda path: 1):
        params = layer.init(jax.random.key(0), inputs)
        mask = jnp.tril(jnp.ones((5, 5), bool))
        output = layer.apply(params, inputs, mask=mask)
    leaves = dict(params["params"])
    own = {name: leaves.pop(name) for name in ("diff_lambda", "head_norm")}
    assert jax.tree.all(jax.tree.map(np.array_equal, host["params"], leaves))

    class Plain(nn.Module):
        @nn.compact
        def __call__(self):
            query, key, value = _projected(leaves, inputs)
            heads = variant(1.7 * query, key, value, mask=mask, layer=1)
            return jnp.einsum("bthd,hdo->bto", 1.7 * heads, leaves["out"]["kernel"])

    np.testing.assert_allclose(output, Plain().apply({"params": own}), atol=5e-6)


def test_differential_injection_asks_for_a_rule(inputs):
    variant = registry.get("diff_laser")
    with pytest.raises(ValueError, match=r"diff_laser needs each layer's index.*layer=rule"):
        _init(Stack(), inputs, variant)
    with pytest.raises(ValueError, match="layer=0: give a rule.*lambda path: 0"):
        inject.injected(variant, layer=0).__enter__()
    with (
        pytest.raises(TypeError) as caught,
        inject.injected(variant, layer=_layer_of),
    ):
        Block().init(jax.random.key(0), inputs)
    assert "at path 'MultiHeadDotProductAttention_0'" in caught.value.__notes__[0]
    with (
        pytest.raises(ValueError, match="built with attention_fn='diff_laser'"),
        inject.injected(registry.get("laser")),
    ):
        Stack(functools.partial(variant, layer=0)).init(jax.random.key(0), inputs)
    with inject.injected(registry.get("laser"), layer=_layer_of):
        Block().init(jax.random.key(0), inputs)


class OwnAttention(nn.MultiHeadDotProductAttention):
    """Somebody's fast attention: flax's class with a `__call__` that ignores `attention_fn`."""

    @nn.compact
    def __call__(self, inputs, *args, **kwargs):
        heads = nn.DenseGeneral((self.num_heads, 4), name="query")(inputs)
        output = nn.dot_product_attention(heads, heads, heads)
        return nn.DenseGeneral(inputs.shape[-1], axis=(-2, -1), name="out")(output)


class OtherMethod(nn.MultiHeadDotProductAttention):
    """Attends in a method of its own name."""

    @nn.compact
    def attend(self, inputs):
        return nn.MultiHeadDotProductAttention.__call__.__wrapped__(self, inputs)


class Through(nn.MultiHeadDotProductAttention):
    """A subclass that leaves attention to its parent."""

    @nn.compact
    def __call__(self, inputs, **kwargs):
        return super().__call__(2 * inputs, **kwargs)


class Layers(nn.Module):
    """One layer of each class, in order, called by `methods` (`__call__` unless given)."""

    classes: tuple
    method: str = "__call__"
    repeats: int = 1

    @nn.compact
    def __call__(self, inputs):
        for number, kind in enumerate(self.classes):
            layer = kind(num_heads=2, name=f"layer_{number}")
            for _ in range(self.repeats):
                inputs = getattr(layer, self.method)(inputs)
        return inputs


@pytest.mark.parametrize(
    ("classes", "method", "unused"),
    [
        ((OwnAttention,), "__call__", "OwnAttention at 'layer_0'"),
        ((_FLAX, OwnAttention), "__call__", "1 of 2.*OwnAttention at 'layer_1'"),
        ((OtherMethod,), "attend", "OtherMethod at 'layer_0'"),
        ((nn.remat(OwnAttention),), "__call__", "0 of 1.*at 'layer_0'"),
    ],
)
def test_a_module_that_ignores_its_attention_function_is_refused(inputs, classes, method, unused):
    model = Layers(classes, method)
    with pytest.raises(RuntimeError, match=unused), inject.injected(registry.get("laser")):
        jax.eval_shape(model.init, jax.random.key(0), inputs)


def test_an_error_is_not_replaced_by_that_refusal(inputs):
    with pytest.raises(ZeroDivisionError), inject.injected(registry.get("laser")):
        raise ZeroDivisionError(OwnAttention(num_heads=2).init(jax.random.key(0), inputs))


class ScannedBlock(nn.Module):
    @nn.compact
    def __call__(self, inputs, _):
        return _FLAX(num_heads=2, name="attention")(inputs), None


class Scanned(nn.Module):
    @nn.compact
    def __call__(self, inputs):
        split = {"variable_axes": {"params": 0}, "split_rngs": {"params": True}}
        inputs, _ = nn.scan(ScannedBlock, length=3, **split)(name="blocks")(inputs, None)
        return _FLAX(num_heads=2, name="head")(inputs)


@pytest.mark.filterwarnings("ignore:SelfAttention will be deprecated")
@pytest.mark.parametrize(
    ("model", "layers"),
    [
        (Layers((_FLAX, nn.SelfAttention, Through)), ("layer_0", "layer_1", "layer_2")),
        (Layers((nn.remat(_FLAX), nn.jit(_FLAX))), ("layer_0", "layer_1")),
        (Layers((_FLAX, _FLAX), repeats=2), ("layer_0", "layer_1")),
        (Scanned(), ("blocks/attention", "head")),
        (_FLAX(num_heads=2), ("",)),
    ],
    ids=["subclasses", "lifted", "shared", "scanned", "alone"],
)
def test_the_layers_that_took_the_variant_are_known(inputs, model, layers):
    """By path and once each, however often a module is traced."""
    with inject.injected(registry.get("laser")) as at_init:
        params = jax.eval_shape(model.init, jax.random.key(0), inputs)
    with inject.injected(registry.get("laser")) as at_apply:
        jax.eval_shape(model.apply, params, inputs)
    assert at_init.layers == at_apply.layers == layers


def test_a_compiled_program_calls_no_module(inputs):
    """Its layers are known while it is traced; what is called around it is known every time."""
    variant, layer = registry.get("laser"), _FLAX(num_heads=2)
    params = layer.init(jax.random.key(0), inputs)
    run = jax.jit(layer.apply)
    with inject.injected(variant) as injection:
        run(params, inputs)
    assert injection.layers == ("",)
    with pytest.raises(RuntimeError, match="compiled already"), inject.injected(variant):
        run(params, inputs)


@pytest.mark.parametrize("model", [Layers((_FLAX, Through)), _FLAX(num_heads=2)])
def test_intermediates_are_captured_once(inputs, model):
    params = model.init(jax.random.key(0), inputs)
    _, host = model.apply(params, inputs, capture_intermediates=True)
    with inject.injected(registry.get("standard")):
        _, ours = model.apply(params, inputs, capture_intermediates=True)
    assert jax.tree.structure(ours) == jax.tree.structure(host)
