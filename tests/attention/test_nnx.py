"""Variants in models of flax.nnx: `inject.assign` against Flax Linen, and NNX's transforms."""

import inspect
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn
from flax import nnx, traverse_util

from attention import inject, registry, table

WIDTH, HEADS, LAYERS = 8, 2, 2
PARTS = (*table.MIXERS, *(f"laser+{modifier}" for modifier in table.MODIFIERS))
MANY = "diff2_laser+fox+gate+qk_rms_norm+sink+value_residual"


def index(path):
    return int(re.search("blocks[/_]([0-9]+)", path)[1])


class Block(nnx.Module):
    """A block as flax's and bonsai's: norm, attention, residual, MLP."""

    def __init__(self, rngs, **settings):
        settings = {"decode": False, **settings}
        self.norm = nnx.LayerNorm(WIDTH, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(HEADS, WIDTH, rngs=rngs, **settings)
        self.mlp = nnx.Linear(WIDTH, WIDTH, rngs=rngs)

    def __call__(self, inputs, **settings):
        inputs = inputs + self.attention(self.norm(inputs), **settings)
        return inputs + self.mlp(nnx.gelu(inputs))


class Model(nnx.Module):
    def __init__(self, rngs, **settings):
        blocks = [Block(rngs, **settings) for _ in range(LAYERS)]
        self.blocks = nnx.List(blocks) if hasattr(nnx, "List") else blocks

    def __call__(self, inputs, **settings):
        for block in self.blocks:
            inputs = block(inputs, **settings)
        return inputs


class LinenModel(nn.Module):
    @nn.compact
    def __call__(self, inputs, **settings):
        for number in range(LAYERS):
            block = f"blocks_{number}"
            norm = nn.LayerNorm(name=f"{block}_norm")(inputs)
            attention = nn.MultiHeadDotProductAttention(HEADS, name=f"{block}_attention")
            inputs = inputs + attention(norm, **settings)
            inputs = inputs + nn.Dense(WIDTH, name=f"{block}_mlp")(nn.gelu(inputs))
        return inputs


@pytest.fixture
def inputs():
    return jax.random.normal(jax.random.key(3), (2, 5, WIDTH))


def assigned(name, **settings):
    model = Model(nnx.Rngs(0), **settings)
    paths = inject.assign(model, registry.get(name), layer=index, rngs=nnx.Rngs(1))
    assert paths == [f"blocks/{number}/attention" for number in range(LAYERS)]
    return model


def params(model):
    """Arrays by path, 'blocks/0/attention/gate/scale', of a model or of gradients."""
    state = model if isinstance(model, nnx.State) else nnx.state(model, nnx.Param)
    return {
        "/".join(map(str, path)): np.asarray(leaf[...]) for path, leaf in nnx.to_flat_state(state)
    }


def shaken(model):
    """The model, its parameters away from their start."""
    draw = np.random.default_rng(7).standard_normal
    state = nnx.state(model, nnx.Param)
    noisy = jax.tree.map(lambda leaf: leaf + np.float32(0.3) * draw(leaf.shape, np.float32), state)
    nnx.update(model, noisy)
    return model


def linen_params(arrays):
    """Linen's tree of NNX's arrays."""
    tree = {
        tuple(re.sub(r"blocks/(\d+)/", r"blocks_\1_", path).split("/")): array
        for path, array in arrays.items()
    }
    return traverse_util.unflatten_dict(tree)


def loss(model, inputs, **settings):
    return jnp.sum(jnp.cos(model(inputs, **settings)))


QUICK = ("laser+temp", "laser+qk_norm", MANY)
REST = [name for name in dict.fromkeys((*table.PAPER_ROWS, *PARTS)) if name not in QUICK]


@pytest.mark.parametrize(
    "name", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in REST)]
)
def test_output_and_gradients_are_linen_s_to_the_bit(name, inputs):
    variant = registry.get(name)
    model, mask = shaken(assigned(name)), jnp.tril(jnp.ones((5, 5), bool))
    tree = linen_params(params(model))

    @jax.jit
    def of_linen(tree, inputs):
        with inject.injected(variant, layer=index) as injection:
            output = LinenModel().apply({"params": tree}, inputs, mask=mask)
        assert len(injection.layers) == LAYERS
        return jnp.sum(jnp.cos(output)), output

    @nnx.jit
    def of_nnx(model, inputs):
        output = model(inputs, mask=mask)
        return jnp.sum(jnp.cos(output)), output

    (_, expected), expected_grads = jax.value_and_grad(of_linen, has_aux=True)(tree, inputs)
    (_, output), grads = nnx.value_and_grad(of_nnx, has_aux=True)(model, inputs)
    np.testing.assert_array_equal(output, expected)
    jax.tree.map(np.testing.assert_array_equal, linen_params(params(grads)), expected_grads)


