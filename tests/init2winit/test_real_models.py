"""Variants in init2winit's own models, its gaps filled in; skips where there is no checkout.

ATTNPERF_INIT2WINIT_DIR names the checkout.
"""

import importlib
import sys
import types

import jax
import jax.numpy as jnp
import pytest

from attention import registry, table
from workloads.init2winit import models as variants
from workloads.init2winit import preflight, supported_models

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # init2winit's and its libraries' own
    pytest.mark.slow,
]
REFUSED = {
    *((name, f"{mixer}+per_dim_temp") for name in ("conformer", "mlcommons_conformer")
      for mixer in ("standard", "laser")),
    *((name, f"{mixer}+qk_norm") for name in ("nanodo", "rope_nanodo")
      for mixer in ("standard", "laser")),
}  # fmt: skip
ROWS = [(name, row) for name in supported_models.MODELS for row in table.PAPER_ROWS]


@pytest.fixture(scope="module")
def modules(tree):
    """init2winit's modules models and training_algorithm."""
    tree.main_module(None)
    return tuple(
        sys.modules[f"init2winit.{name}"]
        for name in ("model_lib.models", "trainer_lib.training_algorithm")
    )


_TEXT = {
    "emb_dim": 32, "num_heads": 2, "num_layers": 2, "mlp_dim": 64, "vocab_size": 20,
    "input_shape": (8,), "output_shape": (20,), "max_target_length": 8,
    "max_eval_target_length": 8,
}  # fmt: skip
_SPEECH = {
    "encoder_dim": 32, "num_encoder_layers": 2, "num_attention_heads": 2,
    "input_shape": [(3200,), (3200,)], "output_shape": (-1, 16),
    "tokenizer_vocab_path": "", "tokenizer_type": "SPM",
}  # fmt: skip
SETTINGS = {
    "vit": {
        "width": 32, "depth": 2, "mlp_dim": 64, "num_heads": 2, "num_classes": 10,
        "patch_size": (4, 4), "head_zeroinit": False, "input_shape": (8, 8, 3),
        "output_shape": (10,),
    },
    "conformer": _SPEECH,
    "mlcommons_conformer": _SPEECH,
    "transformer": {**_TEXT, "qkv_dim": 32},
    "nanodo": _TEXT,
    "rope_nanodo": _TEXT,
}  # fmt: skip


def _flax_module(modules, name, variant=None, **settings):
    models, _ = modules
    hps = models.get_model_hparams(name).copy_and_resolve_references()
    hps.unlock()
    hps.update({"batch_size": 2, **SETTINGS[name], **settings})
    made = models.get_model(name)
    if variant is not None:
        made = variants.model_class(made, name, lambda _: variant)
    model = types.SimpleNamespace(hps=hps, dataset_meta_data={"shift_inputs": True, "causal": True})
    return made.build_flax_module(model)


def _inputs(name):
    random = jax.random.key(0)
    if name == "vit":
        return (jax.random.normal(random, (2, 8, 8, 3)),)
    if "conformer" in name:
        return jax.random.normal(random, (2, 3200)), jnp.zeros((2, 3200))
    return (jax.random.randint(random, (2, 8), 1, 20),)


def _init(module, name):
    keys = {"params": jax.random.key(1), "dropout": jax.random.key(2)}
    return jax.jit(lambda: module.init(keys, *_inputs(name), train=False))()


def _apply(module, name, variables):
    leaves = jax.jit(lambda v: module.apply(v, *_inputs(name), train=False))(variables)
    return leaves[0] if isinstance(leaves, tuple) else leaves


def _leaves(variables):
    leaves = jax.tree_util.tree_leaves_with_path(variables["params"])
    return {jax.tree_util.keystr(path): leaf for path, leaf in leaves}


@pytest.mark.parametrize(("name", "row"), ROWS)
def test_a_row_has_the_hosts_parameters_and_its_own_or_is_refused(modules, name, row):
    if (name, row) in REFUSED:
        with pytest.raises(ValueError, match=name):
            supported_models.check_variant(name, row)
        return
    supported_models.check_variant(name, row)
    variant = registry.get(row, **({"tau": 0.9} if "temp" in row.split("+") else {}))
    plain, ours = _flax_module(modules, name), _flax_module(modules, name, variant)
    before, after = _leaves(_init(plain, name)), _leaves(variables := _init(ours, name))
    assert all(jnp.array_equal(before[name], after[name]) for name in before)
    added = set(after) - set(before)
    entries = table.entries_of(variant.name).values()
    assert bool(added) == any(entry.parameters != "none" for entry in entries)
    outputs = _apply(ours, name, variables)
    assert jnp.isfinite(outputs).all()
    changes = jnp.abs(outputs - _apply(plain, name, _init(plain, name))).max()
    # per_dim_temp is exactly standard where it begins.
    if row in ("standard", "standard+per_dim_temp"):
        assert changes < 1e-5
    else:
        assert changes > 1e-6


@pytest.mark.parametrize("name", SETTINGS)
def test_every_parameter_has_a_gradient_through_the_variant(modules, name):
    module = _flax_module(modules, name, registry.get("laser"))
    variables = _init(module, name)

    def loss(params):
        rngs = {"dropout": jax.random.key(3)}
        out = module.apply(
            {**variables, "params": params}, *_inputs(name), train=True, rngs=rngs,
            mutable=["batch_stats"],
        )[0]  # fmt: skip
        return jnp.square(out[0] if isinstance(out, tuple) else out).sum()

    gradients = _leaves({"params": jax.jit(jax.grad(loss))(variables["params"])})
    attention = {name: leaf for name, leaf in gradients.items() if "'value'" in name}
    assert len(attention) >= 2
    assert all(jnp.abs(leaf).max() > 0 for leaf in attention.values())


@pytest.mark.parametrize("name", ["vit", "transformer"])
def test_differential_attention_knows_its_layer(modules, name):
    module = _flax_module(modules, name, registry.get("diff"))
    assert jnp.isfinite(_apply(module, name, _init(module, name))).all()


def test_the_temperature_of_a_host_comes_after_lasers_logarithm(modules):
    laser = registry.get("laser")
    single = _flax_module(modules, "vit", laser, attn_temperature=1.0)
    variables = _init(single, "vit")
    double = _flax_module(modules, "vit", laser, attn_temperature=2.0)
    # Twice the output is what twice the output's projection gives, up to its bias (zero here).
    doubled = jax.tree_util.tree_map_with_path(
        lambda path, leaf: leaf * 2 if "'out']['kernel'" in jax.tree_util.keystr(path) else leaf,
        variables,
    )
    assert jnp.allclose(_apply(double, "vit", variables), _apply(single, "vit", doubled), atol=1e-5)


def test_models_are_registered_with_their_hosts_training_defaults(modules):
    models, algorithm = modules
    names = ("vit", "conformer", "mlcommons_conformer")
    names = variants.register(models, algorithm, names=names)
    assert "vit_laser" in names
    assert "conformer_laser+per_dim_temp" not in names
    assert len(names) == 8 + 6 + 6
    assert algorithm._MODEL_TRAINING_DEFAULTS["vit_laser"]["batch_size"] == 1024
    assert models.get_model_hparams("vit_laser+temp").attention_tau == 1.0


def test_every_data_set_of_the_tree_is_found_without_importing_it(tree, modules):
    datasets = importlib.import_module("init2winit.dataset_lib.datasets")
    assert set(preflight.data_sets(tree)) == set(datasets._ALL_DATASETS)
