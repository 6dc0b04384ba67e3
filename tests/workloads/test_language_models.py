"""Language models as workloads, and FineWeb-Edu: batches, masks, loss, metrics, data, refusals."""

import dataclasses
import hashlib
import itertools
import json
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pyarrow as pa
import pytest

from attention import registry as variants
from sweeps.study import jax_calls
from tests.workloads import parameters, small_text
from tests.workloads.conftest import few_sources, write_token_records
from tests.workloads.small_directories import write_arrow_tokens as write_tokens
from workloads import registry
from workloads.base import sources, spec
from workloads.base.errors import DataError
from workloads.storage import arrow_tokens, tokenizer
from workloads.storage.arrow_tokens import ArrowTokens
from workloads.text import finewebedu_workload, language_models
from workloads.text.corpora import fineweb_data, pydoc_text
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
    def metrics(loss):
        return workload._metrics({"loss": loss, "tokens": 8.0}, None, None)

    assert metrics(16.0) == {"loss": 2.0, "perplexity": pytest.approx(np.exp(2.0))}
    assert metrics(8000.0)["perplexity"] == np.inf
    assert np.isnan(metrics(np.nan)["perplexity"])


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
    sums, items = bert._evaluated(None, None, batch)
    np.testing.assert_array_equal(items["values"], [2, 0])
    np.testing.assert_array_equal(items["weights"], [2, 1])
    metrics = bert._metrics({name: float(value) for name, value in sums.items()}, None, None)
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


NAME = "pydoc_finewebedu"
TINY = TransformerSize(2, 8, 12, 2, 4, vocabulary=11, context=6)


def test_initial_values():
    """sd 0.02, projections onto the residual 0.02/√(2·layers); log2(64² − 64) of the queries."""
    params, _ = registry.make(NAME).init_model_fn(jax.random.key(0))
    block = params["blocks_0"]
    assert float(block["CausalAttn_0"]["attn_scale"]) == pytest.approx(np.log2(64**2 - 64))
    assert block["Mlp_0"]["Dense_0"]["kernel"].std() == pytest.approx(0.02, rel=0.05)
    assert block["Mlp_0"]["Dense_1"]["kernel"].std() == pytest.approx(0.01, rel=0.05)
    assert block["CausalAttn_0"]["attn_out_proj"]["kernel"].std() == pytest.approx(0.01, rel=0.05)
    assert params["embed"]["embedding"].std() == pytest.approx(0.02, rel=0.05)
    narrow = registry.make("finewebedu_lm", compute_dtype="bfloat16")
    shapes, _ = jax.eval_shape(narrow.init_model_fn, jax.random.key(0))
    assert {leaf.dtype for leaf in jax.tree.leaves(shapes)} == {jnp.dtype("float32")}


TOKENS = jnp.asarray([[3, 1, 4, 1, 5, 9]])


def _params(model):
    """Drawn parameters, whose queries have about the length that they begin with."""
    shapes = jax.eval_shape(model.init, jax.random.key(0), TOKENS)["params"]
    return jax.tree.map(
        lambda leaf: leaf if leaf.shape else leaf + 12, parameters.drawn(shapes, 0.5)
    )


def test_logits_are_those_of_plain_numpy():
    """Of three places and five words, as the model written out in NumPy and float64 gave them;
    tests/algoperf/parity asks AlgoPerf's own model."""
    model = finewebedu_workload.Decoder(TINY)
    params = _params(model)
    logits = jax.jit(model.apply)({"params": params}, TOKENS)
    expected = [
        [0.04282, -0.13062, 0.17927, 0.01275, 0.18781],
        [-0.09507, -0.12716, -0.0876, -0.04353, -0.26478],
        [-0.15848, -0.33851, 0.37721, -0.08025, -0.29971],
    ]
    np.testing.assert_allclose(logits[0, jnp.asarray([0, 3, 5]), :5], expected, atol=2e-5)
    some = jax.jit(model.apply)({"params": params}, TOKENS, at=jnp.asarray([[2]]))
    np.testing.assert_allclose(some[0, 0], logits[0, 2], atol=1e-6)


@pytest.mark.parametrize("name", ["laser+fox", "laser+value_residual"])
def test_the_future_does_not_reach_the_past(name):
    model, tokens = finewebedu_workload.Decoder(TINY, variants.get(name)), TOKENS
    params = _params(model)
    apply = jax.jit(model.apply)
    before = apply({"params": params}, tokens)
    after = apply({"params": params}, tokens.at[0, 4:].set(7))
    np.testing.assert_allclose(after[0, :4], before[0, :4], atol=1e-5)
    assert np.abs(after[0, 4:] - before[0, 4:]).max() > 1e-3


