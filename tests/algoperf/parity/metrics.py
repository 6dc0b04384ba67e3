"""Parity of evaluation metrics on the same predictions: accuracy, decoding, word error rate.

AlgoPerf compares `str(tokenizer.detokenize(ids))` (librispeech_conformer/metrics.py), which is not
the text but the printed tensor, tf.Tensor(b'the text', shape=(), dtype=string). Measured here:
its numbers are our counter's, applied to printed tensors, exactly. So every utterance has two
words more, always right; and first and last word carry the print's marks, so that a word inserted
or left out at an end costs two errors, and one wrong apostrophe, which changes the quotes of the
print, up to two more.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import sentencepiece

from tests.algoperf.parity import workload_pairs
from tests.algoperf.parity.workload_pairs import CLOSE, Row, largest
from workloads.algoperf.installation import Installation
from workloads.speech import ctc
from workloads.speech.corpora import speech_tokenizer

# (reference, hypothesis): right, edits inside, edits at the ends, an apostrophe, nothing said.
INSIDE = (
    ("the cat sat on the mat", "the cat sat on the mat"),
    ("the cat sat on the mat", "the dog sat the big mat"),
    ("don't sit on the mat", "don't stand on mat"),
)
ENDS = (
    ("the cat sat on the mat", "cat sat on the mat"),
    ("the cat sat on the mat", "the cat sat on the"),
    ("the cat", "the cat sat"),
    ("the cat don't sit", "the cat dont sit"),
    ("the cat", ""),
    ("mat", "the mat"),
)


def printed(text: str) -> str:
    """Returns how TensorFlow prints a scalar tensor of a text: what AlgoPerf splits into words."""
    return f"tf.Tensor({text.encode()!r}, shape=(), dtype=string)"


def accuracy_rows(installation: Installation) -> Iterator[Row]:
    """Yields accuracy and loss, summed, of the same logits, with padding of weight 0."""
    pair = workload_pairs.make("imagenet_vit", installation)
    logits = jax.random.normal(jax.random.key(0), (64, 1000))
    best = jnp.argmax(logits, -1)
    targets = jnp.where(jnp.arange(64) % 3 == 0, best, (best + 1) % 1000)
    weights = (jnp.arange(64) < 50) * 1.0
    pair.ours.workload.model_fn = lambda *arguments, **settings: (logits, None)
    batch = {"targets": targets, "weights": weights}
    ours, _ = pair.ours.workload._evaluated(None, None, batch)
    theirs = pair.theirs.workload._compute_metrics(logits, targets, weights)
    for name in ("accuracy", "loss"):
        difference = largest(ours[name], theirs[name])
        yield Row("imagenet_vit", f"{name} of the same logits, 14 of 64 padded", difference, CLOSE)


def decoding_rows(installation: Installation) -> Iterator[Row]:
    """Yields greedy decoding of the same logits; the first example must not be silent."""
    theirs = workload_pairs.make("librispeech_conformer", installation).theirs.workload
    # Few symbols, so that repeats and blanks are frequent.
    logits = jax.random.normal(jax.random.key(1), (8, 40, 5))
    paddings = (jnp.arange(40) >= 5 * jnp.arange(1, 9)[:, None]) * 1.0
    symbols, _ = ctc.greedy_decode(logits, paddings)
    expected, _ = theirs.greedy_decode(logits, paddings)
    yield Row("librispeech_conformer", "greedy decoding", largest(symbols, expected), 0)
    silent = logits.at[0, :, 0].set(100.0)
    ours, their = (
        np.asarray(decode(silent, paddings)[0])
        for decode in (ctc.greedy_decode, theirs.greedy_decode)
    )
    remark = f"AlgoPerf hears symbol {their[0, 0]} in an empty first one: the second's first"
    differs = float(np.abs(ours - their).sum() - np.abs(ours[1, 0]))
    yield Row("librispeech_conformer", "greedy decoding, first all blank", abs(differs), 0, remark)


def wer_rows(installation: Installation) -> Iterator[Row]:
    """Yields words and errors by AlgoPerf's metric beside ours, on hand-made predictions."""
    metrics = installation.module("algoperf.workloads.librispeech_conformer.metrics")
    cases = INSIDE + ENDS
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / speech_tokenizer.FILE_NAME
        path.write_bytes(speech_tokenizer.train([word for pair in cases for word in pair], 24))
        theirs = [_algoperf(metrics, path, case) for case in cases]
    ours, shown = (
        np.transpose(
            ctc.word_errors([shape(one) for one, _ in cases], [shape(x) for _, x in cases])
        )
        for shape in (str, printed)
    )
    name, inside = "librispeech_conformer", len(INSIDE)
    errors, words = (np.asarray(theirs) - np.asarray(ours)).T
    yield Row(name, "WER: AlgoPerf's words less ours, less 2 per utterance", _most(words - 2), 0)
    yield Row(name, "WER: errors, first and last word right", _most(errors[:inside]), 0)
    extra = ", ".join(f"{value:+.0f}" for value in errors[inside:])
    quantity = "WER: AlgoPerf's errors and words, ours counted on printed tensors"
    remark = f"extra errors of the six cases at the ends: {extra}"
    yield Row(name, quantity, _most(np.asarray(theirs) - np.asarray(shown)), 0, remark)


def _most(values: Any) -> float:
    return float(np.abs(values).max())


def _algoperf(metrics: Any, path: Path, case: tuple[str, str]) -> tuple[float, float]:
    """Returns errors and words by AlgoPerf's own function, from ids as its evaluation has them."""
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(path))
    reference, hypothesis = (np.asarray([[*pieces.encode(text), 0]], np.int32) for text in case)
    arrays: list[np.ndarray] = []
    for ids in (hypothesis, reference):
        arrays += [ids, (ids == 0).astype(np.int32)]
    errors, words = metrics.compute_wer(*arrays, metrics.load_tokenizer(str(path)))
    return float(errors), float(words)
