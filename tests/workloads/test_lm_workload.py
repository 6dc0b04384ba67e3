"""The language model as a workload: batches, loss, metrics, and what it refuses."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.workloads import small_text
from tests.workloads.conftest import write_token_records
from workloads import registry
from workloads.base import sources
from workloads.base.errors import DataError
from workloads.storage import tokenizer


@pytest.fixture(scope="module")
def workload():
    return small_text.make()


def test_inputs_are_the_targets_before(workload):
    batch = next(workload._build_input_queue(3, "train", "", 4))
    assert set(batch) == {"inputs", "targets"}
    assert (batch["inputs"][:, 0] == tokenizer.EOS).all()
    np.testing.assert_array_equal(batch["inputs"][:, 1:], batch["targets"][:, :-1])


def test_loss_by_hand(workload):
    """Two tokens of three words: ln 2 at odds 2:1:1, and ln 4 for one of the others."""
    logits = jnp.log(jnp.asarray([[[2.0, 1.0, 1.0], [2.0, 1.0, 1.0]]]))
    labels = jnp.asarray([[0, 2]])
    losses = workload.loss_fn(labels, logits)
    assert float(losses["summed"]) == pytest.approx(np.log(2) + np.log(4), rel=1e-6)
    assert float(losses["n_valid_examples"]) == 2
    first = workload.loss_fn(labels, logits, jnp.asarray([[1.0, 0.0]]))
    assert float(first["summed"]) == pytest.approx(np.log(2), rel=1e-6)
    assert float(first["n_valid_examples"]) == 1
    two = workload.loss_fn(
        jnp.tile(labels, (2, 1)), jnp.tile(logits, (2, 1, 1)), jnp.asarray([0.0, 1.0])
    )
    np.testing.assert_allclose(two["per_example"], [0.0, np.log(8)], rtol=1e-6)
    smoothed = workload.loss_fn(labels, logits, None, jnp.float32(0.2))
    expected = optax.softmax_cross_entropy(
        logits, optax.smooth_labels(jax.nn.one_hot(labels, 3), 0.2)
    )
    np.testing.assert_allclose(smoothed["summed"], expected.sum(), rtol=1e-5)
    assert float(two["n_valid_examples"]) == 2


def test_training_subset_is_spread_evenly(workload):
    subset, train = (workload._source(s, "") for s in ("eval_train", "train"))
    assert len(subset) == 6
    for place in range(6):
        np.testing.assert_array_equal(subset[place]["tokens"], train[8 * place]["tokens"])
    with pytest.raises(ValueError, match="has 50 examples; 51 are"):
        sources.evenly_spaced(train, 51)


def test_diverged_losses_have_an_infinite_perplexity(workload):
    metrics = workload._metrics({"loss": 16.0, "tokens": 8.0}, [], "")
    assert metrics == {"loss": 2.0, "perplexity": pytest.approx(np.exp(2.0))}
    assert workload._metrics({"loss": 8000.0, "tokens": 8.0}, [], "")["perplexity"] == np.inf
    assert np.isnan(workload._metrics({"loss": np.nan, "tokens": 8.0}, [], "")["perplexity"])


def test_records_of_another_model_are_refused(tmp_path, spm_model):
    (tmp_path / "spm.model").write_bytes(spm_model)
    write_token_records(tmp_path, {"train": [np.ones((50, 8), int)]})
    wrong = r"vocabulary of 330 in records of 8 .* takes 1024 and 64\n.*prepare pydoc_lm"
    with pytest.raises(DataError, match=wrong):
        registry.make("pydoc_lm")._source("train", str(tmp_path))
