"""Our own models take a variant as an argument: trees, values and precision beside injection."""

import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from attention import inject, registry
from attention.kernels import splash
from tests.workloads import parameters
from workloads import catalog
from workloads import registry as workloads
from workloads.images import vit
from workloads.speech import conformer

IMAGES = (np.random.default_rng(0).standard_normal((2, 8, 8, 3)).astype(np.float32),)
AUDIO = (
    np.random.default_rng(1).integers(-2000, 2000, (2, 4000)).astype(np.float32),
    (np.arange(4000) >= np.array([[4000], [2500]])).astype(np.float32),
)
TAU = {"laser+temp": {"tau": 0.9}}
# What each module does with variants is the same for all; the Conformer scales queries itself.
VARIANTS = ["diff_laser", "diff2+gate+ssmax", "standard+per_dim_temp"]


def _vit(variant=None):
    return vit.ViT(
        num_classes=5, patch_size=4, width=16, depth=2, mlp_dim=24, num_heads=2, use_map=True,
        variant=variant,
    )  # fmt: skip


def _vit_without_head(variant=None):
    """Layers hand on what they leave; a pooling head would take part."""
    return _vit(variant).clone(use_map=False, depth=3)


def _conformer(variant=None):
    config = conformer.Config(
        vocab_size=8, encoder_dim=16, num_heads=2, num_layers=1, feed_forward_factor=1,
        subsampling_channels=2, masks=None,
    )  # fmt: skip
    return conformer.Conformer(config, variant)


def _depth(path):
    block = re.search(r"block_(\d+)", path, re.IGNORECASE)
    return int(block[1]) if block else 2  # the pooling head behind two blocks


@pytest.mark.parametrize(
    ("make", "inputs", "name"),
    [
        *((_vit, IMAGES, name) for name in VARIANTS),
        (_vit_without_head, IMAGES, "laser+gate+rope+value_residual+window+xsa"),
        (_conformer, AUDIO, "laser+temp"),
        pytest.param(_conformer, AUDIO, "diff_laser", marks=pytest.mark.slow),
    ],
)
def test_a_variant_as_argument_is_the_injected_one(make, inputs, name):
    """Names, shapes and initial values to the bit; outputs to rounding (of a ViT: to the bit)."""
    variant = registry.get(name, **TAU.get(name, {}))
    model, plain = make(variant), make()

    def run(params=None):
        """The plain model with the variant injected."""
        with inject.injected(variant, layer=_depth):
            if params is None:
                return plain.init(jax.random.key(0), *inputs)
            return plain.apply(params, *inputs)

    ours, theirs = jax.jit(model.init)(jax.random.key(0), *inputs), jax.jit(run)()
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    jax.tree.map(np.testing.assert_array_equal, ours, theirs)
    moved = {**ours, "params": parameters.moved(ours["params"], 0.1)}
    got, expected = jax.jit(model.apply)(moved, *inputs), jax.jit(run)(moved)
    if inputs is IMAGES:
        np.testing.assert_array_equal(got, expected)
        return
    (got, paddings), (expected, _) = got, expected
    valid = np.asarray(paddings) == 0  # what a row without keys sees is the host's
    np.testing.assert_allclose(got[valid], expected[valid], rtol=2e-5, atol=2e-5)


class _Attention(nn.Module):
    """A Conformer's attention function, where it finds its learned factors."""

    variant: object

    @nn.compact
    def __call__(self, query, key, value, mask=None):
        attend = conformer.QueryScaledAttention(1.0, self.variant, 0, None, {})
        return attend(query, key, value, mask=mask)


def test_laser_in_a_bfloat16_conformer_is_as_exact_as_in_a_vit():
    """LASER's sum is float32 in both, and its outputs the same to the bit.

    Injected into the model's own function, which rounds the sum to bfloat16, it is 1.2e-3 off on
    average instead of 7.1e-4.
    """
    query, key, value = jax.random.normal(jax.random.key(0), (3, 2, 40, 2, 8), jnp.bfloat16)
    variant = registry.get("laser")
    params = {"params": {"QueryScaler_0": {"scale": jnp.zeros(8)}}}
    in_conformer = _Attention(variant).apply(params, query, key, value)
    in_vit = variant(query, key, value)
    assert in_conformer.dtype == jnp.bfloat16
    np.testing.assert_array_equal(in_conformer, in_vit)


@pytest.mark.parametrize("kernel", ["jax_xla", "splash"])
def test_kernels_are_open_to_the_conformer(kernel, monkeypatch):
    """Those that hide keys alone, too: padded frames, which may not look, give 0 either way."""
    interpreted = functools.partial(splash.weighted_sum, interpret="tpu")
    kernel_of_tpus = dataclasses.replace(splash.KERNEL, call=interpreted)
    monkeypatch.setattr(splash, "KERNEL", kernel_of_tpus)
    arrays = jax.random.normal(jax.random.key(0), (3, 2, 9, 2, 8))
    there = jnp.arange(9) < jnp.array([9, 5])[:, None]
    mask = nn.make_attention_mask(there, there, dtype=bool)
    params = {"params": {"QueryScaler_0": {"scale": 0.1 * jnp.arange(8.0)}}}

    def run(kernel):
        model = _Attention(registry.get("laser", kernel=kernel))
        output, pullback = jax.vjp(lambda *qkv: model.apply(params, *qkv, mask), *arrays)
        return output, pullback(jnp.cos(output))

    (output, gradients), expected = run(kernel), run("xla")
    assert not output[1, 5:].any()
    jax.tree.map(
        functools.partial(np.testing.assert_allclose, atol=3e-6), (output, gradients), expected
    )
    catalog.check_variant("librispeech_conformer", "laser", kernel)


@pytest.mark.parametrize("name", ["digits_vit", "pydoc_lm"])
def test_a_kernel_of_one_platform_is_told_the_devices(name):
    """From its first trace on, initialisation included; who observes has a kernel that can."""
    workload = workloads.make(name, registry.get("laser", kernel="splash"))
    assert workload._called_model().variant.sharding == workload.devices.heads()
    with pytest.raises(ValueError, match="needs a TPU and JAX runs on 'cpu' here; use kernel="):
        workload.init_model_fn(jax.random.key(0))
    for other in (workload.observable(), workloads.make(name, registry.get("laser"))):
        variant = other._called_model().variant
        assert (variant.kernel, variant.sharding) == ("xla", None)


def test_memory_is_refused_inside_loops_and_without_a_first_layer():
    """By name: layers in nn.remat cannot hand on values, nor can a rule without a layer 0."""

    class Loop(nn.Module):
        @nn.compact
        def __call__(self, inputs):
            block = nn.remat(nn.MultiHeadDotProductAttention)
            for index in range(2):
                inputs = block(num_heads=2, name=f"block_{index}")(inputs)
            return inputs

    variant, inputs = registry.get("laser+value_residual"), jnp.ones((2, 5, 8))
    for model, rule in ((Loop(), _depth), (nn.MultiHeadDotProductAttention(2), lambda path: 1)):
        with (
            pytest.raises(ValueError, match="'laser.value_residual' hands values from layer to"),
            inject.injected(variant, layer=rule),
        ):
            model.init(jax.random.key(0), inputs)
