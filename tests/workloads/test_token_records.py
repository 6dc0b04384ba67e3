"""Token records: packed without loss, read by number, refused when not whole."""

import functools
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest
import sentencepiece
from hypothesis import strategies as st

from tests.workloads import data_files
from tests.workloads.conftest import write_token_records
from workloads.base.errors import DataError
from workloads.storage import tfrecord, token_records, tokenizer

REPAIR = "run the repair command"
ROWS = np.arange(4, 64, dtype=np.uint16).reshape(10, 6)
PARTS = {"train": (ROWS[:4], ROWS[:0], ROWS[4:9]), "test": (ROWS[9:],)}
SECOND = "train-00002-of-00003.npy"


@pytest.fixture
def directory(tmp_path: Path, spm_model: bytes) -> Path:
    """Two splits in shards of 4, 0, 5 and 1 records of 6 tokens."""
    (tmp_path / "spm.model").write_bytes(spm_model)
    write_token_records(tmp_path, PARTS)
    return tmp_path


def _open(directory: Path, split: str = "train") -> token_records.TokenSplit:
    return token_records.TokenSplit(directory, split, REPAIR)


def test_records_come_back_by_number_over_all_shards(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though fewer files are kept open than there are shards."""
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


def test_a_split_can_be_sent_to_another_process(directory: Path) -> None:
    sent = pickle.dumps(_open(directory))
    assert len(sent) < 2000
    assert pickle.loads(sent)[7]["tokens"].tolist() == ROWS[7].tolist()


def _edit(**changes: Any) -> Callable[[Path], None]:
    def edit(directory: Path) -> None:
        path = directory / "tokens.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    return edit


def _remove(name: str) -> Callable[[Path], None]:
    return lambda directory: (directory / name).unlink()


def _save(rows: np.ndarray) -> Callable[[Path], None]:
    return lambda directory: np.save(directory / SECOND, rows)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_remove("tokens.json"), "tokens.json does not exist, so there is no whole set"),
        (lambda d: (d / "tokens.json").write_text("{"), "tokens.json cannot be used"),
        (_edit(version=2), "version 2"),
        (_edit(length=7), r"holds uint16 \[4, 6\]; uint16 \[4, 7\].* is expected"),
        (_remove(SECOND), f"{SECOND} cannot be read"),
        (lambda directory: data_files.cut(directory / SECOND), f"{SECOND} cannot be read"),
        (_save(ROWS[4:9].astype(np.int32)), r"holds int32 \[5, 6\]; uint16 \[5, 6\].* is expected"),
        (_save(ROWS[4:10]), r"holds uint16 \[6, 6\]; uint16 \[5, 6\].* is expected"),
        (_save(np.asfortranarray(ROWS[4:9])), r"uint16 \[5, 6\], row after row, is expected"),
        (lambda directory: (directory / SECOND).write_bytes(b"PK\x03\x04"), "cannot be read"),
        (lambda directory: data_files.flip(directory / SECOND, 0), f"{SECOND} cannot be read"),
    ],
)
def test_a_directory_that_is_not_whole_is_refused(
    directory: Path, damage: Callable[[Path], None], message: str
) -> None:
    damage(directory)
    with pytest.raises(DataError, match=message) as caught:
        _open(directory)
    assert str(directory) in str(caught.value)
    assert REPAIR in str(caught.value)


def test_what_is_absent_is_named(directory: Path) -> None:
    with pytest.raises(DataError, match="no such split; it has train, test"):
        _open(directory, "validation")
    with pytest.raises(DataError, match="nowhere/tokens.json does not exist"):
        _open(directory / "nowhere")


def test_a_changed_token_is_found_by_the_full_check(directory: Path) -> None:
    data_files.flip(directory / SECOND, -2)
    token_records.check(directory, REPAIR)
    with pytest.raises(DataError, match=f"{SECOND} is damaged: its SHA-256 is not"):
        token_records.check(directory, REPAIR, full=True)


def test_a_token_beyond_the_vocabulary_is_found_by_the_full_check(directory: Path) -> None:
    write_token_records(directory, {**PARTS, "test": (ROWS[9:] + 300,)})
    token_records.check(directory, REPAIR)
    with pytest.raises(DataError, match="test-00000-of-00001.npy has the token id 363"):
        token_records.check(directory, REPAIR, full=True)


def test_another_tokenizer_is_found(directory: Path) -> None:
    model = tokenizer.train(["a cat sat on the mat by the sea"] * 20, 18)
    (directory / "spm.model").write_bytes(model)
    with pytest.raises(DataError, match="the records were made with"):
        token_records.check(directory, REPAIR)


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
    monkeypatch.setattr(token_records, "_BATCH_CHARACTERS", 30)
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


def test_unknown_tokens_are_counted(tmp_path: Path) -> None:
    model = tokenizer.train(["a cat sat on the mat by the sea"] * 20, 18)
    small = sentencepiece.SentencePieceProcessor(model_proto=model)
    counts = token_records.write_shard(tmp_path / "a.npy", ["a 你 cat 好 sat"], small, 2)
    assert counts.unknown_tokens == 2


def test_a_shard_can_be_cut(
    tmp_path: Path, processor: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_records, "_BATCH_CHARACTERS", 50)  # several batches before the cut
    texts = ["the cat sat on a mat"] * 50
    whole = token_records.write_shard(tmp_path / "whole.npy", texts, processor, 4)
    cut = token_records.write_shard(tmp_path / "cut.npy", texts, processor, 4, max_records=30)
    assert np.array_equal(np.load(tmp_path / "cut.npy"), np.load(tmp_path / "whole.npy")[:30])
    assert cut.records == 30
    assert cut.dropped_tokens == whole.tokens - 120


def test_a_shard_that_fails_leaves_nothing(tmp_path: Path, processor: Any) -> None:
    def texts() -> Any:
        yield "the cat " * 200_000
        raise RuntimeError("damaged")

    with pytest.raises(RuntimeError, match="damaged"):
        token_records.write_shard(tmp_path / "a.npy", texts(), processor, 4)
    assert list(tmp_path.iterdir()) == []
