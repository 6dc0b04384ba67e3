"""Five-word sentences spoken by espeak-ng: the sentence preset beside `spoken_digits`.

A sentence is a name, a verb, a number, an adjective and a noun, nine of each: 59,049 in all, as in
the matrix sentence tests of audiology. 2000 utterances to train, 200 to validate, 200 to test, 1.7
seconds on average; the roles share neither voices (`speech_voices`) nor sentences, and no sentence
comes twice.
"""

import itertools
import os
from pathlib import Path
from typing import Any

import numpy as np

from workloads.speech.corpora import speech_corpus, speech_corpus_writer

SPLITS = speech_corpus.SPLITS
SIZES = {"train": 2000, "validation": 200, "test": 200}
MAX_AUDIO = 41_600  # 2.6 s; the longest has 40,335 samples
MAX_TARGETS = 32  # the longest has 27
VOCAB_SIZE = 64
NOTE = (
    "Synthesised speech (espeak-ng), a stand-in: five-word sentences of 45 words. Word error rates "
    "on it say nothing about LibriSpeech."
)
ESPEAK_VERSION = "1.52.0"
# Of audio, targets and pieces; espeak-ng's floating point may differ on another CPU.
CONTENT_SHA256 = "833562218fcf201454b1c949c1e4e2b0191e6405a7f9afc204d0e0c0bffa4889"
GRAMMAR = (
    ("PETER", "KATHY", "LUCY", "ALAN", "RACHEL", "WILLIAM", "STEVEN", "NINA", "THOMAS"),
    ("GOT", "SEES", "BOUGHT", "GIVES", "SOLD", "PREFERS", "HAS", "KEPT", "WINS"),
    ("THREE", "NINE", "SEVEN", "EIGHT", "FOUR", "FIVE", "TWO", "TWELVE", "TWENTY"),
    ("LARGE", "SMALL", "OLD", "DARK", "THIN", "GREEN", "CHEAP", "PRETTY", "RED"),
    ("DESKS", "CHAIRS", "TABLES", "TOYS", "SPOONS", "WINDOWS", "SHIPS", "RINGS", "FLOWERS"),
)
_SEED = 1


def texts(role: str) -> list[str]:
    """What is said in a role, one sentence per utterance."""
    everything = [" ".join(words) for words in itertools.product(*GRAMMAR)]
    order = np.random.RandomState(_SEED).permutation(len(everything))
    ends = np.cumsum(list(SIZES.values()))
    parts = dict(zip(SIZES, np.split(order, ends)[:-1], strict=True))
    return [everything[number] for number in parts[role]]


CORPUS = speech_corpus.Corpus(
    workload="spoken_sentences_conformer",
    note=NOTE,
    texts=texts,
    sizes=SIZES,
    rates=(150, 211),
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
