"""Speech records: what AlgoPerf's files give, and that every damaged file is named."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from workloads.base.errors import DataError
from workloads.speech.corpora import speech_records

REPAIR = "python -m workloads prepare it"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Two splits of two utterances and one, in AlgoPerf's types."""
    ids = np.array([5, 7, 2], np.int32)
    speech_records.write(tmp_path, "a", "1-1-0", np.array([1, -32768, 32767], np.int64), ids)
    speech_records.write(tmp_path, "a", "1-1-1", np.array([4, 5], np.int64), ids[:2])
    speech_records.write(tmp_path, "b", "2-1-0", np.array([6], np.int16), ids[2:])
    speech_records.write_ids(tmp_path, "a", ["1-1-1", "1-1-0"])
    speech_records.write_ids(tmp_path, "b", ["2-1-0"])
    return tmp_path


def _open(directory: Path, *splits: str) -> speech_records.SpeechSplit:
    return speech_records.SpeechSplit(directory, splits or ("a", "b"), 4, 3, REPAIR, 5000)


def test_records_come_in_the_order_of_the_lists_padded(directory: Path) -> None:
    source = _open(directory)
    assert len(source) == 3
    records = [source[number] for number in range(3)]
    assert [record["audio"].tolist() for record in records] == [
        [4, 5, 0, 0],
        [1, -32768, 32767, 0],
        [6, 0, 0, 0],
    ]
    assert [record["audio_length"] for record in records] == [2, 3, 1]
    assert [record["targets"].tolist() for record in records] == [[5, 7, 0], [5, 7, 2], [2, 0, 0]]
    assert [record["targets_length"] for record in records] == [2, 3, 1]
    for record in records:
        assert record["audio"].dtype == np.int16
        assert {record[name].dtype for name in record if name != "audio"} == {np.dtype("int32")}
    with pytest.raises(IndexError):
        source[3]


def _archive(directory: Path) -> None:
    np.savez(directory / "archive.npz", np.zeros(3))
    (directory / "archive.npz").rename(directory / AUDIO)


def _huge(directory: Path) -> None:
    content = (directory / AUDIO).read_bytes()
    (directory / AUDIO).write_bytes(
        content.replace(b"(3,), }" + b" " * 15, b"(3333333333333333,), }")
    )


AUDIO, TARGETS = "a/1-1-0_audio.npy", "a/1-1-0_targets.npy"


def _save(file: str, array: np.ndarray) -> Callable[[Path], None]:
    return lambda directory: np.save(directory / file, array, allow_pickle=True)


def _cut(file: str) -> Callable[[Path], None]:
    return lambda directory: (directory / file).write_bytes((directory / file).read_bytes()[:-2])


@pytest.mark.parametrize(
    ("damage", "file", "message"),
    [
        (_save(AUDIO, np.zeros(3, np.float32)), AUDIO, "holds float32 [3]; 1 to 4 samples"),
        (_save(AUDIO, np.zeros((3, 1), np.int16)), AUDIO, "holds int16 [3, 1]"),
        (_save(AUDIO, np.array([None])), AUDIO, "cannot be read"),
        (_save(AUDIO, np.array([0, 32768])), AUDIO, "integers from -32768 to 32767"),
        (_save(AUDIO, np.array([-32769, 0])), AUDIO, "integers from -32768 to 32767"),
        (_save(AUDIO, np.zeros(5, np.int16)), AUDIO, "holds int16 [5]; 1 to 4 samples"),
        (_save(AUDIO, np.zeros(0, np.int16)), AUDIO, "holds int16 [0]"),
        (_save(TARGETS, np.ones(4, np.int32)), TARGETS, "holds int32 [4]; 1 to 3 target ids"),
        (_save(TARGETS, np.array([3, 0, 2])), TARGETS, "integers from 1 to 4999"),
        (_save(TARGETS, np.array([3, 5000])), TARGETS, "from 3 to 5000; 1 to 3 target ids"),
        (_archive, AUDIO, "cannot be read"),
        (_huge, AUDIO, "cannot be read"),
        (
            lambda directory: (directory / AUDIO).write_bytes(b"PK\x03\x04no"),
            AUDIO,
            "cannot be read",
        ),
        (_save(TARGETS, np.array([3.0])), TARGETS, "holds float64 [1]"),
        (_cut(AUDIO), AUDIO, "cannot be read"),
        (_cut(TARGETS), TARGETS, "cannot be read"),
        (lambda directory: (directory / AUDIO).unlink(), AUDIO, "No such file"),
        (lambda directory: (directory / TARGETS).write_bytes(b""), TARGETS, "cannot be read"),
    ],
)
def test_a_damaged_utterance_is_named(
    directory: Path, damage: Callable[[Path], None], file: str, message: str
) -> None:
    damage(directory)
    source = _open(directory)
    with pytest.raises(DataError) as caught:
        source[1]
    assert str(caught.value).startswith(str(directory / file))
    assert message in str(caught.value)
    assert str(caught.value).endswith(REPAIR)
    assert source[0]["audio_length"] == 2


@pytest.mark.parametrize(
    "content",
    [
        "id\n1-1-0\n",
        "",
        ",id\n",
        ",id\n0,1-1-0\n1,1-1-0\n",
        ",id\n0,1-1-0\n1\n",
        ",id\n0,\n",
        ",id\n0,../1-1-0\n",
    ],
)
def test_a_damaged_list_is_named(directory: Path, content: str) -> None:
    (directory / "a.csv").write_text(content)
    with pytest.raises(DataError, match=r"a\.csv is no list of utterances"):
        _open(directory)
