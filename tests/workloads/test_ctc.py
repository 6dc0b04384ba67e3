"""CTC by enumeration, and the speech workload on eight short utterances."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.workloads import short_training, small_speech
from workloads.base.errors import DataError
from workloads.speech import ctc
from workloads.speech.conformer_layers import SpecAugMasks
from workloads.speech.corpora import speech_tokenizer

decode = jax.jit(ctc.greedy_decode)
losses_of = jax.jit(ctc.losses)


def _merged(path):
    return [symbol for symbol, _ in itertools.groupby(path) if symbol]


@settings(max_examples=100)
@given(st.lists(st.integers(0, 3), min_size=9, max_size=9), st.integers(0, 9))
def test_decoding_is_that_of_plain_python(path, valid):
    paddings = (jnp.arange(9) >= valid).astype(jnp.float32)[None]
    symbols, lengths = decode(5.0 * jax.nn.one_hot(jnp.asarray([path]), 4), paddings)
    assert symbols[0, : lengths[0]].tolist() == _merged(path[:valid])
    assert not symbols[0, lengths[0] :].any()


def test_loss_is_the_sum_over_paths():
    """All 3^4 paths of 4 frames; the second example has 3 frames and one target."""
    logits = jax.random.normal(jax.random.key(0), (2, 4, 3))
    probabilities = np.asarray(jax.nn.softmax(logits), np.float64)
    targets, frames = [[1, 2], [2]], [4, 3]
    expected = [
        sum(
            np.prod([probabilities[example, t, s] for t, s in enumerate(path)])
            for path in itertools.product(range(3), repeat=frames[example])
            if _merged(path) == targets[example]
        )
        for example in range(2)
    ]
    losses = losses_of(
        logits,
        jnp.asarray([[0.0] * 4, [0.0] * 3 + [1.0]]),
        jnp.asarray([[1, 2], [2, 0]]),
        jnp.asarray([[0.0, 0.0], [0.0, 1.0]]),
    )
    np.testing.assert_allclose(losses, -np.log(expected), rtol=1e-4)


def test_loss_of_filling_is_finite():
    filling = losses_of(
        jnp.zeros((2, 4, 3)), jnp.ones((2, 4)), jnp.zeros((2, 2), int), jnp.ones((2, 2))
    )
    assert np.isfinite(filling).all()


@pytest.mark.parametrize(
    ("references", "hypotheses", "errors", "words"),
    [
        # A substitution and an insertion; a deletion.
        (["ONE TWO THREE", "FOUR FIVE"], ["ONE SIX THREE TEN", "FIVE"], 3, 5),
        (["A  b "], ["a b"], 1, 2),
        (["ONE"], ["ONE TWO THREE"], 2, 1),
        # Errors are counted over the words that there are (jiwer 4).
        (["", "A B"], ["X", "A B"], 1, 2),
        ([""], [""], 0, 0),
        # A tab, a line break or another space is no blank; two of them are.
        (["a\tb"], ["a b"], 2, 1),
        (["a\nb c"], ["a\nb c"], 0, 2),
        (["a\u00a0b"], ["a\u00a0b"], 0, 1),
        (["a\t\tb"], ["a b"], 0, 2),
        ([], [], 0, 0),
    ],
)
def test_word_errors_by_hand(references, hypotheses, errors, words):
    pairs = ctc.word_errors(references, hypotheses)
    assert tuple(map(np.sum, pairs)) == (errors, words)
    if words:
        assert ctc.word_error_rate(*pairs) == errors / words
    else:
        with pytest.raises(ValueError, match="no words"):
            ctc.word_error_rate(*pairs)


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    return small_speech.write(tmp_path_factory.mktemp("speech"))


@pytest.fixture(scope="module")
def workload():
    return small_speech.make()


@pytest.fixture(scope="module")
def state(workload):
    return workload.init_model_fn(jax.random.key(0))


def test_batches_are_algoperfs(workload, data_dir):
    batch = next(workload._build_input_queue(0, "validation", data_dir, 2))
    (audio, audio_paddings), (targets, target_paddings) = batch["inputs"], batch["targets"]
    stored = np.load(f"{data_dir}/dev-clean/u1_audio.npy")
    np.testing.assert_array_equal(audio[1, :4640], stored.astype(np.float32))
    assert audio.dtype == audio_paddings.dtype == target_paddings.dtype == jnp.float32
    np.testing.assert_array_equal(audio_paddings[1], np.arange(4800) >= 4640)
    ids = np.load(f"{data_dir}/dev-clean/u0_targets.npy")
    np.testing.assert_array_equal(targets[0, : len(ids)], ids)
    np.testing.assert_array_equal(target_paddings[0], np.arange(10) >= len(ids))
    np.testing.assert_array_equal(batch["weights"], [1, 1])


def test_loss_counts_valid_targets_of_valid_examples(workload):
    """Uniform over 8 symbols in one frame: -ln(1/8) for one target, and for none (a blank)."""
    logits = (jnp.zeros((3, 1, 8)), jnp.zeros((3, 1)))
    targets = jnp.asarray([[3, 0], [0, 0], [5, 6]])
    labels = (targets, jnp.asarray([[0.0, 1.0], [1.0, 1.0], [0.0, 0.0]]))
    losses = workload.loss_fn(labels, logits, jnp.asarray([1.0, 1.0, 0.0]))
    np.testing.assert_allclose(losses["per_example"], [np.log(8), np.log(8), 0], rtol=1e-5)
    assert float(losses["summed"]) == pytest.approx(2 * np.log(8), rel=1e-5)
    assert float(losses["n_valid_examples"]) == 1
    assert float(workload.loss_fn(labels, logits)["n_valid_examples"]) == 3
    smoothed = workload.loss_fn(labels, logits, jnp.asarray([1.0, 1.0, 0.0]), 0.3)
    assert float(smoothed["summed"]) == float(losses["summed"])


def test_a_tokenizer_of_another_size_is_refused(data_dir):
    with pytest.raises(DataError, match=f"has {small_speech.VOCABULARY} pieces.*; 9999 pieces"):
        speech_tokenizer.load(data_dir, 9999, "prepare")


def test_word_error_rate_of_known_answers(workload, data_dir, state, monkeypatch):
    """Heard: BA for AB BA, BA for BA, AB and a filling's nonsense: 1 error in 4 words."""
    tokenizer = speech_tokenizer.load(data_dir, small_speech.VOCABULARY, "prepare")
    heard = [speech_tokenizer.encode(tokenizer, text) for text in ("BA", "BA", "AB", "BB BB")]
    symbols = np.zeros((2, 2, 10), np.int32)
    for number, ids in enumerate(heard):
        symbols[number // 2, number % 2, : len(ids)] = ids
    lengths = np.array([len(ids) for ids in heard]).reshape(2, 2)
    answers = iter(zip(symbols, lengths, strict=True))

    monkeypatch.setattr(workload, "_eval_logits", lambda *_: (None, None))
    monkeypatch.setattr(workload, "loss_fn", lambda *_: {"summed": 3.0})
    monkeypatch.setattr(ctc, "greedy_decode", lambda *_: next(answers))
    monkeypatch.setattr(workload, "_eval_step", workload._evaluated)
    metrics = workload._eval_model_on_split("test", 2, *state, jax.random.key(0), data_dir)
    ids = sum(len(speech_tokenizer.encode(tokenizer, text)) for text in ("AB BA", "BA", "AB"))
    loss = pytest.approx(2 * 3.0 / ids)
    assert metrics == {"wer": 0.25, "ctc_loss": loss, "loss": loss, "num_examples": 3}
    split, metric, errors, words = workload.answers
    assert (split, metric, errors.tolist(), words.tolist()) == ("test", "wer", [1, 0, 0], [2, 1, 1])


@pytest.mark.slow
def test_training_steps_learn_and_move_the_averages(data_dir):
    """Updates on one batch, with SpecAugment, LASER and a traced dropout rate."""
    workload = small_speech.make("laser", SpecAugMasks(time_masks=1, frequency_masks=1))
    _, before = workload.init_model_fn(jax.random.key(0))
    batch = next(workload._build_input_queue(0, "train", data_dir, 4))
    point = {"learning_rate": 0.02, "step_hint": 100.0}
    _, state, measured = short_training.train(workload, [batch] * 24, **point)
    assert measured[-1][0] < 0.6 * measured[0][0]
    moved = jax.tree.map(lambda a, b: bool((a != b).any()), state.model_state, before)
    assert all(jax.tree.leaves(moved))
