"""Language models as workloads: batches, masks, loss, metrics, and what they refuse."""

import itertools

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
from workloads.text import language_models
from workloads.text.text_specs import TransformerSize


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


BERT_SIZE = TransformerSize(1, 8, 16, 2, 4, vocabulary=1024, context=60)


@pytest.fixture(scope="module")
def bert():
    return small_text.make("pydoc_bert", size=BERT_SIZE)


@pytest.fixture(scope="module")
def tokens():
    """400 sequences of 60 tokens, a sixth of them special."""
    ids = np.random.default_rng(0).integers(4, 1024, (400, 60)).astype(np.int32)
    ids[:, ::6] = np.arange(10) % 4
    return ids


@pytest.fixture(scope="module")
def batch(bert, tokens):
    return jax.tree.map(np.asarray, bert._finished({"tokens": tokens}, jax.random.key(0), 0))


def test_proportions(tokens, batch):
    """15 % of 50 ordinary tokens, 7 or 8 a sequence; of those 80 % masked, 10 % random, 10 % left.

    Bounds are 4 standard deviations of a proportion over 3000 places.
    """
    chosen = batch["weights"].sum(-1)
    assert set(chosen) == {7.0, 8.0}
    assert chosen.mean() == pytest.approx(7.5, abs=0.1)
    weights = batch["weights"].astype(bool)
    shown = np.take_along_axis(batch["inputs"], batch["positions"], 1)[weights]
    was = batch["targets"][weights]
    masked, left = shown == tokenizer.MASK, shown == was
    assert masked.mean() == pytest.approx(0.8, abs=0.03)
    assert left.mean() == pytest.approx(0.1, abs=0.022)
    random = shown[~masked & ~left]
    assert len(random) / len(shown) == pytest.approx(0.1, abs=0.022)
    assert random.min() >= tokenizer.FIRST_ORDINARY
    assert random.max() < 1024
    assert len(np.unique(random)) > 200


def test_nothing_else_changes(tokens, batch):
    np.testing.assert_array_equal(
        np.take_along_axis(tokens, batch["positions"], 1), batch["targets"]
    )
    assert (np.diff(batch["positions"]) > 0).all()
    touched = np.zeros_like(tokens, bool)
    np.put_along_axis(touched, batch["positions"], batch["weights"].astype(bool), 1)
    np.testing.assert_array_equal(batch["inputs"][~touched], tokens[~touched])
    assert (tokens[touched] >= tokenizer.FIRST_ORDINARY).all()
    # Places are spread evenly: each ordinary one is chosen in 15 % of 400 sequences.
    rates = touched.mean(0)[np.arange(60) % 6 != 0]
    assert rates == pytest.approx(np.full(50, 0.15), abs=0.09)


def test_sequences_of_special_ids_count_nothing():
    specials = jnp.asarray(np.arange(120).reshape(2, 60) % 4)
    mask = jax.jit(language_models.masked, static_argnums=2)
    result = mask(specials, jax.random.split(jax.random.key(0), 2), 1024)
    assert result["weights"].sum() == 0
    np.testing.assert_array_equal(result["inputs"], specials)


def test_evaluation_masks_belong_to_the_record(bert, tokens):
    """However records are cut into batches; and not those of any training step."""
    ones = np.ones(4, np.float32)
    first, second, shifted = (
        bert._finished({"tokens": tokens[i : i + 4], "weights": ones}, None, i) for i in (0, 4, 2)
    )
    for name in first:
        records = np.concatenate([first[name], second[name]])
        np.testing.assert_array_equal(shifted[name], records[2:6])
    inputs = [first["inputs"]]
    for seed, step in ((0, 0), (0, 1), (1, 0)):
        train = bert._finished({"tokens": tokens[:4]}, jax.random.key(seed), step)
        inputs.append(train["inputs"])
    for left, right in itertools.combinations(inputs, 2):
        assert (left != right).mean() > 0.1


def test_evaluations_mask_alike_in_batches_of_any_size(bert):
    """What fills up a batch has weights of 0."""
    parts, whole = (
        jax.tree.map(
            lambda *leaves: np.concatenate(leaves),
            *bert._eval_batches("validation", "", size),
        )
        for size in (4, 16)
    )
    count = bert.num_validation_examples
    np.testing.assert_array_equal(parts["inputs"][:count], whole["inputs"][:count])
    assert whole["weights"][:count].any(axis=1).all()
    assert not whole["weights"][count:].any()


def test_metrics_by_hand(bert, monkeypatch):
    """Three places count; two of them are right, and one beyond the weights would be."""
    logits = jnp.log(jnp.asarray([[[3.0, 1.0], [1.0, 3.0]], [[1.0, 1.0 / 3], [3.0, 1.0]]]))
    targets = jnp.asarray([[0, 1], [1, 0]])
    monkeypatch.setattr(bert, "_eval_logits", lambda *_: logits)
    batch = {"targets": targets, "weights": jnp.asarray([[1.0, 1.0], [1.0, 0.0]])}
    sums, _ = bert._evaluated(None, None, batch)
    totals = {name: float(value) for name, value in sums.items()}
    metrics = bert._metrics(totals, [], "")
    assert metrics["accuracy"] == pytest.approx(2 / 3)
    assert metrics["loss"] == pytest.approx((2 * np.log(4 / 3) + np.log(4)) / 3, rel=1e-6)


def test_logits_are_of_the_masked_places_and_see_both_sides(bert, tokens):
    params, _ = bert.init_model_fn(jax.random.key(0))
    batch = bert.example_batch(4)
    assert (
        batch["positions"].shape == batch["targets"].shape == (4, language_models.num_positions(60))
    )

    @jax.jit
    def logits(inputs):
        given = {**batch, "inputs": inputs}
        return bert.model_fn(params, given, None, None, jax.random.key(0), False)[0]

    before = logits(batch["inputs"])
    assert before.shape == (4, 9, 1024)
    after = logits(batch["inputs"].at[:, 59].add(-1))
    assert (np.abs(before - after).max(-1) > 1e-7).all()
