"""Our workloads and our submission against AlgoPerf's, small; skips where it is not installed.

Full size, and the table of differences: `make parity`.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention import registry
from sweeps.training import optimizers
from tests.algoperf.parity import __main__ as command
from tests.algoperf.parity import models, optimizer, variants, workload_pairs

# AlgoPerf and its libraries warn.
pytestmark = [pytest.mark.parity, pytest.mark.filterwarnings("ignore")]


def check(table):
    assert [row for row in table if not row.passed] == []


GENERAL = [*itertools.chain(*command.GENERAL.values()), models.loss_rows]


@pytest.mark.parametrize("rows", GENERAL, ids=lambda rows: rows.__name__)
def test_training_metrics_and_data_are_algoperfs(reference, rows):
    check(rows(reference))


@pytest.mark.parametrize("name", command.WORKLOADS)
def test_the_full_size_tree_is_algoperfs(reference, name):
    check(models.shape_rows(name, reference))


@pytest.mark.parametrize("name", ["imagenet_vit_glu", "librispeech_conformer"])
def test_values_steps_and_dropout_are_algoperfs(reference, name):
    check(models.model_rows(name, reference, small=True))


@pytest.mark.parametrize("variant", ["standard", "diff_laser"])
def test_without_rounding_the_conformers_gradient_is_algoperfs(reference, variant):
    """In float64; float32's two gradients, each some 1e-5 wrong, show less."""
    check(models.double_rows("librispeech_conformer", variant, reference))
    assert jnp.ones(1).dtype == jnp.float32 == np.float32


@pytest.mark.parametrize("variant", ["laser+qk_norm", "diff_laser"])
def test_a_variant_is_the_same_in_algoperfs_model(reference, variant):
    check(variants.variant_rows("imagenet_vit", variant, reference))


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
    rows = list(workload_pairs.step_rows("mixed", names, *both, mixed.tolerances))
    assert not any(row.passed for row in rows)
