"""The catalog's model FLOP against the products in the models' own programs, counted."""

import math

import jax
import pytest

from attention import registry as variants
from workloads import catalog, registry
from workloads.base import spec
from workloads.base.options import Options


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
        total += repeated * sum(_products(_open(one)) for one in inner if _is_program(one))
    return total


def _is_program(value):
    return hasattr(value, "eqns") or hasattr(value, "jaxpr")


def _open(program):
    return getattr(program, "jaxpr", program)


@pytest.mark.parametrize(
    ("name", "within"),
    [
        ("imagenet_vit", 0.03),
        ("digits_vit", 0.08),
        ("librispeech_conformer", 0.03),
        ("c4_lm_2b", 0.01),
        ("wikipedia_bert", 0.02),
        ("pydoc_lm", 0.03),
        ("pydoc_bert", 0.03),
    ],
)
def test_a_forward_pass_is_a_third_of_the_step(name, within):
    entry = catalog.get(name)
    options = Options(scan_layers="scan_layers" in entry.support.options)
    workload = registry.make(name, variants.get("standard"), scan_layers=options.scan_layers)
    key = jax.random.key(0)
    params, state = jax.eval_shape(workload.init_model_fn, key)
    batch = jax.eval_shape(lambda: workload.example_batch(1))
    train = spec.ForwardPassMode.TRAIN
    run = jax.make_jaxpr(lambda *given: workload.model_fn(*given, train, key, True)[0])
    assert 3 * _products(run(params, batch, state).jaxpr) == pytest.approx(entry.flops, rel=within)
