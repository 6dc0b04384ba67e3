"""Connectionist temporal classification: loss per example, greedy decoding, word error rate.

Symbol 0 is the blank. Axes: B batch, T frames, U targets, V vocabulary.

Words are jiwer's: what blanks separate, where two whitespace characters or more are one blank and a
single tab or line break is none. Upper and lower case are different. A reference without words adds
no word, and each word of its hypothesis is an insertion. AlgoPerf's own figure
(algoperf/workloads/librispeech_conformer/metrics.py) is lower: it compares
str(tokenizer.detokenize(...)), the printed form of a TensorFlow tensor,
"tf.Tensor(b'...', shape=(), dtype=string)", which adds two words per utterance that are always
right, and makes a word inserted or left out at an end two errors (measured:
docs/algoperf_parity.md). At LibriSpeech's 18 words that is a tenth; the paper's WER, measured by
AlgoPerf's code, would share it.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import jiwer
import numpy as np
import optax

from workloads.speech.corpora.speech_tokenizer import BLANK


def losses(
    logits: jax.Array, logit_paddings: jax.Array, targets: jax.Array, target_paddings: jax.Array
) -> jax.Array:
    """Returns -log p(targets | logits) in nats per example, float32 [B].

    logits [B, T, V]; targets [B, U]; paddings are 1 beyond the end. An example whose targets do
    not fit into its frames has no path: optax gives it about 1e5 instead of infinity.
    """
    return optax.ctc_loss(
        jax.nn.log_softmax(logits.astype(jnp.float32)),
        logit_paddings.astype(jnp.float32),
        targets.astype(jnp.int32),
        target_paddings.astype(jnp.float32),
        blank_id=BLANK,
    )


def greedy_decode(logits: jax.Array, logit_paddings: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns the best symbol of every frame with repeats merged and blanks dropped.

    logits [B, T, V], logit_paddings [B, T], all padding at the end. The result is symbols int32
    [B, T], left-aligned and 0 beyond their lengths int32 [B].
    """
    best = jnp.argmax(logits, axis=-1).astype(jnp.int32)
    before = jnp.pad(best[:, :-1], ((0, 0), (1, 0)), constant_values=BLANK)
    kept = (best != before) & (best != BLANK) & (logit_paddings == 0)
    order = jnp.argsort(~kept, axis=-1, stable=True)
    lengths = jnp.sum(kept, axis=-1, dtype=jnp.int32)
    symbols = jnp.take_along_axis(best, order, axis=-1)
    return jnp.where(jnp.arange(best.shape[1]) < lengths[:, None], symbols, BLANK), lengths


def word_errors(
    references: Sequence[str], hypotheses: Sequence[str]
) -> tuple[np.ndarray, np.ndarray]:
    """Returns each pair's word errors (substitutions + deletions + insertions) and the words of its
    reference, both int [N].

    jiwer raises ValueError where there are not as many of the one as of the other.
    """
    alignment = jiwer.process_words(list(references), list(hypotheses))
    errors = [
        sum(
            max(part.ref_end_idx - part.ref_start_idx, part.hyp_end_idx - part.hyp_start_idx)
            for part in parts
            if part.type != "equal"
        )
        for parts in alignment.alignments
    ]
    words = [len(reference) for reference in alignment.references]
    return np.asarray(errors, int), np.asarray(words, int)


def word_error_rate(errors: np.ndarray, words: np.ndarray) -> float:
    """Returns errors per word over all pairs together; above 1 where much is inserted.

    Raises ValueError for references without a word.
    """
    if not words.any():
        raise ValueError("no words in the references: a word error rate needs at least one")
    return float(errors.sum() / words.sum())
