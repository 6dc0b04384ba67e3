"""Corpora of synthesised speech, embedded: strings of digits, and five-word sentences.

Noise and every choice come from RandomState, whose streams are frozen (NEP 19), in integer
arithmetic; only espeak-ng and the filter behind it may round differently on another machine.

The small data set beside LibriSpeech, `DIGITS`: strings of two to four digits. 1600 utterances to
train, 200 to validate, 200 to test, 0.75 s on average. The three roles share neither voices
(timbres, `speakers`) nor strings: of the strings of each length, one permutation gives 80 % to
train, 10 % to validation, 10 % to test. Two-digit strings, of which there are only 100, are a tenth
of the utterances; the others are three- and four-digit strings, in equal parts. Strings are
repeated only where a role has fewer than it needs.

`SENTENCES`: a name, a verb, a number, an adjective and a noun, nine of each: 59,049 in all, as in
the matrix sentence tests of audiology. 2000 utterances to train, 200 to validate, 200 to test, 1.7
seconds on average; the roles share neither voices nor sentences, and no sentence comes twice.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from workloads.speech.corpora import espeak, speakers
from workloads.speech.corpora.speech_corpus import SPLITS, SpeechCorpus, Utterance

WORDS = ["ZERO", "ONE", "TWO", "THREE", "FOUR", "FIVE", "SIX", "SEVEN", "EIGHT", "NINE"]
GRAMMAR = (
    ("PETER", "KATHY", "LUCY", "ALAN", "RACHEL", "WILLIAM", "STEVEN", "NINA", "THOMAS"),
    ("GOT", "SEES", "BOUGHT", "GIVES", "SOLD", "PREFERS", "HAS", "KEPT", "WINS"),
    ("THREE", "NINE", "SEVEN", "EIGHT", "FOUR", "FIVE", "TWO", "TWELVE", "TWENTY"),
    ("LARGE", "SMALL", "OLD", "DARK", "THIN", "GREEN", "CHEAP", "PRETTY", "RED"),
    ("DESKS", "CHAIRS", "TABLES", "TOYS", "SPOONS", "WINDOWS", "SHIPS", "RINGS", "FLOWERS"),
)
_DIGITS_SIZES = {"train": 1600, "validation": 200, "test": 200}
_SENTENCES_SIZES = {"train": 2000, "validation": 200, "test": 200}
_SHARES = {2: 0.1, 3: 0.45, 4: 0.45}
_ROLES = {"train": (0.0, 0.8), "validation": (0.8, 0.9), "test": (0.9, 1.0)}
_DIGITS_SEED, _SENTENCES_SEED = 0, 1


def digits(role: str) -> list[str]:
    """What is said in a role, one string per utterance, in a mixed order."""
    chosen: list[str] = []
    for length, share in _SHARES.items():
        pool = digit_strings(role, length)
        repeated = itertools.islice(itertools.cycle(pool), round(share * _DIGITS_SIZES[role]))
        chosen.extend(repeated)
    order = np.random.RandomState([_DIGITS_SEED, list(_DIGITS_SIZES).index(role)]).permutation(
        len(chosen)
    )
    return [chosen[number] for number in order]


def digit_strings(role: str, length: int) -> list[str]:
    """The strings of so many digits that belong to a role."""
    everything = [" ".join(words) for words in itertools.product(WORDS, repeat=length)]
    order = np.random.RandomState([_DIGITS_SEED, 10 + length]).permutation(len(everything))
    start, end = (round(part * len(everything)) for part in _ROLES[role])
    return [everything[number] for number in order[start:end]]


def sentences(role: str) -> list[str]:
    """What is said in a role, one sentence per utterance."""
    everything = [" ".join(words) for words in itertools.product(*GRAMMAR)]
    order = np.random.RandomState(_SENTENCES_SEED).permutation(len(everything))
    ends = np.cumsum(list(_SENTENCES_SIZES.values()))
    parts = dict(zip(_SENTENCES_SIZES, np.split(order, ends)[:-1], strict=True))
    return [everything[number] for number in parts[role]]


@dataclass(frozen=True, kw_only=True)
class Synthesised(SpeechCorpus):
    """An embedded corpus.

    texts(role): one text per utterance, upper case; rates: words a minute, from and to.
    """

    texts: Callable[[str], list[str]]
    rates: tuple[int, int]
    seed: int

    def _write(self, data_dir: Path, content: Any) -> dict[str, Any]:
        lines = [
            line
            for number, role in enumerate(SPLITS)
            for line in speakers.lines(
                role,
                self.texts(role),
                speakers.voices(role),
                self.rates,
                # A stream of its own for every role: one role's size changes no other's speech.
                np.random.RandomState([self.seed, number]),
            )
        ]
        version, speech = espeak.speak([line.utterance for line in lines])
        random = np.random.RandomState(self.seed)
        utterances = [
            Utterance(
                line.split,
                line.name,
                speakers.with_noise(samples, random),
                line.utterance.text.upper(),
            )
            for line, samples in zip(lines, speech, strict=True)
        ]
        return self.write(data_dir, utterances, f"espeak-ng {version}")


DIGITS = Synthesised(
    workload="spoken_digits_conformer",
    note="Synthesised speech (espeak-ng), a stand-in: strings of two to four digits. Word error "
    "rates on it say nothing about LibriSpeech.",
    texts=digits,
    sizes=_DIGITS_SIZES,
    rates=(200, 301),
    max_audio=22_400,  # 1.4 s; the longest has 21,092 samples
    max_targets=8,  # a word is one piece, so there are at most four and the end
    vocab_size=29,  # three control pieces, 15 letters, the word mark, the ten words
    seed=_DIGITS_SEED,
    made_by="espeak-ng 1.52.0",
    # Of audio, targets and pieces; espeak-ng's floating point may differ on another CPU.
    content_sha256="191e45fd202950c963127501c54728ddc4542a8abd4a6cf524ee84fd086fd0d8",
)
SENTENCES = Synthesised(
    workload="spoken_sentences_conformer",
    note="Synthesised speech (espeak-ng), a stand-in: five-word sentences of 45 words. Word error "
    "rates on it say nothing about LibriSpeech.",
    texts=sentences,
    sizes=_SENTENCES_SIZES,
    rates=(150, 211),
    max_audio=41_600,  # 2.6 s; the longest has 40,335 samples
    max_targets=32,  # the longest has 27
    vocab_size=64,
    seed=_SENTENCES_SEED,
    made_by="espeak-ng 1.52.0",
    content_sha256="2d095b6a246a3762b6f7251873ac1a20f612965157d4a3a19b1d0d3244e4beb2",
)
