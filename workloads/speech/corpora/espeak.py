"""Speech from espeak-ng, the library inside the wheel `espeakng-loader`, driven through ctypes.

All utterances of a call are spoken in the order given, in a process of their own: the library
carries state from one utterance to the next (phases of its oscillators), so the same texts in
another order, or after others, give other samples.
"""

import ctypes
import dataclasses
import os
import pickle
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

_ESPEAK_RATE = 22_050
_UP, _DOWN = 320, 441  # 16000 / 22050
_RETRIEVE, _UTF8, _RATE, _PITCH = 2, 1, 1, 3  # speak_lib.h: synchronous output; parameters


@dataclasses.dataclass(frozen=True)
class Utterance:
    """A text and its speaker. voice: `accent+variant`; rate: words a minute; pitch: 0 to 99."""

    text: str
    voice: str
    rate: int = 175
    pitch: int = 50


def speak(utterances: Sequence[Utterance]) -> list[np.ndarray]:
    """The utterances as int16 samples at 16 kHz, spoken in this order in a fresh process.

    Raises ValueError for a voice that espeak-ng lacks, OSError where the library cannot run.
    """
    return _run(utterances)[1]


def version() -> str:
    """The version of espeak-ng, as in `1.52.0`."""
    return _run([])[0]


def _run(utterances: Sequence[Utterance]) -> tuple[str, list[np.ndarray]]:
    """Version and speech, from this module as a command in a fresh process."""
    root = Path(__file__).resolve().parents[3]
    paths = [str(root), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, "-m", "workloads.speech.corpora.espeak"],
        input=pickle.dumps([dataclasses.asdict(utterance) for utterance in utterances]),
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        capture_output=True,
    )
    if done.returncode:
        problem = done.stderr.decode(errors="replace").strip()
        raise OSError(f"espeak-ng ended with status {done.returncode}: {problem}")
    result = pickle.loads(done.stdout)
    if isinstance(result, ValueError):
        raise result
    spoken: tuple[str, list[np.ndarray]] = result
    return spoken


class _Engine:
    """The library, initialised once per process."""

    def __init__(self) -> None:
        import espeakng_loader

        self.espeak = ctypes.CDLL(espeakng_loader.get_library_path())
        data = Path(espeakng_loader.get_data_path())
        # An unknown variant is ignored by the library, so the names are checked here.
        self.variants = {path.name for path in (data / "voices" / "!v").iterdir()}
        rate = self.espeak.espeak_Initialize(_RETRIEVE, 0, os.fsencode(data), 0)
        if rate != _ESPEAK_RATE:
            raise OSError(f"espeak_Initialize gave {rate}; {_ESPEAK_RATE} Hz are expected")
        self.chunks: list[np.ndarray] = []
        signature = ctypes.CFUNCTYPE(
            ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p
        )
        self._callback = signature(self._take)  # kept: the library calls it later
        self.espeak.espeak_SetSynthCallback(self._callback)

    def _take(self, samples: "ctypes._Pointer[ctypes.c_short]", count: int, events: int) -> int:
        del events
        if samples and count > 0:
            self.chunks.append(np.ctypeslib.as_array(samples, (count,)).copy())
        return 0  # go on

    def version(self) -> str:
        self.espeak.espeak_Info.restype = ctypes.c_char_p
        return str(self.espeak.espeak_Info(None).decode())

    def say(self, utterance: Utterance) -> np.ndarray:
        """int16 samples at 22,050 Hz."""
        self.chunks.clear()
        _, plus, variant = utterance.voice.partition("+")
        known = not plus or variant in self.variants
        if not known or self.espeak.espeak_SetVoiceByName(utterance.voice.encode()):
            raise ValueError(f"espeak-ng has no voice {utterance.voice!r}")
        self.espeak.espeak_SetParameter(_RATE, utterance.rate, 0)
        self.espeak.espeak_SetParameter(_PITCH, utterance.pitch, 0)
        text = utterance.text.encode()
        size = ctypes.c_size_t(len(text) + 1)
        status = self.espeak.espeak_Synth(text, size, 0, 0, 0, _UTF8, None, None)
        if status or not self.chunks:
            raise OSError(f"espeak_Synth gave status {status} and no speech for {utterance}")
        return np.concatenate(self.chunks)


def resample(samples: np.ndarray) -> np.ndarray:
    """int16 at 22,050 Hz to int16 at 16,000 Hz, `ceil(N · 320 / 441)` samples."""
    import scipy.signal  # takes a second, which only the process that speaks spends

    resampled = scipy.signal.resample_poly(samples.astype(np.float64), _UP, _DOWN)
    return np.clip(np.rint(resampled), -(2**15), 2**15 - 1).astype(np.int16)


def _main() -> None:
    """Reads utterances, pickled, and writes version and speech, or the ValueError of one."""
    engine = _Engine()
    utterances = [Utterance(**fields) for fields in pickle.load(sys.stdin.buffer)]
    result: tuple[str, list[np.ndarray]] | ValueError
    try:
        result = engine.version(), [resample(engine.say(each)) for each in utterances]
    except ValueError as problem:
        result = problem
    pickle.dump(result, sys.stdout.buffer)


if __name__ == "__main__":
    _main()
