"""Batches and evaluations of every kind of workload, and the loss in chunks of tokens."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.workloads import parameters, small_speech, small_text
from workloads import registry
from workloads.base import spec
from workloads.base.errors import DataError
from workloads.images import digits
from workloads.text import chunked_loss, language_models
from workloads.text.text_specs import TransformerSize

METRICS = {
    "digits_vit": {"accuracy", "loss"},
    "pydoc_lm": {"loss", "perplexity"},
    "pydoc_bert": {"accuracy", "loss"},
    "pydoc_finewebedu": {"loss", "ppl"},
    "spoken_digits_conformer": {"wer", "ctc_loss", "loss"},
}


@pytest.fixture(scope="module", params=METRICS)
def name(request):
    return request.param


@pytest.fixture(scope="module")
def workload_and_data(name, made_once, tmp_path_factory):
    if name == "digits_vit":
        return registry.make(name), str(made_once("digits", digits.DIGITS.prepare))
    if name == "spoken_digits_conformer":
        return small_speech.make(), small_speech.write(tmp_path_factory.mktemp("speech"))
    return small_text.make(name), "in memory"


@pytest.fixture
def workload(workload_and_data):
    return workload_and_data[0]


@pytest.fixture
def data_dir(workload_and_data):
    return workload_and_data[1]


def _train_batches(workload, data_dir, seed, count, **start):
    queue = workload._build_input_queue(seed, "train", data_dir, 4, **start)
    return [next(queue) for _ in range(count)]


def test_batches_are_a_function_of_seed_and_step(workload, data_dir):
    batches = _train_batches(workload, data_dir, 5, 3)
    later = _train_batches(workload, data_dir, 5, 1, start_step=2)
    jax.tree.map(np.testing.assert_array_equal, later, batches[2:])
    (another,) = _train_batches(workload, data_dir, jax.random.key(6), 1)
    differ = jax.tree.map(lambda a, b: bool((a != b).any()), another, batches[0])
    assert any(jax.tree.leaves(differ))


@pytest.mark.parametrize("split", ["train", "validation"])
@pytest.mark.parametrize("wrong", ["beyond", -1, 2**32 + 5])
def test_ids_that_the_model_does_not_have_are_refused(
    workload, data_dir, split, wrong, monkeypatch
):
    """Before 64 bits become 32: 2^32 + 5 is not 5."""
    ((entry, limit),) = workload.id_limits.items()
    wrong = limit if wrong == "beyond" else wrong
    kind = "train_transform" if split == "train" else "eval_transform"
    plain = getattr(workload, kind)

    def transform(record, generator):
        example = plain(record, generator)
        return {**example, entry: np.full(np.shape(example[entry]), wrong, np.int64)}

    monkeypatch.setattr(workload, kind, transform)
    with pytest.raises(DataError, match=rf"example \d+ has {wrong} among its {entry}.*{limit - 1}"):
        next(workload._build_input_queue(0, split, data_dir, 4))


def test_example_batches_have_the_shapes_of_training(workload, data_dir):
    """`compile` and `bench` train on them."""
    (batch,) = _train_batches(workload, data_dir, 0, 1)
    shapes, expected = (
        jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), batches)
        for batches in (workload.example_batch(4), batch)
    )
    assert shapes == expected


@pytest.mark.slow
def test_evaluations_count_every_example_once(name, workload, data_dir):
    """Batches that are filled up give the metrics of one whole batch; its loss is the mean."""
    # With a key of 0, BERT has no masked token of the test split right.
    key, count = jax.random.key(2), workload.num_validation_examples
    params, state = workload.init_model_fn(key)
    params = parameters.moved(params, 0.2)
    metrics = workload.eval_model(count, params, state, key, data_dir)
    whole = workload.answers
    in_parts = workload.eval_model(count * 2 // 3, params, state, key, data_dir)
    assert metrics == pytest.approx(in_parts, rel=1e-5)
    _check_answers(workload, metrics)
    np.testing.assert_allclose(workload.answers.values, whole.values, rtol=1e-5)
    np.testing.assert_array_equal(workload.answers.weights, whole.weights)
    splits = ("train", "validation", "test")[: 2 + (workload.num_test_examples > 0)]
    names = {f"{split}/{metric}" for split in splits for metric in METRICS[name]}
    assert set(metrics) == {*names, "validation/num_examples", "test/num_examples"}
    assert metrics["validation/num_examples"] == count
    (batch,) = workload._build_input_queue(0, "validation", data_dir, count)
    outputs, _ = workload.model_fn(params, batch, state, spec.ForwardPassMode.EVAL, key, False)
    losses = workload.loss_fn(batch["targets"], outputs, batch["weights"])
    mean = float(losses["summed"] / losses["n_valid_examples"])
    assert metrics["validation/loss"] == pytest.approx(mean, rel=1e-5)


def _check_answers(workload, metrics):
    """Each item of the reported split has one, and their mean is the split's metric."""
    split, metric, values, weights = workload.answers
    assert split == ("test" if workload.num_test_examples else "validation")
    assert len(values) == len(weights) == metrics[f"{split}/num_examples"]
    assert len(set(values.tolist())) > 1
    assert values.sum() / weights.sum() == pytest.approx(metrics[f"{split}/{metric}"], rel=1e-5)


