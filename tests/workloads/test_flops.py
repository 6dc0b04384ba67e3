"""The catalog's model FLOP against the products in the models' own programs, counted."""

import math

import jax
import pytest

from attention import registry as variants
from workloads import catalog, registry
from workloads.base import spec
from workloads.base.options import Options
from workloads.speech import spectrogram


def _products(jaxpr):
    """Returns the FLOP of matrix products and convolutions: two per multiplication."""
    total = 0
    for equation in jaxpr.eqns:
        shapes = [variable.aval.shape for variable in (*equation.invars, *equation.outvars)]
        if equation.primitive.name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            total += 2 * math.prod(shapes[2]) * math.prod(shapes[0][axis] for axis in contracted)
        elif equation.primitive.name == "conv_general_dilated":
            # A kernel's dimensions but for its outputs, for each output.
            outputs = equation.params["dimension_numbers"].rhs_spec[0]
            total += 2 * math.prod(shapes[2]) * math.prod(shapes[1]) // shapes[1][outputs]
        inner = [leaf for leaf in jax.tree.leaves(equation.params, is_leaf=_is_program)]
        repeated = equation.params.get("length", 1) if equation.primitive.name == "scan" else 1
        programs = [getattr(leaf, "jaxpr", leaf) for leaf in inner if _is_program(leaf)]
        total += repeated * sum(map(_products, programs))
    return total


def _is_program(value):
    return hasattr(value, "eqns") or hasattr(value, "jaxpr")


@pytest.mark.parametrize(
    ("name", "variant", "within"),
    [
        ("imagenet_vit", "standard", 0.03),
        ("digits_vit", "standard", 0.08),
        ("digits_vit", "diff", 0.08),
        ("librispeech_conformer", "standard", 0.02),
        ("spoken_digits_conformer", "standard", 0.02),
        ("c4_lm_2b", "standard", 0.01),
        ("wikipedia_bert", "standard", 0.02),
        ("pydoc_lm", "standard", 0.03),
        ("pydoc_lm", "diff", 0.03),
        ("pydoc_lm", "standard+gate", 0.03),
        ("pydoc_finewebedu", "standard+gate", 0.03),
        ("pydoc_bert", "standard", 0.03),
    ],
)
def test_a_forward_pass_is_a_third_of_the_step(name, variant, within):
    entry = catalog.get(name)
    options = Options(scan_layers="scan_layers" in entry.support.options)
    workload = registry.make(name, variants.get(variant), scan_layers=options.scan_layers)
    key = jax.random.key(0)
    params, state = jax.eval_shape(workload.init_model_fn, key)
    batch = jax.eval_shape(lambda: workload.example_batch(1))
    train = spec.ForwardPassMode.TRAIN
    run = jax.make_jaxpr(lambda *given: workload.model_fn(*given, train, key, True)[0])
    counted = 3 * _products(run(params, batch, state).jaxpr)
    if "conformer" in name:
        # Model FLOP begin behind the spectrogram, which nothing is learned in.
        counted -= 3 * _products(jax.make_jaxpr(spectrogram.log_mel)(*batch["inputs"]).jaxpr)
    size = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(params))
    assert counted == pytest.approx(entry.step_flops(variant, 1, size), rel=within)


@pytest.mark.parametrize(
    ("variant", "attention"),
    # Per layer, of 64 patches and width 64: QKᵀ and A·V take 2·64·64·64 each, differential
    # attention's A·V twice that. Three times for forward and backward.
    [("standard", 2), ("laser", 2), ("laser+temp", 2), ("diff", 3), ("diff_laser", 3)],
)
def test_step_flops_by_hand(variant, attention):
    """Of digits_vit's 75,018 parameters and 64 patches."""
    per_image = 6 * 75_018 * 64 + 3 * 2 * attention * (2 * 64 * 64 * 64)
    assert catalog.get("digits_vit").step_flops(variant, 32) == 32 * per_image
    assert catalog.get("digits_vit").step_flops(variant, 32, 75_018 + 10) == 32 * (
        per_image + 6 * 10 * 64
    )
    assert catalog.get("algoperf:wmt").step_flops(variant, 32) is None
    # 22,400 samples make 138 frames of spectrogram and 35 encoded. Subsampling has
    # 2·40·9·8 + 20·9·8·8 + 20·8·64 weights, a layer 2·(64·128 + 128·64) + 4·64·64 + 3·64·64 + 5·64,
    # the output 64·29; QKᵀ and A·V of a layer take 2·64·35·35 each.
    conformer = catalog.get("spoken_digits_conformer")
    assert conformer.step_flops("standard", 16) == 16 * 33_989_760
