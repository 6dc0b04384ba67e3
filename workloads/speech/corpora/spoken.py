"""The small data set beside LibriSpeech, embedded: synthesised strings of two to four digits.

1600 utterances to train, 200 to validate, 200 to test, 0.75 s on average. Noise and every choice
come from RandomState, whose streams are frozen (NEP 19), in integer arithmetic; only espeak-ng and
the filter behind it may round differently on another machine.

The three roles share no strings: of the strings of each length, one permutation gives 80 % to
train, 10 % to validation, 10 % to test. Two-digit strings, of which there are only 100, are a tenth
of the utterances; the others are three- and four-digit strings, in equal parts. Strings are
repeated only where a role has fewer than it needs.

A voice is an accent with a variant (the timbre). The accents are shared; the variants of the three
roles differ, so validation and test are spoken by timbres that training never had. Variants whose
long-term spectra differ little (`aunty` and `f4`, `max` and `Alex`) play the same role. Left out
are those with noise seeded by the clock (CLOCK_SEEDED in their tests), the robots, and a few
others.

Speech is made by espeak-ng, the library inside the wheel `espeakng-loader`, driven through ctypes.
All utterances of a call are spoken in the order given, in a process of their own: the library
carries state from one utterance to the next (phases of its oscillators), so the same texts in
another order, or after others, give other samples.
"""

import concurrent.futures
import ctypes
import dataclasses
import itertools
import math
import multiprocessing
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from attention.common import machine
from workloads.speech.corpora.speech_corpus import SPLITS, SpeechCorpus, Utterance

WORDS = ["ZERO", "ONE", "TWO", "THREE", "FOUR", "FIVE", "SIX", "SEVEN", "EIGHT", "NINE"]
_SIZES = {"train": 1600, "validation": 200, "test": 200}
_SHARES = {2: 0.1, 3: 0.45, 4: 0.45}
_ROLES = {"train": (0.0, 0.8), "validation": (0.8, 0.9), "test": (0.9, 1.0)}
_SEED = 0

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

_RATES, _PITCHES = (200, 301), (30, 71)  # words a minute, and espeak-ng's; without the last
_LEAD = 1600  # at most 0.1 s before the speech
# Speech is 10 to 30 dB above the white noise; gains in units of 2**-15.
_NOISE_GAINS = [round(2**15 * 10 ** (-decibels / 20)) for decibels in range(10, 31)]
_ESPEAK_RATE = 22_050
_UP, _DOWN = 320, 441  # 16000 / 22050
_RETRIEVE, _UTF8, _RATE, _PITCH = 2, 1, 1, 3  # speak_lib.h: synchronous output; parameters


@dataclasses.dataclass(frozen=True)
class Prompt:
    """A text and its speaker. voice: `accent+variant`; rate: words a minute; pitch: 0 to 99."""

    text: str
    voice: str
    rate: int = 175
    pitch: int = 50


def speak(utterances: Sequence[Prompt]) -> tuple[str, list[np.ndarray]]:
    """Returns espeak-ng's version, as in `1.52.0`, and the utterances as int16 samples at 16 kHz.

    They are spoken in this order in a fresh process. A variant that espeak-ng lacks is ignored.
    Raises ValueError for an accent that it lacks, OSError where the library cannot run.
    """
    spawn = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, spawn, machine.end_with_parent) as pool:
        return pool.submit(_spoken, utterances).result()


def _spoken(utterances: Sequence[Prompt]) -> tuple[str, list[np.ndarray]]:
    import espeakng_loader

    library = ctypes.CDLL(espeakng_loader.get_library_path())
    data = os.fsencode(espeakng_loader.get_data_path())
    rate = library.espeak_Initialize(_RETRIEVE, 0, data, 0)
    if rate != _ESPEAK_RATE:
        raise OSError(f"espeak_Initialize gave {rate}; {_ESPEAK_RATE} Hz are expected")
    chunks: list[np.ndarray] = []

    @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p)
    def take(samples: "ctypes._Pointer[ctypes.c_short]", count: int, _events: int) -> int:
        if samples and count > 0:
            chunks.append(np.ctypeslib.as_array(samples, (count,)).copy())
        return 0  # go on

    library.espeak_SetSynthCallback(take)
    library.espeak_Info.restype = ctypes.c_char_p
    version = library.espeak_Info(None).decode()
    speech = []
    for utterance in utterances:
        _say(library, utterance)
        if not chunks:
            raise OSError(f"espeak-ng {version} gave no speech for {utterance}")
        speech.append(resample(np.concatenate(chunks)))
        chunks.clear()
    return version, speech