# 48 tokens of a batch, 61 words: neither is any other size here.
SIZE = TransformerSize(1, 16, 24, 2, 4, vocabulary=61, context=12)
WEIGHTS = np.asarray([1.0, 0.0, 0.5, 1.0], np.float32)


def _batch(workload):
    batch = workload.example_batch(4)
    weights = batch.get("weights", np.ones((4, 1), np.float32))
    return {**batch, "weights": weights * WEIGHTS[:, None] if "positions" in batch else WEIGHTS}


def _loss(workload, params, batch):
    losses, _ = workload.train_loss(
        params, batch, None, jax.random.key(1), jnp.float32(0.2), jnp.float32(0.1)
    )
    return losses["summed"], losses["n_valid_examples"]


@pytest.mark.parametrize(
    ("name", "dtype", "most"),
    # 5 and 7 fill up the last chunk; 100 are more than there are.
    [
        ("pydoc_lm", "float32", 5),
        ("pydoc_lm", "bfloat16", 100),
        ("pydoc_bert", "float32", 3),
    ],
)
def test_value_and_gradients_are_those_of_the_whole(name, dtype, most):
    """With dropout, label smoothing and weights; the embedding is shared by input and output."""
    results = {}
    for tokens in (0, most):
        workload = small_text.make(name, size=SIZE, compute_dtype=dtype, loss_chunk_tokens=tokens)
        params, _ = workload.init_model_fn(jax.random.key(0))
        batch = _batch(workload)
        step = jax.value_and_grad(lambda p, w=workload, b=batch: _loss(w, p, b), has_aux=True)
        results[tokens] = jax.jit(step)(params)
        sums, _ = workload._eval_step(params, None, batch)
        results[tokens] = (*results[tokens], sums)
    (whole, count), gradients, sums = results[0]
    (chunked, same), by_chunks, summed = results[most]
    narrow = dtype == "bfloat16"
    assert float(count) == float(same)
    np.testing.assert_allclose(chunked, whole, rtol=1e-3 if narrow else 1e-6)
    for one, other in zip(jax.tree.leaves(gradients), jax.tree.leaves(by_chunks), strict=True):
        assert one.dtype == other.dtype
        error = np.linalg.norm(other - one) / np.linalg.norm(one)
        assert error < (1e-2 if narrow else 2e-6)
    assert (
        set(sums)
        == set(summed)
        == {"loss", "tokens"} | ({"correct"} if name == "pydoc_bert" else set())
    )
    for metric, value in sums.items():
        np.testing.assert_allclose(summed[metric], value, rtol=1e-6, err_msg=metric)


def test_the_embeddings_gradient_is_summed_in_float32():
    """4096 tokens of one word add 2^-12 each: in bfloat16 the sum would stop growing."""
    hidden = jnp.ones((4, 1024, 1), jnp.bfloat16)
    labels = jnp.zeros((4, 1024), int)
    weights = jnp.full((4, 1024), 2**-12, jnp.float32)
    mesh = registry.make("pydoc_lm").devices.mesh
    slope = jax.grad(lambda e: chunked_loss.summed(mesh, 256, hidden, e, labels, weights, 0.0))
    # Softmax of two equal words is a half, and all weights are together 1.
    np.testing.assert_allclose(slope(jnp.zeros((2, 1))), [[-0.5], [0.5]], rtol=1e-6)


def test_correct_is_argmaxs():
    """Also of equal logits, of which the first counts."""
    draw = np.random.default_rng(0).integers
    hidden, embedding = (jnp.asarray(draw(-1, 2, shape), float) for shape in ((2, 9, 3), (7, 3)))
    labels, weights = jnp.asarray(draw(0, 7, (2, 9))), jnp.asarray(draw(1, 9, (2, 9)), float)
    mesh = registry.make("pydoc_lm").devices.mesh
    sums, of_sequences = chunked_loss.sums(mesh, 4, True, hidden, embedding, labels, weights)
    right = language_models.correct(labels, hidden @ embedding.T, weights)
    np.testing.assert_array_equal(of_sequences, right.sum(axis=-1))
    expected = right.sum()
    assert 0 < float(sums["correct"]) < float(weights.sum())
    np.testing.assert_allclose(sums["correct"], expected, rtol=1e-6)


def _largest_logits(function, *arguments):
    """Returns the most tokens that an array over all words has in a program."""
    text = str(jax.make_jaxpr(function)(*arguments))
    shapes = re.findall(r"\w\d+\[([\d,]*),61\]", text)
    return max(int(np.prod([int(size) for size in shape.split(",")])) for shape in shapes)


def test_logits_of_all_tokens_never_exist():
    for most, expected in ((0, 48), (12, 12)):
        workload = small_text.make(size=SIZE, loss_chunk_tokens=most)
        params, _ = workload.init_model_fn(jax.random.key(0))
        batch = _batch(workload)
        train = jax.grad(lambda p, w=workload, b=batch: _loss(w, p, b)[0])
        assert _largest_logits(train, params) == expected
        assert _largest_logits(workload._evaluated, params, None, batch) == expected
