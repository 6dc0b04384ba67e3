"""Our workloads and our submission against AlgoPerf's; skips where it is not installed.

`make parity` runs all of it and prints the table of differences. Tests marked `table` run there
alone: small models take a minute each to compile, the full size takes minutes.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention import registry, table
from sweeps.training import optimizers
from tests.algoperf.parity import inputs, metrics, models, optimizer, workload_pairs
from workloads import algoperf_specs, catalog

# AlgoPerf and its libraries warn.
pytestmark = [pytest.mark.parity, pytest.mark.filterwarnings("ignore")]

GENERAL = {
    "optimizer": (optimizer.update_rows, optimizer.schedule_rows, optimizer.point_rows),
    "metrics": (metrics.accuracy_rows, metrics.decoding_rows, metrics.wer_rows),
    "inputs": (inputs.speech_rows, inputs.image_rows, inputs.mixup_rows),
    "models": (models.loss_rows,),
}
FULL_SIZE = ("imagenet_vit", "librispeech_conformer")
# Every mixer and every modifier.
VARIANTS = (
    "standard",
    "laser",
    "diff",
    "diff_laser",
    "standard+temp",
    "laser+qk_norm",
    "laser+per_dim_temp",
)
# What is run outside of `make parity` too, by its id.
ALWAYS = (
    "models-imagenet_vit_glu-small",
    "models-librispeech_conformer-small",
    "double-librispeech_conformer-standard",
    "double-librispeech_conformer-diff_laser",
    "variants-imagenet_vit-laser+qk_norm",
    "variants-imagenet_vit-diff_laser",
)


def _comparisons():
    """Yields an id, a function from AlgoPerf to rows, and its other arguments."""
    for name in (*algoperf_specs.IMAGES, *algoperf_specs.SPEECH):
        yield f"models-{name}-small", models.model_rows, (name, True)
    for name in FULL_SIZE:
        yield f"full_size-{name}", models.model_rows, (name, False)
        lacks = {lack for lack, _ in catalog.get(name).support.lacks}
        for variant in VARIANTS:
            if not lacks & {*table.modifiers(variant)}:
                yield f"variants-{name}-{variant}", models.variant_rows, (name, variant)
    for name in algoperf_specs.SPEECH:
        yield f"double-{name}-standard", models.double_rows, (name, "standard")
    for variant in ("laser", "diff_laser"):
        name = "librispeech_conformer"
        yield f"double-{name}-{variant}", models.double_rows, (name, variant)


@pytest.mark.parametrize(
    "function",
    [
        pytest.param(function, id=f"{part}-{function.__name__}")
        for part, functions in GENERAL.items()
        for function in functions
    ],
)
def test_training_metrics_and_data_are_algoperfs(reference, check, function):
    check(function(reference))


@pytest.mark.parametrize("name", [*algoperf_specs.IMAGES, *algoperf_specs.SPEECH])
def test_models_full_size_tree_is_algoperfs(reference, check, name):
    check(models.shape_rows(reference, name))


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        pytest.param(
            function, arguments, id=id_, marks=() if id_ in ALWAYS else (pytest.mark.table,)
        )
        for id_, function, arguments in _comparisons()
    ],
)
def test_values_steps_and_variants_are_algoperfs(reference, check, function, arguments):
    """`double`: float32's two gradients, each some 1e-5 wrong, show less."""
    check(function(reference, *arguments))
    assert jnp.ones(1).dtype == jnp.float32 == np.float32


def test_another_optimizer_exceeds_the_tolerance(reference, monkeypatch):
    """optax's NAdamW is not AlgoPerf's."""
    monkeypatch.setitem(optimizers.OPTIMIZERS, "nadamw", optimizers.OPTIMIZERS["nadamw_optax"])
    assert not next(optimizer.update_rows(reference)).passed


def test_another_variant_exceeds_every_tolerance(reference):
    """LASER in our model alone."""
    laser = registry.get("laser")
    pair = workload_pairs.make("imagenet_vit", reference, variant=laser, small=True)
    plain = workload_pairs.make("imagenet_vit", reference, small=True)
    mixed = workload_pairs.Pair(pair.name, pair.ours, plain.theirs)
    params = workload_pairs.moved(
        pair.ours.initial(jax.random.key(0), *pair.examples())[0], jax.random.key(1)
    )
    both = mixed.outputs(params, {}, mixed.batch(size=64), jax.random.key(2), train=True)
    names = ("logits", "loss", "gradient")
    table = workload_pairs.step_rows("mixed", names, *both, mixed.tolerances)
    assert not any(row.passed for row in table)


def test_no_difference_hides_in_a_nan_or_a_shape():
    ones = {"a": jnp.ones(2), "b": jnp.ones((2, 1))}
    assert math.isnan(workload_pairs.largest(ones, {**ones, "b": jnp.full((2, 1), jnp.nan)}))
    assert not workload_pairs.Row("subject", "quantity", math.nan, 1e-5).passed
    for changed in ({**ones, "b": jnp.ones((2, 3))}, {"a": jnp.ones(2)}):
        with pytest.raises(ValueError, match="differ"):
            workload_pairs.largest(ones, changed)
