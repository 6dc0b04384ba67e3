"""Our workloads and our submission against AlgoPerf's; skips where it is not installed.

`make parity` runs all of it and prints the table of differences. Tests marked `table` run there
alone: small models take a minute each to compile, the full size takes minutes.
"""

import jax.numpy as jnp
import numpy as np
import pytest

from attention import table
from tests.algoperf.parity import inputs, metrics, models, optimizer
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