def test_batches_and_metrics():
    """Targets are the inputs' next tokens; scores are the same at any batch size; no test split."""
    workload, key = small_text.make(NAME, "laser"), jax.random.key(0)
    params, state = workload.init_model_fn(key)
    batch = next(workload._build_input_queue(jax.random.key(1), "train", "", 4))
    assert batch["inputs"].shape == batch["targets"].shape == (4, 16)
    np.testing.assert_array_equal(batch["inputs"][:, 1:], batch["targets"][:, :-1])
    losses, _ = workload.train_loss(params, batch, None, key, 0.0, 0.1)
    logits, _ = workload.model_fn(params, batch, None, spec.ForwardPassMode.TRAIN, key, False)
    expected = workload.loss_fn(batch["targets"], logits, None, 0.1)["summed"]
    assert float(losses["summed"]) == pytest.approx(float(expected), rel=1e-5)
    in_chunks, _ = small_text.make(NAME, "laser", loss_chunk_tokens=48).train_loss(
        params, batch, None, key, 0.0, 0.1
    )
    assert float(in_chunks["summed"]) == pytest.approx(float(expected), rel=1e-5)
    small, large = (workload.eval_model(size, params, state, key, "") for size in (4, 14))
    assert small == pytest.approx(large, rel=1e-5)
    assert small["validation/ppl"] == pytest.approx(np.exp(small["validation/loss"]))
    # Near a uniform guess at the start.
    assert small["validation/loss"] == pytest.approx(np.log(64), abs=0.1)
    assert (small["validation/num_examples"], small["test/num_examples"]) == (14, 0)
    assert not [name for name in small if name.startswith("test/") and "num" not in name]
    assert not workload.has_reached_test_target(small)
    assert not workload.has_reached_validation_target(small)


def test_a_study_of_the_full_size_finds_its_data(tmp_path):
    """Whole data have lines and no reference rows; a mended file is read anew."""
    for folder in ("train", "val"):
        write_tokens(tmp_path / folder, [1, 2, 3] * 1000)
    with pytest.raises(DataError, match="AlgoPerf prepares the data"):
        fineweb_data.prepare(tmp_path, "elsewhere")
    found = jax_calls.data("finewebedu_lm", str(tmp_path))
    assert found["lines"] == ["train: 2 sequences", "validation: 2 sequences"]
    assert found["reference"] is None
    write_tokens(tmp_path / "train", [4, 5, 6] * 2000)
    tokens = fineweb_data.open_split(tmp_path, "train")
    assert (len(tokens), tokens[0]["tokens"][0]) == (5, 4)
    changed = jax_calls.data("finewebedu_lm", str(tmp_path))
    moved = tmp_path.with_name("moved")
    tmp_path.rename(moved)
    again = jax_calls.data("finewebedu_lm", str(moved))
    tmp_path.mkdir()
    assert len(found["digest"]) == 64
    assert found["digest"] != changed["digest"] == again["digest"]


def test_small_data_are_whole_and_made_once(tmp_path, monkeypatch):
    few_sources(monkeypatch)
    sizes = {"train": 1300, "validation": 150}
    data = dataclasses.replace(pydoc_text.PYDOC_FINEWEBEDU, sizes=sizes)
    data.prepare(tmp_path)
    records = data.records(tmp_path)
    assert {split: rows.shape for split, rows in records.items()} == {
        "train": (1300, 65),
        "validation": (150, 65),
    }
    assert [line.split(":")[0] for line in data.check(tmp_path)][1:3] == ["train", "validation"]
    state = tmp_path / "train" / arrow_tokens.STATE_FILE
    before = state.stat().st_mtime_ns
    data.prepare(tmp_path)
    assert state.stat().st_mtime_ns == before
    reference = data.read_reference(tmp_path)
    # What trials are identified by.
    content = b"".join(
        split.encode() + rows.astype("<i4").tobytes() for split, rows in records.items()
    )
    assert hashlib.sha256(content).hexdigest() == reference.sha256
    rows = reference.rows
    assert rows[0]["constant"]
    assert rows[1]["validation/ppl"] < rows[0]["validation/ppl"]


def test_sequences_are_cut_from_the_stream_of_all_documents(tmp_path):
    """Documents of 3, 0, 4 and 5 tokens in three files: sequences of 5 across them, 2 dropped."""
    documents = [[1, 2, 3], [], [4, 5, 6, 7], [8, 9, 1, 2, 3]]
    schema = pa.schema([("id", pa.string()), ("input_ids", pa.large_list(pa.int64()))])
    names = []
    for number, part in enumerate((documents[:2], documents[2:3], documents[3:])):
        names.append({"filename": f"data-{number:05d}-of-00003.arrow"})
        with pa.ipc.new_stream(str(tmp_path / names[-1]["filename"]), schema) as stream:
            columns = [pa.array(["x"] * len(part)), pa.array(part, schema.field("input_ids").type)]
            stream.write_batch(pa.record_batch(columns, schema=schema))
    (tmp_path / "state.json").write_text(json.dumps({"_data_files": names}))
    tokens = pickle.loads(pickle.dumps(ArrowTokens(tmp_path, 5, 10, "again")))
    assert len(tokens) == 2
    assert [tokens[n]["tokens"].tolist() for n in (0, 1)] == [[1, 2, 3, 4, 5], [6, 7, 8, 9, 1]]
    assert tokens[0]["tokens"].dtype == np.int32
    with pytest.raises(IndexError, match="sequence 2 asked, there are 2"):
        tokens[2]
