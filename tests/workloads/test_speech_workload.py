"""The speech workload on a directory of eight short utterances: batches, loss, metrics, a step."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.workloads import small_speech
from workloads.base import spec
from workloads.speech.conformer_layers import SpecAugMasks
from workloads.speech.corpora import speech_tokenizer


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
    example = workload.example_batch(2)
    assert jax.tree.map(jnp.shape, example["inputs"]) == jax.tree.map(jnp.shape, batch["inputs"])
    assert int(example["targets"][0].min()) >= 1


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


@pytest.mark.slow
def test_metrics_count_every_example_once(workload, data_dir, state):
    """Three examples in batches of two, the fourth a filling: the sums over single examples."""
    params, model_state = state
    metrics = workload.eval_model(2, params, model_state, jax.random.key(0), data_dir)
    names = ("wer", "ctc_loss", "loss")
    assert {f"{split}/{name}" for split in ("train", "validation", "test") for name in names} | {
        "validation/num_examples", "test/num_examples",
    } == set(metrics)  # fmt: skip
    assert metrics["validation/loss"] == metrics["validation/ctc_loss"]
    summed, count = 0.0, 0
    for number, batch in enumerate(workload._build_input_queue(0, "validation", data_dir, 2)):
        outputs, _ = workload.model_fn(
            params, batch, model_state, spec.ForwardPassMode.EVAL, jax.random.key(0), False
        )
        losses = workload.loss_fn(batch["targets"], outputs)["per_example"]
        valid = 2 - number
        summed += float(losses[:valid].sum())
        count += int((1 - batch["targets"][1][:valid]).sum())
    assert metrics["validation/loss"] == pytest.approx(summed / count, rel=1e-5)


def test_word_error_rate_of_known_answers(workload, data_dir, state, monkeypatch):
    """Heard: BA for AB BA, BA for BA, AB and a filling's nonsense: 1 error in 4 words."""
    tokenizer = speech_tokenizer.load(data_dir, small_speech.VOCABULARY, "prepare")
    heard = [speech_tokenizer.encode(tokenizer, text) for text in ("BA", "BA", "AB", "BB BB")]
    symbols = np.zeros((2, 2, 10), np.int32)
    for number, ids in enumerate(heard):
        symbols[number // 2, number % 2, : len(ids)] = ids
    lengths = np.array([len(ids) for ids in heard]).reshape(2, 2)
    answers = iter(zip(symbols, lengths, strict=True))

    def step(params, model_state, batch):
        heard, length = next(answers)
        targets = {name: batch[name] for name in ("targets", "targets_length", "weights")}
        return {"loss": 3.0, "targets": 2.0}, {"symbols": heard, "lengths": length, **targets}

    monkeypatch.setattr(workload, "_eval_step", step)
    metrics = workload._eval_model_on_split("test", 3, 2, *state, jax.random.key(0), data_dir)
    assert metrics == {"wer": 0.25, "ctc_loss": 1.5, "loss": 1.5}


@pytest.mark.slow
def test_training_steps_learn_and_move_the_averages(data_dir):
    """Gradient steps on one batch, with SpecAugment, LASER and a traced dropout rate."""
    workload = small_speech.make("laser", SpecAugMasks(time_masks=1, frequency_masks=1))
    params, state = workload.init_model_fn(jax.random.key(0))
    batch = next(workload._build_input_queue(0, "train", data_dir, 4))

    @jax.jit
    def step(params, state, key, rate):
        def loss(params):
            outputs, new = workload.model_fn(
                params, batch, state, spec.ForwardPassMode.TRAIN, key, True, dropout_rate=rate
            )
            losses = workload.loss_fn(batch["targets"], outputs)
            return losses["summed"] / losses["n_valid_examples"], new

        (value, new), gradients = jax.value_and_grad(loss, has_aux=True)(params)
        return jax.tree.map(lambda p, g: p - 0.02 * jnp.sign(g), params, gradients), new, value

    values, before = [], state
    for number in range(12):
        params, state, value = step(params, state, jax.random.key(number), 0.1)
        values.append(float(value))
    assert values[-1] < 0.7 * values[0]
    moved = jax.tree.map(lambda a, b: bool((a != b).any()), state, before)
    assert all(jax.tree.leaves(moved))