@pytest.mark.parametrize("name", ["laser+gate", MANY])
def test_a_training_by_an_optimizer_reaches_the_leaves(name, inputs):
    """20 steps under nnx.jit: the loss falls, and every leaf of the variant moves."""
    model = assigned(name, dropout_rate=0.1)
    before = params(model)
    assert "blocks/1/attention/gate/scale" in before
    optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)

    @nnx.jit
    def step(model, optimizer):
        of_model = nnx.value_and_grad(lambda model: loss(model, inputs, deterministic=False))
        value, grads = of_model(model)
        takes_model = "model" in inspect.signature(optimizer.update).parameters  # flax 0.11
        optimizer.update(*((model, grads) if takes_model else (grads,)))
        return value

    losses = [float(step(model, optimizer)) for _ in range(20)]
    assert losses[-1] < losses[0] - 1
    after = params(model)
    # The softmax ignores a key's bias; the first layer has no values of an earlier one.
    idle = [path for path in after if path.endswith("key/bias") or "0/attention/value_re" in path]
    assert {path for path in after if not np.any(after[path] != before[path])} <= {*idle}


def test_dropout_is_drawn_and_a_mask_hides(inputs):
    model = shaken(assigned("laser+gate", dropout_rate=0.5))
    kept = model(inputs, deterministic=True)
    first, second = (model(inputs, deterministic=False) for _ in range(2))
    assert np.any(first != second)
    assert np.any(first != kept)
    mask = jnp.tril(jnp.ones((5, 5), bool))
    changed = inputs.at[:, -1].add(1.0)
    outputs = [model(x, mask=mask, deterministic=True)[:, :-1] for x in (inputs, changed)]
    np.testing.assert_allclose(*outputs, rtol=1e-5, atol=1e-5)


def test_a_cached_decoder_gives_the_same_or_is_refused(inputs):
    name = "laser+gate+qk_norm"
    whole = shaken(assigned(name))(inputs, mask=jnp.tril(jnp.ones((5, 5), bool)))
    model = shaken(assigned(name, decode=True))
    for block in model.blocks:
        block.attention.init_cache(inputs.shape)
    steps = [model(inputs[:, position : position + 1]) for position in range(5)]
    np.testing.assert_allclose(jnp.concatenate(steps, axis=1), whole, rtol=1e-5, atol=1e-5)
    layer = nnx.MultiHeadAttention(HEADS, WIDTH, decode=True, rngs=nnx.Rngs(0))
    inject.assign(layer, registry.get("laser+rope"))
    layer.init_cache(inputs.shape)
    with pytest.raises(ValueError, match="1 query and 5 keys"):
        layer(inputs[:, :1])


def recomputed(model, inputs):
    """The loss, each block in nnx.remat."""
    for block in model.blocks:
        inputs = nnx.remat(lambda block, inputs: block(inputs))(block, inputs)
    return jnp.sum(jnp.cos(inputs))


@pytest.mark.parametrize("name", ["laser+gate", "diff"])
def test_layers_that_are_recomputed_give_the_same_gradients(name, inputs):
    model = shaken(assigned(name))
    expected = params(nnx.grad(loss)(model, inputs))
    grads = params(nnx.grad(recomputed)(model, inputs))
    for path, array in expected.items():
        np.testing.assert_allclose(grads[path], array, rtol=1e-5, atol=1e-5)


def test_a_memory_is_not_handed_out_of_recomputed_layers_nor_kept(inputs):
    model = assigned("standard+value_residual")
    with pytest.raises(ValueError, match="nn.remat"):
        recomputed(model, inputs)
    nnx.jit(loss)(model, inputs)
    assert not model.blocks[0].attention.attention_fn.injection.memory
    with pytest.raises(ValueError, match="from layer 0 on"):
        model.blocks[1](inputs)


class Stack(nnx.Module):
    """Layers made by nnx.vmap, run by nnx.scan."""

    def __init__(self, rngs):
        @nnx.split_rngs(splits=LAYERS)
        @nnx.vmap(in_axes=0, out_axes=0)
        def make(rngs):
            return Block(rngs)

        self.layers = make(rngs)

    def __call__(self, inputs):
        @nnx.scan(in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)
        def run(inputs, block):
            return block(inputs)

        return run(inputs, self.layers)


