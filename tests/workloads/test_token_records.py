"""Token records: packed without loss, read by number, refused when not whole."""

import functools
import pickle
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest
import sentencepiece
from hypothesis import strategies as st

from tests.workloads import data_files
from tests.workloads.conftest import write_token_records
from tests.workloads.small_directories import PARTS, REPAIR, ROWS, write_tokens
from workloads.base.errors import DataError
from workloads.storage import tfrecord, token_records, tokenizer

SECOND = "train-00002-of-00003.npy"


@pytest.fixture
def directory(tmp_path: Path, spm_model: bytes) -> Path:
    write_tokens(tmp_path, spm_model)
    return tmp_path


def _open(directory: Path, split: str = "train") -> token_records.TokenSplit:
    return token_records.TokenSplit(directory, split, REPAIR)


def test_records_come_back_by_number_over_all_shards(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though fewer files are kept open than there are shards, and in another process."""
    monkeypatch.setattr(tfrecord, "opened", functools.lru_cache(1)(tfrecord.opened.__wrapped__))
    split = _open(directory)
    assert (len(split), split.length, split.vocab_size) == (9, 6, 330)
    for number in (8, 0, 3, 4):
        record = split[number]
        assert list(record) == ["tokens"]
        assert record["tokens"].dtype == np.uint16
        assert record["tokens"].tolist() == ROWS[number].tolist()
        record["tokens"][:] = 0  # a copy
        assert split[number]["tokens"].tolist() == ROWS[number].tolist()
    assert len(data_files.open_below(directory)) == 1
    assert _open(directory, "test")[0]["tokens"].tolist() == ROWS[9].tolist()
    for number in (9, -1):
        with pytest.raises(IndexError, match=f"record {number} asked, there are 9"):
            split[number]
    sent = pickle.dumps(split)
    assert len(sent) < 2000
    assert pickle.loads(sent)[7]["tokens"].tolist() == ROWS[7].tolist()


def test_a_token_beyond_the_vocabulary_is_found_by_the_full_check(directory: Path) -> None:
    write_token_records(directory, {**PARTS, "test": (ROWS[9:] + 300,)})
    assert len(token_records.check(directory, REPAIR)) == 3
    with pytest.raises(DataError, match="test-00000-of-00001.npy has the token id 363"):
        token_records.check(directory, REPAIR, full=True)


def test_a_replaced_shard_is_read_anew(directory: Path) -> None:
    assert _open(directory)[8]["tokens"].tolist() == ROWS[8].tolist()
    (directory / SECOND).unlink()
    np.save(directory / SECOND, ROWS[:5])
    assert _open(directory)[8]["tokens"].tolist() == ROWS[4].tolist()


DOCUMENTS = st.lists(st.lists(st.integers(0, 49), max_size=12), max_size=12)


def _stream(documents: list[list[int]]) -> list[int]:
    return [token for document in documents for token in [*document, 1]]


@hypothesis.given(DOCUMENTS, st.integers(1, 9), st.integers(1, 13))
def test_records_and_tail_are_the_documents_with_separators(
    documents: list[list[int]], length: int, size: int
) -> None:
    """In batches of any number of documents."""
    pieces, tail = [], token_records.EMPTY
    for i in range(0, len(documents), size):
        rows, tail = token_records.packed(tail, documents[i : i + size], length)
        assert rows.dtype == np.uint16
        assert rows.shape[1] == length
        pieces += rows.ravel().tolist()
    assert [*pieces, *tail.tolist()] == _stream(documents)
    assert len(tail) < length


@pytest.fixture(scope="module")
def processor(spm_model: bytes) -> Any:
    return sentencepiece.SentencePieceProcessor(model_proto=spm_model)


def test_a_shard_holds_what_was_tokenised(
    tmp_path: Path, processor: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_records, "_BATCH_CHARACTERS", 10)
    texts = ["the cat sat on a mat", "", "look at values", "你"]
    counts = token_records.write_shard(tmp_path / "a.npy", iter(texts), processor, 5)
    stream = _stream([processor.encode(text) for text in texts])
    rows = np.load(tmp_path / "a.npy")
    assert rows.shape == (len(stream) // 5, 5)
    assert rows.ravel().tolist() == stream[: rows.size]
    assert counts == token_records.Counts(
        records=len(stream) // 5,
        documents=4,
        empty_documents=1,
        tokens=len(stream),
        dropped_tokens=len(stream) % 5,
        unknown_tokens=0,
    )
    # Cut, after several batches.
    cut = token_records.write_shard(tmp_path / "cut.npy", texts, processor, 5, max_records=3)
    np.testing.assert_array_equal(np.load(tmp_path / "cut.npy"), rows[:3])
    assert (cut.records, cut.dropped_tokens) == (3, len(stream) - 15)


def test_unknown_tokens_are_counted(tmp_path: Path) -> None:
    model = tokenizer.train(["a cat sat on the mat by the sea"] * 20, 18)
    small = sentencepiece.SentencePieceProcessor(model_proto=model)
    counts = token_records.write_shard(tmp_path / "a.npy", ["a 你 cat 好 sat"], small, 2)
    assert counts.unknown_tokens == 2
