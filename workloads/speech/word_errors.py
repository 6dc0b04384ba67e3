"""Word error rate over a corpus: word errors by words spoken.

Words are what whitespace separates, upper and lower case are different, and a reference without
words counts as one word (algoperf/workloads/librispeech_conformer/metrics.py). AlgoPerf's own
figure is lower: it compares str(tokenizer.detokenize(...)), the printed form of a TensorFlow
tensor, "tf.Tensor(b'...', shape=(), dtype=string)", which adds two words per utterance that are
always right, and makes a word inserted or left out at an end two errors (measured:
docs/algoperf_parity.md). At LibriSpeech's 18 words that is a tenth; the paper's WER, measured by
AlgoPerf's code, would share it.
"""

from collections.abc import Sequence

import jiwer


def count(references: Sequence[str], hypotheses: Sequence[str]) -> tuple[int, int]:
    """Returns word errors (substitutions + deletions + insertions) and words of the references.

    Raises ValueError where there are not as many of the one as of the other.
    """
    if len(references) != len(hypotheses):
        raise ValueError(f"{len(references)} references, {len(hypotheses)} hypotheses")
    if not references:
        return 0, 0
    found = jiwer.process_words(list(references), list(hypotheses))
    words = sum(max(len(reference.split()), 1) for reference in references)
    return found.substitutions + found.deletions + found.insertions, words


def rate(references: Sequence[str], hypotheses: Sequence[str]) -> float:
    """Returns errors per word over all pairs together; above 1 where much is inserted.

    Raises ValueError for no references, or as `count`.
    """
    errors, words = count(references, hypotheses)
    if not words:
        raise ValueError("no references: a word error rate needs at least one")
    return errors / words
