"""A variant in a workload object: what changes, what stays, what is refused.

AlgoPerf's language model has an attention of its own, in both ways that AlgoPerf has had.
"""

import functools
import importlib
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from attention import inject, probe, registry
from attention.mixers.head_pairs import lambda_init
from tests.algoperf.parity import models, workload_pairs
from workloads import algoperf_specs
from workloads.algoperf import causal_attention, injected
from workloads.base import injection

TOLERANCE = 2e-6  # float32, outputs of order 1


def _made(installation, name, variant=None, **settings):
    workload = installation.make_workload(name)
    if variant is not None:
        workload = injected.with_variant(workload, name, registry.get(variant, **settings))
    return workload, *workload.init_model_fn(jax.random.PRNGKey(0))


def _logits(workload, params, state, batch):
    mode = sys.modules["algoperf.spec"].ForwardPassMode.EVAL
    key = jax.random.PRNGKey(1)

    @jax.jit
    def logits(params, batch):
        return workload.model_fn(params, batch, state, mode, key, update_batch_norm=False)[0]

    return np.asarray(logits(params, batch))


def _moved(params):
    """Parameters away from their start, where learned factors are the identity."""
    return jax.tree.map(
        lambda leaf: leaf + 0.1 * jnp.cos(jnp.arange(leaf.size)).reshape(leaf.shape), params
    )


def _batch(workload):
    return next(workload._build_input_queue(jax.random.PRNGKey(2), "train", "", 4))


@pytest.mark.parametrize(
    ("name", "variant", "leaf"),
    [
        ("imagenet_vit", "laser+value_residual", "value_residual"),
        ("librispeech_conformer", "laser+gate", "gate"),
        ("finewebedu_lm", "laser+gate", "gate"),
    ],
)
def test_what_mechanisms_need_reaches_algoperfs_models(stand_in, name, variant, leaf):
    """Input, index and memory: every layer has the leaf, and outputs follow it."""
    workload, params, state = _made(stand_in, name, variant)
    batch = _batch(workload)
    leaves = jax.tree_util.tree_leaves_with_path(params)
    layers = [path for path, _ in leaves if f"['{leaf}']" in jax.tree_util.keystr(path)]
    assert len({path[:-2] for path in layers}) == workload.attention_layers
    changed = jax.tree_util.tree_map_with_path(
        lambda path, value: value + (path in layers), _moved(params)
    )
    outputs = [_logits(workload, values, state, batch) for values in (_moved(params), changed)]
    assert np.abs(outputs[1] - outputs[0]).max() > 1e-4


class Flash(nn.MultiHeadDotProductAttention):
    """A layer that attends by a function of its own, as somebody's fused kernel would."""

    @nn.compact
    def __call__(self, inputs, *_, **__):
        return nn.Dense(inputs.shape[-1], name="out")(inputs)


class Own(nn.Module):
    """A layer that is not flax's attention at all."""

    num_heads: int

    @nn.compact
    def __call__(self, inputs):
        return nn.Dense(inputs.shape[-1], name="out")(inputs)


@pytest.mark.parametrize(
    ("name", "layer", "error"),
    [
        ("imagenet_vit", Flash, inject.InjectionError),
        ("imagenet_vit_map", Own, ValueError),  # the pooling layer alone is flax's
    ],
)
def test_layers_that_do_not_run_the_variant_are_refused(stand_in, monkeypatch, name, layer, error):
    workload = injected.with_variant(stand_in.make_workload(name), name, registry.get("laser"))
    module = sys.modules["algoperf.workloads.imagenet_vit.imagenet_jax.workload"]
    # Of the blocks alone; the pooling layer names flax's in the same way.
    original = nn.MultiHeadDotProductAttention

    def attention(num_heads, **settings):
        return layer(num_heads, **settings) if "name" in settings else original(num_heads)

    substitute = injection.Substitute(nn, MultiHeadDotProductAttention=attention)
    monkeypatch.setattr(module, "nn", substitute)
    with pytest.raises(error, match="'laser' ran in [01] ") as raised:
        workload.init_model_fn(jax.random.PRNGKey(0))
    assert isinstance(raised.value, ValueError)  # the command answers it without a traceback
    assert not hasattr(workload, "attention_layers")


