"""The language model as a workload: batches, loss, metrics, and what it refuses."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from attention import files
from workloads import catalog
from workloads.base import sources, spec
from workloads.base.errors import DataError
from workloads.base.options import Options
from workloads.base.workload import Sizes
from workloads.storage import token_records, tokenizer
from workloads.text.language_models import LMWorkload
from workloads.text.specs import TransformerSize

TINY = TransformerSize(1, 8, 16, 2, 4, vocabulary=32, context=8)
RECORDS = {"train": 50, "validation": 14, "test": 9}


@pytest.fixture(scope="session")
def tokens_dir(tmp_path_factory):
    """Random token records in the prepared form: 8 tokens out of 32 in each."""
    folder = tmp_path_factory.mktemp("tokens")
    (folder / token_records.TOKENIZER_FILE).write_bytes(b"none is needed to read records")
    generator = np.random.default_rng(0)
    splits = {}
    for split, count in RECORDS.items():
        path = folder / token_records.file_name(split, 0, 1)
        rows = generator.integers(4, 32, (count, 8)).astype(token_records.DTYPE)
        np.save(path, rows)
        counts = token_records.Counts(records=count, tokens=count * 8)
        shard = token_records.WrittenShard(path.name, counts, files.sha256(path))
        splits[split] = [shard]
    token_records.write_info(folder, length=8, vocab_size=32, splits=splits, source={})
    return str(folder)


def _workload(size=TINY):
    return LMWorkload(catalog.get("pydoc_lm"), None, Options(), size, Sizes(50, 6, 14, 9, 4))


@pytest.fixture(scope="module")
def workload():
    return _workload()


def test_batches_are_shifted_and_a_function_of_the_step(workload, tokens_dir):
    queue = workload._build_input_queue(3, "train", tokens_dir, 4)
    batches = [next(queue) for _ in range(3)]
    assert set(batches[0]) == {"inputs", "targets"}
    for batch in batches:
        assert batch["inputs"].dtype == batch["targets"].dtype == jnp.int32
        assert (batch["inputs"][:, 0] == tokenizer.EOS).all()
        np.testing.assert_array_equal(batch["inputs"][:, 1:], batch["targets"][:, :-1])
    later = workload._build_input_queue(3, "train", tokens_dir, 4, start_step=2)
    np.testing.assert_array_equal(next(later)["targets"], batches[2]["targets"])


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
    assert float(two["n_valid_examples"]) == 2


def test_label_smoothing_is_optaxs(workload):
    generator = np.random.default_rng(0)
    logits = jnp.asarray(generator.normal(size=(2, 3, 5)), jnp.float32)
    labels = jnp.asarray(generator.integers(0, 5, (2, 3)))
    expected = optax.softmax_cross_entropy(
        logits, optax.smooth_labels(jax.nn.one_hot(labels, 5), 0.2)
    )
    got = workload.loss_fn(labels, logits, None, jnp.float32(0.2))
    np.testing.assert_allclose(got["per_example"], expected.sum(-1), rtol=1e-5)


@pytest.mark.slow
def test_evaluations_count_every_token_once(workload, tokens_dir):
    """14 records by 4 (the last batch filled up) give the mean over all 112 tokens."""
    params, state = workload.init_model_fn(jax.random.key(0))
    metrics = workload.eval_model(4, params, state, jax.random.key(0), tokens_dir)
    assert metrics["validation/num_examples"] == 14
    source = workload._source("validation", tokens_dir)
    rows = np.stack([source[i]["tokens"] for i in range(14)]).astype(np.int32)
    inputs = np.concatenate([np.ones((14, 1), np.int32), rows[:, :-1]], axis=1)
    logits, _ = workload.model_fn(
        params, {"inputs": inputs}, None, spec.ForwardPassMode.EVAL, jax.random.key(0), False
    )
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, rows)
    assert metrics["validation/loss"] == pytest.approx(float(losses.mean()), rel=1e-5)
    assert metrics["validation/perplexity"] == pytest.approx(np.exp(losses.mean()), rel=1e-5)


def test_training_subset_is_spread_evenly(workload, tokens_dir):
    subset, train = (workload._source(s, tokens_dir) for s in ("eval_train", "train"))
    assert len(subset) == 6
    for place in range(6):
        np.testing.assert_array_equal(subset[place]["tokens"], train[8 * place]["tokens"])
    with pytest.raises(ValueError, match="51 examples was asked; 1 to 50"):
        sources.evenly_spaced(train, 51)


def test_diverged_losses_have_an_infinite_perplexity(workload):
    assert workload._metrics({"loss": 8000.0, "tokens": 8.0}, 9, [], "")["perplexity"] == np.inf
    assert np.isnan(workload._metrics({"loss": np.nan, "tokens": 8.0}, 9, [], "")["perplexity"])


def test_records_of_another_model_are_refused(tokens_dir):
    other = _workload(dataclasses.replace(TINY, vocabulary=64))
    wrong = r"vocabulary of 32 .* takes 64 and 8\nTo repair: .*prepare pydoc_lm"
    with pytest.raises(DataError, match=wrong):
        other._source("train", tokens_dir)


def test_example_batches_have_the_shapes_of_training(workload, tokens_dir):
    real = next(workload._build_input_queue(0, "train", tokens_dir, 4))
    random = workload.example_batch(4)
    shapes = [
        {name: (leaf.shape, leaf.dtype) for name, leaf in batch.items()} for batch in (real, random)
    ]
    assert shapes[0] == shapes[1]
