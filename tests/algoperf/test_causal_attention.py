"""Variants in a language model whose attention is its own, in both ways that AlgoPerf has had."""

import functools
import importlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention import probe, registry
from attention.mixers.head_pairs import lambda_init
from workloads import algoperf_specs
from workloads.algoperf import causal_attention

LAYER = algoperf_specs.INJECTION_POINTS["finewebedu_lm"].layer
TOLERANCE = 2e-6  # float32, outputs of order 1


@pytest.fixture
def models(stand_in):
    stand_in.activate()
    name = "algoperf.workloads.finewebedu_lm.finewebedu_lm_jax.models"
    return importlib.import_module(name)


@pytest.fixture(params=[False, True], ids=["einsums", "function"])
def layer(request, models):
    """One layer, its parameters away from their start, and what it gets."""
    module = models.CausalAttn(request.param)
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


def test_no_position_sees_the_future_and_layers_know_their_index(models):
    model, tokens = models.TransformerDo(), jnp.arange(16).reshape(2, 8) % 6
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
    models, monkeypatch, attend, variant, error, message
):
    method = functools.partialmethod(lambda self, *arrays: attend(models, *arrays))
    monkeypatch.setattr(models.CausalAttn, "_by_einsums", method)
    module = models.CausalAttn()
    arguments = (jax.random.key(0), jnp.ones((1, 8, 16)))
    with pytest.raises(error, match=message):
        _inside(registry.get(variant), module.init, *arguments, layer=lambda path: 0)