@pytest.mark.slow
def test_other_methods_run_the_variant_and_jitted_ones_from_the_cache(stand_in):
    """JAX keeps them by the class's function: a workload is injected when it is traced."""
    losses = []
    for variant in ("standard", "laser", "standard"):
        workload, params, _ = _made(stand_in, "wmt", variant)
        batch = _batch(workload)
        logits = _logits(workload, params, None, batch)
        predicted = workload.predict_step(batch["inputs"], params)
        np.testing.assert_allclose(predicted, logits, atol=TOLERANCE)
        expected = workload.loss_fn(batch["targets"], logits)["summed"]
        workload.initialize_cache(batch["inputs"])
        outputs = [float(workload.eval_step(params, batch)["summed"]) for _ in range(2)]
        np.testing.assert_allclose(outputs, float(expected), rtol=1e-5)
        losses.append(outputs[0])
    assert losses[0] == losses[2] != losses[1]


@pytest.mark.parametrize(
    ("name", "variant", "settings"),
    [
        ("imagenet_vit", "diff_laser", {}),
        ("imagenet_vit", "standard+temp", {"tau": 0.7}),
        ("librispeech_conformer", "laser+qk_norm", {}),
        ("librispeech_conformer", "sigmoid+softcap", {}),
        ("librispeech_conformer", "standard+sink", {}),
    ],
)
def test_what_is_injected_is_the_formula_in_float64(stand_in, name, variant, settings):
    workload, chosen = stand_in.make_workload(name), registry.get(variant, **settings)
    side = workload_pairs.Side(workload, stand_in.module("algoperf.spec").ForwardPassMode, chosen)
    with side.context():
        params, state = workload.init_model_fn(jax.random.PRNGKey(0))
    row = models.formula_row(name, chosen, side, _moved(params), state, _batch(workload))
    assert row.difference <= TOLERANCE, row


def test_the_conformers_query_scaler_stays(stand_in):
    """The variant replaces the rest of its attention function: `standard` is the model."""
    name = "librispeech_conformer"
    (plain, params, state), (ours, start, _) = (
        _made(stand_in, name),
        _made(stand_in, name, "standard"),
    )
    jax.tree.map(np.testing.assert_array_equal, params, start)
    moved, batch = _moved(params), _batch(plain)
    outputs = [_logits(workload, moved, state, batch) for workload in (ours, plain)]
    np.testing.assert_allclose(*outputs, atol=TOLERANCE)


def test_rules_give_the_layers_indices():
    assert algoperf_specs.INJECTION_POINTS["finewebedu_lm"].layer("blocks_11/CausalAttn_0") == 11
    vit, wmt = (
        algoperf_specs.INJECTION_POINTS["imagenet_vit_map"],
        algoperf_specs.INJECTION_POINTS["wmt"],
    )
    assert vit.layer("Transformer/encoderblock_11/MultiHeadDotProductAttention_1") == 11
    assert vit.layer("MAPHead_0/MultiHeadDotProductAttention_0") == 12
    assert wmt.layer("decoder/encoderdecoderblock_5/MultiHeadDotProductAttention_1") == 5
    assert wmt.layer("encoder/encoderblock_2/MultiHeadDotProductAttention_0") == 2
    path = "ConformerBlock_3/MultiHeadedSelfAttention_0/MultiHeadDotProductAttention_0"
    assert algoperf_specs.INJECTION_POINTS["librispeech_conformer"].layer(path) == 3
    with pytest.raises(ValueError, match="has other names than the tested versions"):
        vit.layer("Transformer/layer_0/attention")


LAYER = algoperf_specs.INJECTION_POINTS["finewebedu_lm"].layer


@pytest.fixture
def language_models(stand_in):
    stand_in.activate()
    name = "algoperf.workloads.finewebedu_lm.finewebedu_lm_jax.models"
    return importlib.import_module(name)


@pytest.fixture(params=[False, True], ids=["einsums", "function"])
def layer(request, language_models):
    """One layer, its parameters away from their start, and what it gets."""
    module = language_models.CausalAttn(request.param)
    hidden = jax.random.normal(jax.random.key(0), (3, 8, 16))
    return module, module.init(jax.random.key(1), hidden), hidden


def _inside(variant, function, *arguments, layer=LAYER):
    """What a model's function returns, compiled in whole."""
    with causal_attention.injected(variant, layer):
        return jax.jit(function)(*arguments)


def _parts(params, hidden):
    """The weights [B, H, T, S] of the layer's softmax and its values [B, S, H, D], in float64."""
    params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params["params"])
    query, key, value = (
        np.einsum("btw,whd->bthd", np.float64(hidden), params[name]["kernel"])
        for name in ("query", "key", "value")
    )
    query, key = (x / (np.linalg.norm(x, axis=-1, keepdims=True) + 1e-6) for x in (query, key))
    logits = params["attn_scale"] * np.einsum("bthd,bshd->bhts", query, key)
    return logits, value, params["attn_out_proj"]["kernel"]


