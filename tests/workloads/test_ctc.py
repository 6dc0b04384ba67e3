"""CTC: the loss by enumerating paths, greedy decoding against plain Python, word error rates."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workloads.speech import ctc

decode = jax.jit(ctc.greedy_decode)
losses_of = jax.jit(ctc.losses)


def _merged(path):
    return [symbol for symbol, _ in itertools.groupby(path) if symbol]


@settings(max_examples=100)
@given(st.lists(st.integers(0, 3), min_size=9, max_size=9), st.integers(0, 9))
def test_decoding_is_that_of_plain_python(path, valid):
    paddings = (jnp.arange(9) >= valid).astype(jnp.float32)[None]
    symbols, lengths = decode(5.0 * jax.nn.one_hot(jnp.asarray([path]), 4), paddings)
    expected = _merged(path[:valid])
    assert symbols[0, : lengths[0]].tolist() == expected
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
    assert ctc.word_errors(references, hypotheses) == (errors, words)
    if words:
        assert ctc.word_error_rate(references, hypotheses) == errors / words
    else:
        with pytest.raises(ValueError, match="no words"):
            ctc.word_error_rate(references, hypotheses)