@pytest.mark.parametrize("name", ["laser+gate+qk_norm", "standard+sink"])
def test_scanned_layers_have_stacked_leaves(name, inputs):
    """Each step of the loop takes its own, as a list of the same layers does."""
    stack = Stack(nnx.Rngs(0))
    assert inject.assign(stack, registry.get(name)) == ["layers/attention"]
    arrays = params(shaken(stack))
    model = assigned(name)
    state = nnx.to_flat_state(nnx.state(model, nnx.Param))
    weights = [
        (path, leaf.replace(jnp.asarray(arrays["/".join(("layers", *path[2:]))][path[1]])))
        for path, leaf in state
    ]
    nnx.update(model, nnx.from_flat_state(weights))
    np.testing.assert_allclose(stack(inputs), model(inputs), rtol=1e-5, atol=1e-5)
    grads = params(nnx.jit(nnx.grad(loss))(stack, inputs))
    expected = params(nnx.grad(loss)(model, inputs))
    for path, array in expected.items():
        _, number, *rest = path.split("/")
        stacked = grads["/".join(("layers", *rest))]
        np.testing.assert_allclose(stacked[int(number)], array, rtol=1e-5, atol=1e-4)
    with pytest.raises(ValueError, match="list of layers"):
        inject.assign(Stack(nnx.Rngs(0)), registry.get("diff"), layer=lambda path: 0)


def test_a_checkpoint_of_orbax_restores_every_leaf_to_the_bit(inputs, tmp_path):
    orbax = pytest.importorskip("orbax.checkpoint")
    model = shaken(assigned(MANY))
    expected = nnx.jit(Model.__call__)(model, inputs)
    restored = assigned(MANY)
    assert np.any(nnx.jit(Model.__call__)(restored, inputs) != expected)
    with orbax.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "state", nnx.state(model, nnx.Param))
        checkpointer.wait_until_finished()
        state = checkpointer.restore(tmp_path / "state", nnx.state(restored, nnx.Param))
    nnx.update(restored, state)
    np.testing.assert_array_equal(nnx.jit(Model.__call__)(restored, inputs), expected)
    copy = nnx.merge(*nnx.split(restored))
    np.testing.assert_array_equal(nnx.jit(Model.__call__)(copy, inputs), expected)


class Deaf(nnx.MultiHeadAttention):
    """A subclass that computes attention in its own way."""

    def __call__(self, inputs_q):
        return self.out(self.value(inputs_q))


def layer_of(kind=nnx.MultiHeadAttention, **settings):
    return kind(HEADS, WIDTH, decode=False, rngs=nnx.Rngs(0), **settings)


def test_a_layer_that_never_runs_its_variant_says_so(inputs):
    layer = layer_of(Deaf)
    assert inject.assign(layer, registry.get("laser")) == [""]
    with pytest.raises(inject.InjectionError, match="Deaf"):
        layer(inputs)


def with_gate():
    layer = layer_of()
    layer.gate = nnx.Linear(WIDTH, WIDTH, rngs=nnx.Rngs(0))
    return layer


@pytest.mark.parametrize(
    ("name", "make", "settings", "named"),
    [
        ("laser", lambda: nnx.Linear(1, 1, rngs=nnx.Rngs(0)), {}, "Linear"),
        ("laser", lambda: nn.Dense(1), {}, "inject.injected"),
        ("laser", lambda: Model(nnx.Rngs(0), attention_fn=lambda q, k, v, **kw: q), {}, "blocks/0"),
        ("laser", lambda: assigned("standard"), {}, "'standard'"),
        ("laser", lambda: layer_of(attention_fn=registry.get("laser+temp")), {}, "'laser.temp'"),
        ("laser+qk_norm", lambda: layer_of(normalize_qk=True), {}, "twice"),
        ("laser+gate", with_gate, {}, "'gate'"),
        ("diff", layer_of, {}, "layer=rule"),
        ("diff", layer_of, {"layer": lambda path: 0}, "rngs=nnx.Rngs"),
        ("diff", layer_of, {"layer": lambda path: 0, "rngs": 0}, "rngs=0"),
        ("laser", layer_of, {"rngs": nnx.Rngs(dropout=0)}, "rngs="),
        ("laser", layer_of, {"layer": 0}, "layer=0"),
    ],
)
def test_what_cannot_be_assigned_is_refused_and_leaves_the_model(name, make, settings, named):
    model = make()
    before = nnx.graphdef(model) if isinstance(model, nnx.Module) else None
    with pytest.raises(ValueError, match=named):
        inject.assign(model, registry.get(name), **settings)
    assert before is None or nnx.graphdef(model) == before


def test_what_a_call_cannot_have_is_refused_by_name(inputs):
    layer = layer_of()
    inject.assign(layer, registry.get("laser+rope"))
    with pytest.raises(ValueError, match="is_cross|another array"):
        layer(inputs, inputs + 1)
    with pytest.raises(ValueError, match="sow_weights"):
        layer(inputs, sow_weights=True)


def test_a_kernel_that_cannot_run_here_is_no_matter_of_rngs():
    with pytest.raises(ValueError, match="splash") as refusal:
        inject.assign(layer_of(), registry.get("laser", kernel="splash"))
    assert "rngs" not in str(refusal.value)
