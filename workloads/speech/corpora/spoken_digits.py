"""The embedded stand-in for LibriSpeech: strings of two to four digits, spoken by espeak-ng.

1600 utterances to train, 200 to validate, 200 to test, 0.75 s on average. The three roles share
neither voices (timbres, `speech_voices`) nor strings: of the strings of each length, one
permutation gives 80 % to train, 10 % to validation, 10 % to test. Two-digit strings, of which
there are only 100, are a tenth of the utterances; the others are three- and four-digit strings, in
equal parts. Strings are repeated only where a role has fewer than it needs.
"""

import itertools
import os
from pathlib import Path
from typing import Any

import numpy as np

from workloads.speech.corpora import speech_corpus, speech_corpus_writer

SPLITS = speech_corpus.SPLITS
SIZES = {"train": 1600, "validation": 200, "test": 200}
MAX_AUDIO = 22_400  # 1.4 s; the longest has 21,092 samples
MAX_TARGETS = 8  # a word is one piece, so there are at most four and the end
VOCAB_SIZE = 29  # three control pieces, 15 letters, the word mark, the ten words
NOTE = (
    "Synthesised speech (espeak-ng), a stand-in: strings of two to four digits. Word error rates "
    "on it say nothing about LibriSpeech."
)
ESPEAK_VERSION = "1.52.0"
# Of audio, targets and pieces; espeak-ng's floating point may differ on another CPU.
CONTENT_SHA256 = "05dcd4b18e63e64312ecb9f822d9fa7ce988c212c3f5fa08e272aaba4941f27f"
WORDS = ["ZERO", "ONE", "TWO", "THREE", "FOUR", "FIVE", "SIX", "SEVEN", "EIGHT", "NINE"]
_SHARES = {2: 0.1, 3: 0.45, 4: 0.45}
_ROLES = {"train": (0.0, 0.8), "validation": (0.8, 0.9), "test": (0.9, 1.0)}
_SEED = 0


def texts(role: str) -> list[str]:
    """What is said in a role, one string per utterance, in a mixed order."""
    chosen: list[str] = []
    for length, share in _SHARES.items():
        pool = strings(role, length)
        repeated = itertools.islice(itertools.cycle(pool), round(share * SIZES[role]))
        chosen.extend(repeated)
    order = np.random.RandomState([_SEED, list(SIZES).index(role)]).permutation(len(chosen))
    return [chosen[number] for number in order]


def strings(role: str, length: int) -> list[str]:
    """The strings of so many digits that belong to a role."""
    everything = [" ".join(words) for words in itertools.product(WORDS, repeat=length)]
    order = np.random.RandomState([_SEED, 10 + length]).permutation(len(everything))
    start, end = (round(part * len(everything)) for part in _ROLES[role])
    return [everything[number] for number in order[start:end]]


CORPUS = speech_corpus.Corpus(
    workload="spoken_digits_conformer",
    note=NOTE,
    texts=texts,
    sizes=SIZES,
    rates=(200, 301),
    max_audio=MAX_AUDIO,
    max_targets=MAX_TARGETS,
    vocab_size=VOCAB_SIZE,
    seed=_SEED,
    espeak_version=ESPEAK_VERSION,
    content_sha256=CONTENT_SHA256,
)


def prepare(data_dir: str | os.PathLike[str]) -> Path:
    """As `speech_corpus_writer.prepare`."""
    return speech_corpus_writer.prepare(CORPUS, data_dir)


def check(data_dir: str | os.PathLike[str]) -> list[str]:
    """As `speech_corpus.check`."""
    return speech_corpus.check(CORPUS, data_dir)


def read_reference(data_dir: str | os.PathLike[str]) -> dict[str, Any]:
    """As `speech_corpus.read_reference`: `note`, `rows` with `<role>/wer`, `sha256`."""
    return speech_corpus.read_reference(CORPUS, data_dir)
