"""Reference rows for language models: token frequencies, and pairs of neighbours.

Both are fitted on the train records. The pair model is p(b | a) = (n(a, b) + λ p(b)) / (n(a) + λ),
with p(b) = (n(b) + 1) / (n + V) (MacKay & Peto 1995, eq. 3: a Dirichlet prior around the single
frequencies). Before the first token of a record stands the separator, as in a decoder's input.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from workloads.storage import tokenizer

# The weight of the prior, in tokens: the best of 10, 20, 50, 100, 200 on pydoc_text's validation.
PRIOR_WEIGHT = 100.0
UNIGRAM, BIGRAM = "most frequent token", "left neighbour (smoothed bigram)"


def rows(records: Mapping[str, np.ndarray], vocab_size: int) -> list[dict[str, Any]]:
    """Two rows with `<split>/loss` (nats per token) and `<split>/error` (fraction of tokens).

    `records` are integers `[N, L]` per split, `train` among them. Every position counts in the
    loss. An error is a token other than the most probable one (ties: the lowest id); it is counted
    over the ordinary tokens, each as likely to be masked as the next.
    """
    singles = _unigram(records["train"], vocab_size)
    pairs = _bigram(records["train"], singles)
    return [
        _row(UNIGRAM, np.broadcast_to(singles, pairs.shape), records),
        _row(BIGRAM, pairs, records),
    ]


def _unigram(train: np.ndarray, vocab_size: int) -> np.ndarray:
    """p(b), float64 `[V]`."""
    counts = np.bincount(train.ravel(), minlength=vocab_size) + 1.0
    return counts / counts.sum()


def _bigram(train: np.ndarray, singles: np.ndarray) -> np.ndarray:
    """p(b | a), float64 `[V, V]`, a first."""
    counts = np.zeros((len(singles), len(singles)))
    np.add.at(counts, (_left(train), train), 1.0)
    smoothed = counts + PRIOR_WEIGHT * singles
    return smoothed / (counts.sum(axis=1, keepdims=True) + PRIOR_WEIGHT)


def _left(tokens: np.ndarray) -> np.ndarray:
    """The token before each one."""
    return np.pad(tokens[:, :-1], ((0, 0), (1, 0)), constant_values=tokenizer.EOS)


def _row(name: str, probabilities: np.ndarray, records: Mapping[str, np.ndarray]) -> dict[str, Any]:
    best = probabilities.argmax(axis=1)
    row: dict[str, Any] = {"name": name}
    for split, tokens in records.items():
        left = _left(tokens)
        row[f"{split}/loss"] = float(-np.log(probabilities[left, tokens]).mean())
        wrong = best[left] != tokens
        row[f"{split}/error"] = float(wrong[tokens >= tokenizer.FIRST_ORDINARY].mean())
    return row
