"""Read Russian in AlgoPerf's layout: one reader, phones as words.

The recordings of festvox-ru, a voice for Festival: 620 utterances of a novel of 1923, 99 minutes,
with the end of every phone, aligned automatically. They are not in this package: `prepare` reads
the folder of Debian's package and checks its SHA-256. The segments between two pauses are the
examples, if they have 3 phones or more and take at most 3 s, cut where the labels end the pauses.
A transcript is a segment's phones with blanks between them, so word errors are phone errors. In the
order of their names 420 utterances give 1,856 segments to train, 60 give 218 to validate, and 140
give 551, with 9,607 phones, to test.
"""

import hashlib
import itertools
import os
import wave
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from attention.common import files
from workloads.base.errors import DataError, repair_commands
from workloads.speech.corpora.speech_corpus import SpeechCorpus, Utterance
from workloads.speech.corpora.speech_records import SAMPLE_RATE
from workloads.storage import preparation

LICENSE_FILE = "LICENSE-festvox-ru"
FOLDER = "usr/share/festival/voices/russian/msu_ru_nsh_clunits"
# Utterances of each role, in order.
_UTTERANCES = {"train": 420, "validation": 60, "test": 140}
_FEWEST_PHONES, _LONGEST = 3, 3 * SAMPLE_RATE
_PAUSE = "pau"
# Of all label files and recordings of festvox-ru 0.5+dfsg-6, by name, each label file first.
SOURCE_SHA256 = "1418b4a0f185b7d58fc290803e1b431707293a572442be086b9f2e18c1c09416"


class ReadSpeech(SpeechCorpus):
    """A corpus that is made of recordings."""

    is_downloaded = True

    def _read(self, source: Any, data_dir: Path) -> list[Utterance]:
        return read(source, self.repair(data_dir))

    def _write(self, data_dir: Path, content: Any) -> dict[str, Any]:
        files.write(data_dir / LICENSE_FILE, _LICENSE)
        return self.write(data_dir, content, self.made_by, model_type="word")

    def repair(self, data_dir: str | os.PathLike[str]) -> str:
        """Returns where the recordings are found, and the command that prepares them."""
        return (
            "`make data-speech` prepares the default folder on Debian and Ubuntu. Elsewhere, "
            "unpack the Debian package festvox-ru by `dpkg-deb -x`, or by `ar x` and `tar xf`, and "
            f"take its {FOLDER}. Then run: " + repair_commands(self.workload, data_dir, "FOLDER")
        )


RUSSIAN = ReadSpeech(
    workload="read_speech_conformer",
    note=(
        "Small: 67 minutes of read Russian by one speaker, scored by phones, not LibriSpeech. "
        "Errors on it say nothing about LibriSpeech."
    ),
    sizes={"train": 1856, "validation": 218, "test": 551},
    max_audio=_LONGEST,
    max_targets=44,  # the longest has 42 phones and the end
    vocab_size=53,  # three control pieces and 50 phones
    made_by="festvox-ru 0.5",
    content_sha256="2eb1064b044f942f4336315ce7bf1395746899f589f1cf72205770fd57904543",
)


def read(source: Path, repair: str = "") -> list[Utterance]:
    """Returns the segments of a folder with `lab/NAME.lab` and `wav/NAME.wav`.

    Raises DataError if the folder does not hold festvox-ru's recordings and labels.
    """
    labels = preparation.visible(source / "lab", "*.lab")
    recordings = [source / "wav" / f"{path.stem}.wav" for path in labels]
    digest = hashlib.sha256()
    try:
        for path in itertools.chain.from_iterable(zip(labels, recordings, strict=True)):
            digest.update(path.read_bytes())
    except OSError as problem:
        raise DataError(f"{problem.filename} cannot be read: {problem.strerror}", repair) from None
    if digest.hexdigest() != SOURCE_SHA256:
        raise DataError(
            f"{source} does not hold the recordings and labels of festvox-ru 0.5: the SHA-256 of "
            f"{len(labels)} lab/*.lab and wav/*.wav is {digest.hexdigest()}, not {SOURCE_SHA256}",
            repair,
        )
    pairs = zip(labels, recordings, strict=True)
    return [
        segment
        for role, count in _UTTERANCES.items()
        for path, recording in itertools.islice(pairs, count)
        for segment in _segments(role, path, recording)
    ]


def _segments(role: str, labels: Path, recording: Path) -> Iterator[Utterance]:
    """Yields the segments of an utterance, named by it and their number."""
    with wave.open(os.fspath(recording), "rb") as file:
        samples = np.frombuffer(file.readframes(file.getnframes()), "<i2")
    lines = [line.split() for line in labels.read_text("ascii").splitlines()]
    # (end in seconds, a color of Festival's, phone); the first line is '#'.
    phones = [(round(float(line[0]) * SAMPLE_RATE), line[2]) for line in lines if len(line) == 3]
    begin, numbers = 0, itertools.count(1)
    for is_pause, run in itertools.groupby(phones, lambda phone: phone[1] == _PAUSE):
        ends, names = zip(*run, strict=True)
        is_long = len(names) >= _FEWEST_PHONES and ends[-1] - begin <= _LONGEST
        if not is_pause and is_long:
            yield Utterance(
                role,
                f"{labels.stem}_{next(numbers):02d}",
                samples[begin : ends[-1]],
                " ".join(names),
            )
        begin = ends[-1]


_LICENSE = """festvox-ru, http://sourceforge.net/projects/festlang.berlios

             Nickolay V. Shmyrev  Copyright (c) 2005
                      All Rights Reserved.

Permission is hereby granted, free of charge, to use and distribute
this software and its documentation without restriction, including
without limitation the rights to use, copy, modify, merge, publish,
distribute, sublicense, and/or sell copies of this work, and to
permit persons to whom this work is furnished to do so, subject to
the following conditions:
 1. The code must retain the above copyright notice, this list of
    conditions and the following disclaimer.
 2. Any modifications must be clearly marked as such.
 3. Original authors' names are not deleted.
 4. The authors' names are not used to endorse or promote products
    derived from this software without specific prior written
    permission.

THE AUTHOR AND THE CONTRIBUTORS TO THIS WORK
DISCLAIM ALL WARRANTIES WITH REGARD TO THIS SOFTWARE, INCLUDING
ALL IMPLIED WARRANTIES OF MERCHANTABILITY AND FITNESS, IN NO EVENT
SHALL THE UNIVERSITY OF EDINBURGH NOR THE CONTRIBUTORS BE LIABLE
FOR ANY SPECIAL, INDIRECT OR CONSEQUENTIAL DAMAGES OR ANY DAMAGES
WHATSOEVER RESULTING FROM LOSS OF USE, DATA OR PROFITS, WHETHER IN
AN ACTION OF CONTRACT, NEGLIGENCE OR OTHER TORTIOUS ACTION,
ARISING OUT OF OR IN CONNECTION WITH THE USE OR PERFORMANCE OF
THIS SOFTWARE.

The recordings were cut at labelled pauses: a modified version.
"""
