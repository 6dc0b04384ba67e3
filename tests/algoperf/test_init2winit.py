"""Registration in a checkout of init2winit, its gaps filled in; skips where there is none.

ATTNPERF_INIT2WINIT_DIR names the checkout. What is filled in is never called by the ViT.
"""

import importlib
import os
import sys
import types

import jax
import jax.numpy as jnp
import pytest

from attention import inject, registry
from workloads.init2winit import models as registration

pytestmark = pytest.mark.filterwarnings("ignore")  # init2winit's and its libraries' own
# The module that the public tree lacks, and a declared dependency that fails where it is absent.
GAPS = (
    "init2winit.model_lib.lingvo_attention",
    "jax_bitempered_loss",
    "jax_bitempered_loss.loss",
)


class _Gap(types.ModuleType):
    """A module in which every public name is a function that must not be called."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)

        def missing(*_, **__):
            raise AssertionError(f"{self.__name__}.{name} was called")

        return missing


@pytest.fixture(scope="module")
def tree():
    folder = os.environ.get("ATTNPERF_INIT2WINIT_DIR")
    if not folder:
        pytest.skip("no checkout of init2winit: ATTNPERF_INIT2WINIT_DIR is not set")
    sys.path.insert(0, folder)
    package = importlib.import_module("init2winit.model_lib")
    for name in GAPS:
        sys.modules[name] = _Gap(name)
    package.lingvo_attention = sys.modules[GAPS[0]]
    sys.modules[GAPS[1]].loss = sys.modules[GAPS[2]]
    yield tuple(
        importlib.import_module(f"init2winit.{name}")
        for name in ("model_lib.models", "trainer_lib.training_algorithm")
    )
    sys.path.remove(folder)
    for name in [*GAPS, *(name for name in sys.modules if name.startswith("init2winit"))]:
        sys.modules.pop(name, None)


def _model(models, name, **settings):
    hps = models.get_model_hparams(name).copy_and_resolve_references()
    sizes = {"width": 48, "depth": 2, "mlp_dim": 96, "num_heads": 4, "num_classes": 10}
    hps.update({**sizes, "patch_size": (4, 4), "head_zeroinit": False, **settings})
    hps.unlock()
    hps.update({"batch_size": 2, "input_shape": (16, 16, 3), "output_shape": (10,)})
    data = {"apply_one_hot_in_loss": False}
    return models.get_model(name)(hps, data, "cross_entropy", "classification_metrics")


def test_models_and_training_defaults_are_registered(tree):
    models, algorithm = tree
    names = registration.register(models, algorithm)
    assert "vit_laser" in names
    assert "conformer_laser+per_dim_temp" not in names
    assert len(names) == 8 + 6 + 6
    assert algorithm._MODEL_TRAINING_DEFAULTS["vit_laser"]["batch_size"] == 1024
    assert models.get_model_hparams("vit_laser+temp").attention_tau == 1.0
    with pytest.raises(ValueError, match="already"):
        registration.register(models, algorithm)


def test_the_registered_model_is_the_injected_host(tree):
    models, _ = tree
    images = jax.random.normal(jax.random.key(0), (2, 16, 16, 3))
    host, ours = _model(models, "vit"), _model(models, "vit_laser")
    variables = host.flax_module.init(jax.random.key(1), images, train=False)
    same = ours.flax_module.init(jax.random.key(1), images, train=False)
    assert jax.tree.all(jax.tree.map(jnp.array_equal, variables, same))
    with inject.injected(registry.get("laser")):
        expected = host.flax_module.apply(variables, images, train=False)
    found = jax.jit(lambda v, x: ours.flax_module.apply(v, x, train=False))(variables, images)
    plain = host.flax_module.apply(variables, images, train=False)
    assert jnp.abs(found - expected).max() < 1e-5
    assert jnp.abs(found - plain).max() > 1e-4


def test_a_training_cost_has_gradients_and_own_leaves(tree):
    models, _ = tree
    model = _model(models, "vit_standard+qk_norm")
    images = jax.random.normal(jax.random.key(0), (2, 16, 16, 3))
    params = model.flax_module.init(jax.random.key(1), images, train=False)["params"]
    batch = {"inputs": images, "targets": jax.nn.one_hot(jnp.asarray([1, 2]), 10)}

    def cost(params):
        return model.training_cost(params, batch, batch_stats={}, dropout_rng=jax.random.key(2))[0]

    gradients = jax.tree_util.tree_leaves_with_path(jax.grad(cost)(params))
    own = [leaf for path, leaf in gradients if "query_ln" in jax.tree_util.keystr(path)]
    assert len(own) == 2
    assert all(jnp.abs(leaf).max() > 0 for leaf in own)


def test_unknown_hosts_are_refused():
    empty = types.SimpleNamespace(_ALL_MODELS={})
    with pytest.raises(ValueError, match="not known to work; use vit"):
        registration.register(empty, hosts=["resnet"])
    with pytest.raises(ValueError, match="has no 'vit'"):
        registration.register(empty, hosts=["vit"])
