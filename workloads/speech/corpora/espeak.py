"""Speech from espeak-ng, the library inside the wheel `espeakng-loader`, driven through ctypes.

All utterances of a call are spoken in the order given, in a process of their own: the library
carries state from one utterance to the next (phases of its oscillators), so the same texts in
another order, or after others, give other samples. Its 22,050 Hz are resampled to 16,000 Hz by a
sinc of 10 zero crossings in a Kaiser window of β 5 (that of `scipy.signal.resample_poly`), its taps
rounded to multiples of 2**-24: sums are whole numbers below 2**53, exact in float64, so the result
is the same on every machine. To import scipy.signal in every process would take a second.
"""

import ctypes
import dataclasses
import functools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from workloads.speech.corpora.speech_records import SAMPLE_RATE

_UP, _DOWN = 320, 441  # 16000 / 22050
_TAP_BITS = 24
_REACH = 14  # inputs on either side: 10 · 441 / 320, rounded up
_RETRIEVE, _UTF8, _RATE, _PITCH = 2, 1, 1, 3  # speak_lib.h: synchronous output; parameters


@dataclasses.dataclass(frozen=True)
class Utterance:
    """What to say. voice: `accent+variant`; rate: words a minute, 80 to 450; pitch: 0 to 99."""

    text: str
    voice: str
    rate: int = 175
    pitch: int = 50

    def __post_init__(self) -> None:
        if not (self.text and 80 <= self.rate <= 450 and 0 <= self.pitch <= 99):
            raise ValueError(f"{self}: text, a rate of 80 to 450 and a pitch of 0 to 99 are needed")


def speak(utterances: Sequence[Utterance]) -> list[np.ndarray]:
    """The utterances as int16 samples at 16 kHz, spoken in this order in a fresh process.

    Raises ValueError for a voice that espeak-ng lacks, OSError where the library cannot run.
    """
    with tempfile.TemporaryDirectory(prefix="espeak-") as folder:
        order, result = Path(folder) / "utterances.json", Path(folder) / "speech.npz"
        order.write_bytes(json.dumps([dataclasses.asdict(one) for one in utterances]).encode())
        _run("speak", str(order), str(result))
        with np.load(result) as arrays:
            ends = np.cumsum(arrays["lengths"])
            return np.split(arrays["samples"], ends[:-1])


def version() -> str:
    """The version of espeak-ng, as in `1.52.0`."""
    return _run("version").strip()


def _run(*arguments: str) -> str:
    """What this module, as a command in a fresh process, prints."""
    root = Path(__file__).resolve().parents[3]
    paths = [str(root), os.environ.get("PYTHONPATH", "")]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "OPENBLAS_NUM_THREADS": "1",  # 0.4 ms for an utterance; with two threads 5
    }
    done = subprocess.run(
        [sys.executable, "-m", "workloads.speech.corpora.espeak", *arguments],
        env=environment,
        capture_output=True,
        text=True,
    )
    if done.returncode == 2:
        raise ValueError(done.stderr.strip())
    if done.returncode:
        raise OSError(f"espeak-ng ended with status {done.returncode}: {done.stderr.strip()}")
    return done.stdout


class _Engine:
    """The library, initialised once per process."""

    def __init__(self) -> None:
        import espeakng_loader

        self.espeak = ctypes.CDLL(espeakng_loader.get_library_path())
        data = Path(espeakng_loader.get_data_path())
        # An unknown variant is ignored by the library, so the names are checked here.
        self.variants = {path.name for path in (data / "voices" / "!v").iterdir()}
        rate = self.espeak.espeak_Initialize(_RETRIEVE, 0, os.fsencode(data), 0)
        if rate * _UP != SAMPLE_RATE * _DOWN:
            raise OSError(f"espeak_Initialize gave {rate}; 22050 Hz is expected")
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
        return self.espeak.espeak_Info(None).decode()

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
    length = -(-len(samples) * _UP // _DOWN)
    blocks = -(-length // _UP)
    padded = np.zeros(blocks * _DOWN + 2 * _REACH)
    padded[_REACH : _REACH + len(samples)] = samples
    windows = np.lib.stride_tricks.sliding_window_view(padded, _DOWN + 2 * _REACH)[::_DOWN]
    # The copy lets BLAS multiply, ten times as fast as overlapping rows.
    sums = (np.ascontiguousarray(windows) @ _filter()).ravel()[:length]
    return np.clip(np.rint(sums / 2.0**_TAP_BITS), -(2**15), 2**15 - 1).astype(np.int16)


@functools.cache
def _filter() -> np.ndarray:
    """What each input of a block counts in each output, whole numbers in float64 `[469, 320]`.

    A block is 320 outputs, made of 441 inputs and 14 more on either side.
    """
    half = 10 * _DOWN
    offsets = np.arange(-half, half + 1)
    taps = np.sinc(offsets / _DOWN) * np.kaiser(2 * half + 1, 5.0)
    taps = np.rint(taps / taps.sum() * 2.0**_TAP_BITS) * _UP
    # In 1 / 7,056,000 s, the common grid: output r lies at 441 r, input i at 320 (i - 14).
    inputs = np.arange(_DOWN + 2 * _REACH) - _REACH
    places = _DOWN * np.arange(_UP) - _UP * inputs[:, None] + half
    inside = (places >= 0) & (places <= 2 * half)
    return np.where(inside, taps[np.clip(places, 0, 2 * half)], 0.0)


def _main(command: str, *paths: str) -> int:
    engine = _Engine()
    if command == "version":
        print(engine.version())
        return 0
    order, result = paths
    utterances = [Utterance(**one) for one in json.loads(Path(order).read_bytes())]
    try:
        speech = [resample(engine.say(one)) for one in utterances]
    except ValueError as problem:
        print(problem, file=sys.stderr)
        return 2
    samples = np.concatenate([np.zeros(0, np.int16), *speech])
    np.savez(result, samples=samples, lengths=[len(one) for one in speech])
    return 0


if __name__ == "__main__":
    sys.exit(_main(*sys.argv[1:]))