def _say(library: Any, utterance: Prompt) -> None:
    """Has the callback get an utterance's samples, int16 at 22,050 Hz."""
    if library.espeak_SetVoiceByName(utterance.voice.encode()):
        raise ValueError(f"espeak-ng has no voice {utterance.voice!r}")
    library.espeak_SetParameter(_RATE, utterance.rate, 0)
    library.espeak_SetParameter(_PITCH, utterance.pitch, 0)
    text = utterance.text.encode()
    library.espeak_Synth(text, ctypes.c_size_t(len(text) + 1), 0, 0, 0, _UTF8, None, None)


def resample(samples: np.ndarray) -> np.ndarray:
    """int16 at 22,050 Hz to int16 at 16,000 Hz, `ceil(N · 320 / 441)` samples."""
    import scipy.signal  # takes a second, which only the process that speaks spends

    resampled = scipy.signal.resample_poly(samples.astype(np.float64), _UP, _DOWN)
    return np.clip(np.rint(resampled), -(2**15), 2**15 - 1).astype(np.int16)


def digits(role: str) -> list[str]:
    """Returns the texts of a role, one string per utterance, in a mixed order."""
    chosen: list[str] = []
    for length, share in _SHARES.items():
        pool = digit_strings(role, length)
        chosen.extend(itertools.islice(itertools.cycle(pool), round(share * _SIZES[role])))
    order = np.random.RandomState([_SEED, list(_SIZES).index(role)]).permutation(len(chosen))
    return [chosen[number] for number in order]


def digit_strings(role: str, length: int) -> list[str]:
    """Returns the strings of `length` digits that belong to a role."""
    everything = [" ".join(words) for words in itertools.product(WORDS, repeat=length)]
    order = np.random.RandomState([_SEED, 10 + length]).permutation(len(everything))
    start, end = (round(part * len(everything)) for part in _ROLES[role])
    return [everything[number] for number in order[start:end]]


def voices(role: str) -> list[str]:
    """Returns the voices of a role (train, validation, test), every variant with every accent."""
    return [f"{accent}+{variant}" for variant in VARIANTS[role] for accent in ACCENTS]


def speaker_ids() -> dict[str, int]:
    """Returns a number for every voice, from 1 on, as LibriSpeech numbers its readers."""
    everyone = [voice for role in VARIANTS for voice in voices(role)]
    return {voice: number for number, voice in enumerate(everyone, 1)}


def _prompts(role: str, texts: list[str]) -> list[tuple[str, Prompt]]:
    """Returns the name and the prompt of each utterance, sorted by speaker.

    Names are like LibriSpeech's, `<speaker>-<chapter>-<number>`. The voices take equal parts.
    """
    # A stream of its own for every role: one role's size changes no other's speech.
    random = np.random.RandomState([_SEED, list(SPLITS).index(role)])
    known, ids, counts = voices(role), speaker_ids(), Counter[int]()
    chosen = [known[place % len(known)] for place in random.permutation(len(texts))]
    result = []
    for text, voice in zip(texts, chosen, strict=True):
        rate, pitch = random.randint(*_RATES), random.randint(*_PITCHES)
        speaker = ids[voice]
        name = f"{speaker}-1-{counts[speaker]:04d}"
        counts[speaker] += 1
        result.append((speaker, name, Prompt(text.lower(), voice, rate, pitch)))
    return [(name, prompt) for _, name, prompt in sorted(result, key=lambda entry: entry[0])]


def with_noise(samples: np.ndarray, random: np.random.RandomState) -> np.ndarray:
    """Returns speech int16 `[N]` after up to 0.1 s of pause, in noise 10 to 30 dB below it, int16.

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


class SpokenDigits(SpeechCorpus):
    """The corpus; of each role the first `sizes` texts."""

    def _write(self, data_dir: Path, content: Any) -> dict[str, Any]:
        lines = [
            (role, name, prompt)
            for role in SPLITS
            for name, prompt in _prompts(role, digits(role)[: self.sizes[role]])
        ]
        version, speech = speak([prompt for _, _, prompt in lines])
        random = np.random.RandomState(_SEED)
        utterances = [
            Utterance(role, name, with_noise(samples, random), prompt.text.upper())
            for (role, name, prompt), samples in zip(lines, speech, strict=True)
        ]
        return self.write(data_dir, utterances, f"espeak-ng {version}")


DIGITS = SpokenDigits(
    workload="spoken_digits_conformer",
    note="Synthesised speech (espeak-ng), a stand-in: strings of two to four digits. Word error "
    "rates on it say nothing about LibriSpeech.",
    sizes=_SIZES,
    max_audio=22_400,  # 1.4 s; the longest has 21,092 samples
    max_targets=8,  # a word is one piece, so there are at most four and the end
    vocab_size=29,  # three control pieces, 15 letters, the word mark, the ten words
    made_by="espeak-ng 1.52.0",
    # Of audio, targets and pieces; espeak-ng's floating point may differ on another CPU.
    content_sha256="191e45fd202950c963127501c54728ddc4542a8abd4a6cf524ee84fd086fd0d8",
)
