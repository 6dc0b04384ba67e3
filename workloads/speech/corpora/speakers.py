"""Who says which text in a synthesised corpus: which voices, how fast, in what noise.

A speaker is an accent with a variant (the timbre). The accents are shared; the variants of the
three roles differ, so validation and test are spoken by timbres that training never had. Variants
whose long-term spectra differ little (`aunty` and `f4`, `max` and `Alex`) play the same role. Left
out are those with noise seeded by the clock (CLOCK_SEEDED in their tests), the robots, and a few
others.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from workloads.speech.corpora import espeak

ACCENTS = (
    "en-us",
    "en-us-nyc",
    "en-029",
    "en-gb-scotland",
    "en-gb-x-rp",
    "en-gb-x-gbclan",
    "en-gb-x-gbcwmd",
)

# fmt: off
VARIANTS: dict[str, tuple[str, ...]] = {
    "train": (
        "Alex", "Andrea", "Andy", "Diogo", "Gene", "Henrique", "Mario", "Nguyen", "Tweaky", "adam",
        "anika", "announcer", "antonio", "aunty", "benjamin", "ed", "edward2", "f4", "fast",
        "grandpa", "gustave", "iven4", "john", "klatt3", "klatt4", "m1", "m4", "m5", "m6",
        "marcelo", "max", "michel", "miguel", "norbert", "paul", "pedro", "rob", "robert", "shelby",
        "steph", "steph2",
    ),
    "validation": (
        "Annie", "Denis", "Lee", "Mike", "belinda", "david", "kaukovalta", "m3", "m8", "travis",
    ),
    "test": (
        "Hugo", "Michael", "boris", "edward", "f1", "grandma", "linda", "m2", "m7", "quincy",
    ),
}
# fmt: on


def voices(role: str) -> list[str]:
    """The voices of a role (train, validation, test), every variant with every accent."""
    return [f"{accent}+{variant}" for variant in VARIANTS[role] for accent in ACCENTS]


def speaker_ids() -> dict[str, int]:
    """A number for every voice of every role, from 1 on, as LibriSpeech numbers its readers."""
    everyone = [voice for role in VARIANTS for voice in voices(role)]
    return {voice: number for number, voice in enumerate(everyone, 1)}


_CHAPTER = 1  # one for every speaker
_LEAD = 1600  # at most 0.1 s before the speech
_PITCHES = (30, 71)
# Speech is 10 to 30 dB above the white noise; gains in units of 2**-15.
_NOISE_GAINS = [round(2**15 * 10 ** (-decibels / 20)) for decibels in range(10, 31)]


@dataclass(frozen=True)
class Line:
    """An utterance of a speaker; number: from 0 on for every speaker."""

    split: str
    speaker: int
    number: int
    utterance: espeak.Prompt

    @property
    def name(self) -> str:
        """An id like LibriSpeech's, `<speaker>-<chapter>-<number>`."""
        return f"{self.speaker}-{_CHAPTER}-{self.number:04d}"


def lines(
    split: str,
    texts: Sequence[str],
    voices: Sequence[str],
    rates: tuple[int, int],
    random: np.random.RandomState,
) -> list[Line]:
    """Who says each text, and how fast and high; sorted by speaker and number.

    The voices take equal parts; `rates` are words a minute, from and to, without the last.
    """
    ids, counts = speaker_ids(), Counter[int]()
    chosen = [voices[i % len(voices)] for i in random.permutation(len(texts))]
    result = []
    for text, voice in zip(texts, chosen, strict=True):
        rate, pitch = random.randint(*rates), random.randint(*_PITCHES)
        utterance = espeak.Prompt(text.lower(), voice, rate, pitch)
        result.append(Line(split, ids[voice], counts[ids[voice]], utterance))
        counts[ids[voice]] += 1
    return sorted(result, key=lambda line: (line.speaker, line.number))


def with_noise(samples: np.ndarray, random: np.random.RandomState) -> np.ndarray:
    """Speech int16 `[N]` after up to 0.1 s of pause, in white noise 10 to 30 dB below it, int16.

    The noise is the sum of four uniform integers, close to a normal distribution, and exact.
    """
    lead = random.randint(0, _LEAD + 1)
    padded = np.concatenate([np.zeros(lead, np.int64), samples.astype(np.int64)])
    power = math.isqrt(int(np.square(samples, dtype=np.int64).sum()) // len(samples))
    gain = _NOISE_GAINS[random.randint(len(_NOISE_GAINS))]
    # The sum has a standard deviation of 2 · 2**15 / sqrt(12) = 2**15 / sqrt(3).
    noise = random.randint(-(2**14), 2**14, (4, len(padded))).sum(axis=0) * power * gain
    scaled = np.rint(noise * (math.sqrt(3) / 2**30)).astype(np.int64)
    return np.clip(padded + scaled, -(2**15), 2**15 - 1).astype(np.int16)
