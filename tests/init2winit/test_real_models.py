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
from workloads import catalog
from workloads import init2winit_specs as specs
from workloads.init2winit import models as variants
from workloads.init2winit import preflight

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # init2winit's and its libraries' own
    pytest.mark.slow,
]
REFUSED = {
    *((host, f"{mixer}+per_dim_temp") for host in ("conformer", "mlcommons_conformer")
      for mixer in ("standard", "laser")),
    *((host, f"{mixer}+qk_norm") for host in ("nanodo", "rope_nanodo")
      for mixer in ("standard", "laser")),
}  # fmt: skip
ROWS = [(host, row) for host in specs.MODELS for row in table.PAPER_ROWS]


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


def _flax_module(modules, host, variant=None, **settings):
    models, _ = modules
    hps = models.get_model_hparams(host).copy_and_resolve_references()
    hps.unlock()
    hps.update({"batch_size": 2, **SETTINGS[host], **settings})
    made = models.get_model(host)
    if variant is not None:
        made = variants.model_class(made, host, lambda _: variant)
    model = types.SimpleNamespace(hps=hps, dataset_meta_data={"shift_inputs": True, "causal": True})
    return made.build_flax_module(model)


def _inputs(host):
    random = jax.random.key(0)
    if host == "vit":
        return (jax.random.normal(random, (2, 8, 8, 3)),)
    if "conformer" in host:
        return jax.random.normal(random, (2, 3200)), jnp.zeros((2, 3200))
    return (jax.random.randint(random, (2, 8), 1, 20),)


def _init(module, host):
    keys = {"params": jax.random.key(1), "dropout": jax.random.key(2)}
    return jax.jit(lambda: module.init(keys, *_inputs(host), train=False))()


def _apply(module, host, variables):
    found = jax.jit(lambda v: module.apply(v, *_inputs(host), train=False))(variables)
    return found[0] if isinstance(found, tuple) else found


def _leaves(variables):
    found = jax.tree_util.tree_leaves_with_path(variables["params"])
    return {jax.tree_util.keystr(path): leaf for path, leaf in found}


@pytest.mark.parametrize(("host", "row"), ROWS)
def test_a_row_has_the_hosts_parameters_and_its_own_or_is_refused(modules, host, row):
    if (host, row) in REFUSED:
        with pytest.raises(ValueError, match=host):
            catalog.check_variant(specs.PREFIX + host, row)
        return
    catalog.check_variant(specs.PREFIX + host, row)
    variant = registry.get(row, **({"tau": 0.9} if "temp" in row.split("+") else {}))
    plain, ours = _flax_module(modules, host), _flax_module(modules, host, variant)
    before, after = _leaves(_init(plain, host)), _leaves(variables := _init(ours, host))
    assert all(jnp.array_equal(before[name], after[name]) for name in before)
    own = set(after) - set(before)
    entries = table.entries_of(variant.name).values()
    assert bool(own) == any(entry.parameters != "none" for entry in entries)
    outputs = _apply(ours, host, variables)
    assert jnp.isfinite(outputs).all()
    changes = jnp.abs(outputs - _apply(plain, host, _init(plain, host))).max()
    # per_dim_temp is exactly standard where it begins.
    if row in ("standard", "standard+per_dim_temp"):
        assert changes < 1e-5
    else:
        assert changes > 1e-6


@pytest.mark.parametrize("host", SETTINGS)
def test_every_parameter_has_a_gradient_through_the_variant(modules, host):
    module = _flax_module(modules, host, registry.get("laser"))
    variables = _init(module, host)

    def loss(params):
        rngs = {"dropout": jax.random.key(3)}
        out = module.apply(
            {**variables, "params": params}, *_inputs(host), train=True, rngs=rngs,
            mutable=["batch_stats"],
        )[0]  # fmt: skip
        return jnp.square(out[0] if isinstance(out, tuple) else out).sum()

    gradients = _leaves({"params": jax.jit(jax.grad(loss))(variables["params"])})
    attention = {name: leaf for name, leaf in gradients.items() if "'value'" in name}
    assert len(attention) >= 2
    assert all(jnp.abs(leaf).max() > 0 for leaf in attention.values())


@pytest.mark.parametrize("host", ["vit", "transformer"])
def test_differential_attention_knows_its_layer(modules, host):
    module = _flax_module(modules, host, registry.get("diff"))
    assert jnp.isfinite(_apply(module, host, _init(module, host))).all()


def test_the_temperature_of_a_host_comes_after_lasers_logarithm(modules):
    laser = registry.get("laser")
    one = _flax_module(modules, "vit", laser, attn_temperature=1.0)
    variables = _init(one, "vit")
    two = _flax_module(modules, "vit", laser, attn_temperature=2.0)
    # Twice the output is what twice the output's projection gives, up to its bias (zero here).
    doubled = jax.tree_util.tree_map_with_path(
        lambda path, leaf: leaf * 2 if "'out']['kernel'" in jax.tree_util.keystr(path) else leaf,
        variables,
    )
    assert jnp.allclose(_apply(two, "vit", variables), _apply(one, "vit", doubled), atol=1e-5)


def test_models_are_registered_with_their_hosts_training_defaults(modules):
    models, algorithm = modules
    hosts = ("vit", "conformer", "mlcommons_conformer")
    names = variants.register(models, algorithm, names=hosts)
    assert "vit_laser" in names
    assert "conformer_laser+per_dim_temp" not in names
    assert len(names) == 8 + 6 + 6
    assert algorithm._MODEL_TRAINING_DEFAULTS["vit_laser"]["batch_size"] == 1024
    assert models.get_model_hparams("vit_laser+temp").attention_tau == 1.0


def test_every_data_set_of_the_tree_is_found_without_importing_it(tree, modules):
    datasets = importlib.import_module("init2winit.dataset_lib.datasets")
    assert set(preflight.data_sets(tree)) == set(datasets._ALL_DATASETS)
