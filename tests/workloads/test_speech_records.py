"""Speech records: what AlgoPerf's files give."""

from pathlib import Path

import numpy as np
import pytest

from tests.workloads import small_directories


def test_records_come_in_the_order_of_the_lists_padded(tmp_path: Path) -> None:
    small_directories.write_speech(tmp_path)
    source = small_directories.open_speech(tmp_path)
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