def _softmax(logits):
    weights = np.exp(logits) * np.tril(np.ones(logits.shape[-2:]))
    return weights / weights.sum(-1, keepdims=True)


@pytest.mark.parametrize("name", ["standard+temp", "laser+temp"])
def test_layer_computes_the_formula(layer, name):
    module, params, hidden = layer
    output = _inside(registry.get(name, tau=0.7), module.apply, params, hidden)
    logits, value, projection = _parts(params, hidden)
    is_laser = name == "laser+temp"
    mean = np.einsum(
        "bhts,bshd->bthd", _softmax(logits / 0.7), np.exp(value) if is_laser else value
    )
    mixed = np.log(mean) if is_laser else mean
    wanted = mixed.reshape(hidden.shape) @ projection
    np.testing.assert_allclose(output, wanted, atol=TOLERANCE)


def test_differential_layer_computes_the_formula(layer):
    module, _, hidden = layer
    variant = registry.get("diff")
    # Alone it has no name: the rule gets an empty path.
    params = _inside(variant, module.init, jax.random.key(1), hidden, layer=lambda path: 2)
    output = _inside(variant, module.apply, params, hidden, layer=lambda path: 2)
    logits, value, projection = _parts(params, hidden)
    start, learned = float(lambda_init(2)), params["params"]["diff_lambda"]
    q1, k1, q2, k2 = (np.float64(learned[f"scale_{x}"]) for x in ("q1", "k1", "q2", "k2"))
    difference = np.exp(q1 @ k1) - np.exp(q2 @ k2) + start
    weights = _softmax(logits)
    pair = np.einsum("bts,bsw->btw", weights[:, 0] - difference * weights[:, 1],
                     value.reshape(*value.shape[:2], -1))  # fmt: skip
    normal = pair / np.sqrt(np.mean(pair**2, axis=-1, keepdims=True) + 1e-5)
    wanted = (1 - start) * normal @ projection
    np.testing.assert_allclose(output, wanted, atol=1e-5)


def test_no_position_sees_the_future_and_layers_know_their_index(language_models):
    model, tokens = language_models.TransformerDo(), jnp.arange(16).reshape(2, 8) % 6
    indices = []

    def layer(path):
        indices.append((path, LAYER(path)))
        return LAYER(path)

    variant = registry.get("diff_laser")
    params = _inside(variant, model.init, jax.random.key(0), tokens, layer=layer)
    assert indices == [(f"blocks_{n}/CausalAttn_0", n) for n in (0, 1)]
    first, second = (
        _inside(variant, model.apply, params, batch) for batch in (tokens, tokens.at[:, 5:].set(1))
    )
    np.testing.assert_allclose(first[:, :5], second[:, :5], atol=TOLERANCE)
    assert np.abs(first[:, 5:] - second[:, 5:]).max() > 0.01


def test_a_layer_that_is_observed_is_refused(layer):
    module, params, hidden = layer
    with pytest.raises(ValueError, match="cannot be observed"), probe.probed():
        _inside(registry.get("laser"), module.apply, params, hidden)


def _other_logits(models, query, key, value):
    logits = models.jnp.einsum("bqhd,bkhd->bhqk", query, key)
    weights = jax.nn.softmax(logits, axis=-1)
    return models.jnp.einsum("...hqk,...khd->...qhd", weights, value)


def _windowed(models, query, key, value):
    return models.jax.nn.dot_product_attention(query, key, value, local_window_size=4)


@pytest.mark.parametrize(
    ("attend", "variant", "error", "message"),
    [
        (lambda models, *arrays: arrays[-1], "laser", RuntimeError, "it called none of them"),
        # The mean of the values alone would lose the variant's temperature without a word.
        (_other_logits, "standard+per_dim_temp", RuntimeError, "in a form that is not known"),
        (_other_logits, "diff", RuntimeError, "in a form that is not known"),
        (_windowed, "laser", TypeError, "unexpected keyword argument 'local_window_size'"),
    ],
)
def test_a_layer_that_attends_otherwise_is_refused(
    language_models, monkeypatch, attend, variant, error, message
):
    method = functools.partialmethod(lambda self, *arrays: attend(language_models, *arrays))
    monkeypatch.setattr(language_models.CausalAttn, "_by_einsums", method)
    module = language_models.CausalAttn()
    arguments = (jax.random.key(0), jnp.ones((1, 8, 16)))
    with pytest.raises(error, match=message):
        _inside(registry.get(variant), module.init, *arguments, layer=lambda path: 0)
