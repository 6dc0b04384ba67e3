"""Masked language modelling: what is masked, when the same, and what is counted."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.workloads import small_text
from workloads.storage import tokenizer
from workloads.text import language_models
from workloads.text.text_specs import TransformerSize

TINY = TransformerSize(1, 8, 16, 2, 4, vocabulary=1024, context=60)


@pytest.fixture(scope="module")
def workload():
    return small_text.make("pydoc_bert", size=TINY)


@pytest.fixture(scope="module")
def tokens():
    """400 sequences of 60 tokens, a sixth of them special."""
    ids = np.random.default_rng(0).integers(4, 1024, (400, 60)).astype(np.int32)
    ids[:, ::6] = np.arange(10) % 4
    return ids


@pytest.fixture(scope="module")
def batch(workload, tokens):
    return jax.tree.map(np.asarray, workload._finished({"tokens": tokens}, jax.random.key(0), 0))


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


def test_evaluation_masks_belong_to_the_record(workload, tokens):
    """However records are cut into batches; and not those of any training step."""
    ones = np.ones(4, np.float32)
    first, second, shifted = (
        workload._finished({"tokens": tokens[i : i + 4], "weights": ones}, None, i)
        for i in (0, 4, 2)
    )
    for name in first:
        records = np.concatenate([first[name], second[name]])
        np.testing.assert_array_equal(shifted[name], records[2:6])
    inputs = [first["inputs"]]
    for seed, step in ((0, 0), (0, 1), (1, 0)):
        train = workload._finished({"tokens": tokens[:4]}, jax.random.key(seed), step)
        inputs.append(train["inputs"])
    for left, right in itertools.combinations(inputs, 2):
        assert (left != right).mean() > 0.1


def test_evaluations_mask_alike_in_batches_of_any_size(workload):
    """What fills up a batch has weights of 0."""
    parts, whole = (
        jax.tree.map(
            lambda *leaves: np.concatenate(leaves),
            *workload._eval_batches("validation", "", size),
        )
        for size in (4, 16)
    )
    count = workload.num_validation_examples
    np.testing.assert_array_equal(parts["inputs"][:count], whole["inputs"][:count])
    assert whole["weights"][:count].any(axis=1).all()
    assert not whole["weights"][count:].any()


def test_metrics_by_hand(workload, monkeypatch):
    """Three places count; two of them are right, and one beyond the weights would be."""
    logits = jnp.log(jnp.asarray([[[3.0, 1.0], [1.0, 3.0]], [[1.0, 1.0 / 3], [3.0, 1.0]]]))
    targets = jnp.asarray([[0, 1], [1, 0]])
    monkeypatch.setattr(workload, "_eval_logits", lambda *_: logits)
    batch = {"targets": targets, "weights": jnp.asarray([[1.0, 1.0], [1.0, 0.0]])}
    sums, _ = workload._evaluated(None, None, batch)
    totals = {name: float(value) for name, value in sums.items()}
    metrics = workload._metrics(totals, [], "")
    assert metrics["accuracy"] == pytest.approx(2 / 3)
    assert metrics["loss"] == pytest.approx((2 * np.log(4 / 3) + np.log(4)) / 3, rel=1e-6)


def test_logits_are_of_the_masked_places_and_see_both_sides(workload, tokens):
    params, _ = workload.init_model_fn(jax.random.key(0))
    batch = workload.example_batch(4)
    assert (
        batch["positions"].shape == batch["targets"].shape == (4, language_models.num_positions(60))
    )

    @jax.jit
    def logits(inputs):
        given = {**batch, "inputs": inputs}
        return workload.model_fn(params, given, None, None, jax.random.key(0), False)[0]

    before = logits(batch["inputs"])
    assert before.shape == (4, 9, 1024)
    after = logits(batch["inputs"].at[:, 59].add(-1))
    assert (np.abs(before - after).max(-1) > 1e-7).all()
