"""A batch computed in parts: losses, gradients and dropout of the whole, or a refusal."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sweeps.training import train_step
from workloads import catalog
from workloads.base import dropout, sharding
from workloads.base.options import Options
from workloads.base.workload import Sizes
from workloads.text.language_models import BertWorkload, LMWorkload
from workloads.text.specs import TransformerSize

SIZE = TransformerSize(2, 8, 16, 2, 4, vocabulary=32, context=10)
POINT = {
    "learning_rate": 1e-2, "one_minus_beta1": 0.1, "beta2": 0.99, "epsilon": 1e-8,
    "weight_decay": 0.1, "label_smoothing": 0.1, "dropout_rate": 0.3, "grad_clip": np.inf,
    "warmup_steps": 0.0, "step_hint": 10.0,
}  # fmt: skip


def _two_updates(kind, options, microbatches):
    """Returns losses, gradient norms and parameters of 8 sequences that do not weigh the same."""
    workload = kind(catalog.get("pydoc_lm"), None, options, SIZE, Sizes(8, 8, 8, 8, 8))
    step_function = train_step.TrainStep(workload, "adamw", microbatches)
    state, batch = step_function.first_state(0), workload.example_batch(8)
    weights = np.linspace(0, 1, 8, dtype=np.float32)[:, None]
    batch = {**batch, "weights": jnp.broadcast_to(weights, batch["targets"].shape)}
    scalars = {name: jnp.float32(value) for name, value in POINT.items()}
    key, measured = train_step.seed_key(0, train_step.DROPOUT), []
    update = jax.jit(step_function._step)
    for _ in range(2):
        state, one = update(state, batch, scalars, key)
        measured.append((float(one.loss), float(one.grad_norm)))
    return measured, state


@pytest.mark.parametrize(
    ("kind", "options", "microbatches"),
    [
        (LMWorkload, Options(scan_layers=True, remat=True, loss_chunk_tokens=7), 4),
        (BertWorkload, Options("bfloat16", param_dtype="bfloat16"), 2),
    ],
)
def test_parts_give_what_the_whole_batch_gives(kind, options, microbatches):
    whole, state = _two_updates(kind, options, 1)
    parts, other = _two_updates(kind, options, microbatches)
    narrow = options.param_dtype == "bfloat16"
    np.testing.assert_allclose(parts, whole, rtol=2e-2 if narrow else 1e-5)
    assert int(other.step) == 2
    if not narrow:
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5),
            other.params,
            state.params,
        )


def test_a_part_draws_its_rows_of_the_batchs_mask():
    key, keep = jax.random.key(3), jnp.float32(0.6)
    whole = np.asarray(dropout.keep_mask(key, keep, (6, 5, 7)))
    rows = jnp.asarray([4, 1, 2])
    with dropout.rows_of_a_batch(rows):
        part = dropout.keep_mask(key, keep, (3, 5, 7))
    np.testing.assert_array_equal(part, whole[np.asarray(rows)])
    np.testing.assert_array_equal(dropout.keep_mask(key, keep, (6, 5, 7)), whole)


def test_every_row_is_in_one_part():
    batch = {"inputs": jnp.arange(24).reshape(12, 2), "targets": jnp.arange(12)}
    parts, rows = sharding.Devices().parts(batch, 3)
    assert parts["inputs"].shape == (3, 4, 2)
    assert sorted(rows.ravel().tolist()) == list(range(12))
    np.testing.assert_array_equal(parts["targets"], rows)
    np.testing.assert_array_equal(parts["inputs"], batch["inputs"][rows])
    with pytest.raises(ValueError, match="batch_size 12 cannot be divided into 5 microbatches"):
        sharding.Devices().parts(batch, 5)


def test_a_model_with_a_state_is_refused():
    workload = LMWorkload(catalog.get("pydoc_lm"), None, Options(), SIZE, Sizes(8, 8, 8, 8, 8))
    step_function = train_step.TrainStep(workload, "adamw", 2)
    state = step_function.first_state(0)._replace(model_state={"mean": jnp.zeros(3)})
    with pytest.raises(ValueError, match="pydoc_lm: 2 microbatches would change"):
        step_function._step(state, {}, {}, jax.random.key(0))
