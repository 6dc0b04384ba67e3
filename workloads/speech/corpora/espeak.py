"""Speech from espeak-ng, the library inside the wheel `espeakng-loader`, driven through ctypes.

All utterances of a call are spoken in the order given, in a process of their own: the library
carries state from one utterance to the next (phases of its oscillators), so the same texts in
another order, or after others, give other samples.
"""

import concurrent.futures
import ctypes
import dataclasses
import multiprocessing
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from attention.common import machine

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
