"""Variants in small models of init2winit's three kinds of attention layers, by their registry."""

import types

import jax
import jax.numpy as jnp
import pytest
from flax import linen as nn

from attention import registry, table
from workloads.init2winit import models as variants

LAYERS = {"vit": "encoderblock_0", "transformer": "Block_0", "nanodo": "blocks_0"}
CONFORMERS = ("conformer", "mlcommons_conformer")
NANODOS = ("nanodo", "rope_nanodo")
REFUSED = {
    *((f"{name}_{mixer}+per_dim_temp") for name in CONFORMERS for mixer in ("standard", "laser")),
    *((f"{name}_{mixer}+qk_norm") for name in NANODOS for mixer in ("standard", "laser")),
}
INPUTS = (2, 4, 8)


def _module(models, name, **hyperparameters):
    made, defaults = models._ALL_MODELS[name]
    return made(type(defaults)({**defaults, **hyperparameters})).flax_module


def _outputs(models, name, **hyperparameters):
    """The variables of a model and its outputs."""
    module = _module(models, name, **hyperparameters)
    inputs = jax.random.normal(jax.random.key(0), INPUTS)
    variables = module.init(jax.random.key(0), inputs, train=False)
    return variables, module.apply(variables, inputs, train=True)


def test_every_row_is_registered_but_what_a_model_cannot_have(models):
    defaults = {name: {"batch_size": number} for number, name in enumerate(models._ALL_MODELS)}
    algorithm = types.SimpleNamespace(_MODEL_TRAINING_DEFAULTS=dict(defaults))
    names = variants.register(models, algorithm)
    rows = {f"{name}_{row}" for name in defaults for row in table.PAPER_ROWS}
    assert set(names) == rows - REFUSED
    assert algorithm._MODEL_TRAINING_DEFAULTS["nanodo_laser"] == defaults["nanodo"]
    _, hyperparameters = models._ALL_MODELS["vit_laser+temp"]
    assert dict(hyperparameters) == {
        **dict(models._ALL_MODELS["vit"][1]),
        "attention": "laser+temp",
        "attention_tau": 1.0,
    }
    mechanisms = ("sigmoid", "laser+value_residual")
    asked = ("vit", "transformer", "nanodo", "conformer")
    names = variants.register(models, variants=mechanisms, names=asked)
    assert set(names) == {
        "vit_laser+value_residual", "transformer_sigmoid", "transformer_laser+value_residual",
        "conformer_sigmoid", "conformer_laser+value_residual",
    }  # fmt: skip


@pytest.mark.parametrize("name", LAYERS)
def test_a_variant_is_the_formula_in_the_models_own_tree(models, name):
    """standard is the model; LASER's logarithm comes before a factor on the output: by hand."""
    variants.register(models, names=(name,), variants=("standard", "laser+temp", "laser+gate"))
    variables, outputs = _outputs(models, name)
    same, standard = _outputs(models, f"{name}_standard")
    assert jax.tree.all(jax.tree.map(jnp.array_equal, variables, same))
    assert jnp.allclose(standard, outputs, atol=1e-6)
    same, laser = _outputs(models, f"{name}_laser+temp", attention_tau=0.7)
    assert jax.tree.all(jax.tree.map(jnp.array_equal, variables, same))
    params, layer = variables["params"], variables["params"][LAYERS[name]]
    x = jax.random.normal(jax.random.key(0), INPUTS)
    query, key, value = (
        jnp.einsum("btm,mhd->bthd", x, layer[part]["kernel"]) for part in ("query", "key", "value")
    )
    factor = 1.5 if name == "transformer" else 1.0
    logits = jnp.einsum("bqhd,bkhd->bhqk", query, key) * factor / query.shape[-1] ** 0.5
    if name != "vit":
        logits = jnp.where(jnp.tril(jnp.ones((4, 4), bool)), logits, -jnp.inf)
    mean = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(logits / 0.7), jnp.exp(value))
    mixed = jnp.log(mean) * (0.5 if name == "vit" else 1.0)
    x = jnp.einsum("bthd,hdm->btm", mixed, layer["out"]["kernel"])
    expected = x.mean(axis=-2) @ params["head"]["kernel"] + params["head"]["bias"]
    assert jnp.allclose(laser, expected, atol=1e-5)
    # A gate's leaf is as wide as the block's input.
    variables, _ = _outputs(models, f"{name}_laser+gate")
    assert variables["params"][LAYERS[name]]["gate"]["scale"].shape[0] == INPUTS[-1]


def _ignoring(attention):
    class Flash(attention.SelfAttention):
        @nn.compact
        def __call__(self, x, mask=None):
            return nn.Dense(x.shape[-1])(x)

    return Flash(2)


@pytest.mark.parametrize(
    ("make", "variant", "error", "words"),
    [
        (
            lambda attention: attention.SelfAttention(2, normalize_attention=True),
            *("standard+qk_norm", ValueError, "already normalises queries and keys"),
        ),
        (
            lambda attention: attention.SelfAttention(
                2, attention_fn=lambda query, *_, **__: query
            ),
            *("laser", ValueError, "an attention function of its own"),
        ),
        (lambda attention: nn.Dense(2), "laser", RuntimeError, "nothing to inject"),
        (_ignoring, "laser", RuntimeError, "ran in 0 of 1 .*Flash"),
    ],
)
def test_layers_that_a_variant_cannot_enter(models, make, variant, error, words):
    module = make(models.attention)
    with (
        pytest.raises(error, match=words),
        variants.injected_copies(registry.get(variant), layer=lambda path: 0),
    ):
        module.init(jax.random.key(0), jnp.ones((1, 2, 4)))


def test_the_number_of_layers_is_that_of_the_hyperparameters(models):
    variants.register(models, names=("vit", "nanodo"), variants=("laser",))
    _outputs(models, "vit_laser", num_layers=1)
    for settings, number in (({"num_layers": 6}, 6), ({"depth": 12, "pool_type": "map"}, 13)):
        with pytest.raises(ValueError, match=f"ran in 1 attention layers, .* has {number}:"):
            _outputs(models, "vit_laser", **settings)
    with pytest.raises(ValueError, match="qk_norm"):
        _module(models, "nanodo_laser", attention="standard+qk_norm")


@pytest.mark.parametrize(
    ("names", "rows", "words"), [(("vti",), ("laser",), "vit"), (("vit",), ("lazer",), "laser")]
)
def test_unknown_names_are_refused(models, names, rows, words):
    with pytest.raises(ValueError, match=f"Did you mean '{words}'"):
        variants.register(models, names=names, variants=rows)
