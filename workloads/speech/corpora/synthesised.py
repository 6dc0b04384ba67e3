"""A corpus of synthesised speech, embedded: texts, voices and noise.

Noise and every choice come from RandomState, whose streams are frozen (NEP 19), in integer
arithmetic; only espeak-ng and the filter behind it may round differently on another machine.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from workloads.speech.corpora import espeak, speakers
from workloads.speech.corpora.speech_corpus import SPLITS, Corpus, Utterance
from workloads.storage import preparation


@dataclass(frozen=True, kw_only=True)
class Synthesised(Corpus):
    """An embedded corpus.

    texts(role): one text per utterance, upper case; rates: words a minute, from and to.
    """

    texts: Callable[[str], list[str]]
    rates: tuple[int, int]
    seed: int

    def prepare(self, data_dir: str | os.PathLike[str]) -> Path:
        """Write the corpus below `data_dir` unless it is there and whole; returns `data_dir`.

        Two preparations at once wait for each other. Raises DataError where the directory holds
        other speech.
        """
        return preparation.prepare_once(data_dir, self.check, self._write)

    def _write(self, data_dir: Path) -> None:
        self.claim(data_dir)
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
        self.write(data_dir, utterances, f"espeak-ng {version}")
