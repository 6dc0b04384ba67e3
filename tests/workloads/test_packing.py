"""Packing: no token is lost, added or moved, however the documents arrive."""

from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest
import sentencepiece
from hypothesis import strategies as st

from workloads.storage import packing, token_records, tokenizer

DOCUMENTS = st.lists(st.lists(st.integers(0, 49), max_size=12), max_size=12)


def _stream(documents: list[list[int]]) -> list[int]:
    return [token for document in documents for token in [*document, 1]]


@hypothesis.given(DOCUMENTS, st.integers(1, 9))
def test_records_and_tail_are_the_documents_with_separators(
    documents: list[list[int]], length: int
) -> None:
    rows, tail = packing.packed(packing.EMPTY, documents, length)
    assert rows.dtype == np.uint16
    assert rows.shape[1] == length
    assert [*rows.ravel().tolist(), *tail.tolist()] == _stream(documents)
    assert len(tail) < length


@hypothesis.given(DOCUMENTS, st.integers(1, 9), st.integers(1, 4))
def test_batches_of_documents_change_nothing(
    documents: list[list[int]], length: int, size: int
) -> None:
    rows, whole_tail = packing.packed(packing.EMPTY, documents, length)
    pieces, tail = [rows[:0]], packing.EMPTY
    for i in range(0, len(documents), size):
        piece, tail = packing.packed(tail, documents[i : i + size], length)
        pieces.append(piece)
    assert np.concatenate(pieces).tolist() == rows.tolist()
    assert tail.tolist() == whole_tail.tolist()


@pytest.fixture(scope="module")
def processor(spm_model: bytes) -> Any:
    return sentencepiece.SentencePieceProcessor(model_proto=spm_model)


def test_a_shard_holds_what_was_tokenised(
    tmp_path: Path, processor: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packing, "_BATCH_CHARACTERS", 30)
    texts = ["the cat sat on a mat", "", "look at values", "你"]
    counts = packing.write_shard(tmp_path / "a.npy", iter(texts), processor, 5)
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
    counts = packing.write_shard(tmp_path / "a.npy", ["a 你 cat 好 sat"], small, 2)
    assert counts.unknown_tokens == 2


def test_a_shard_can_be_cut(
    tmp_path: Path, processor: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packing, "_BATCH_CHARACTERS", 50)  # several batches before the cut
    texts = ["the cat sat on a mat"] * 50
    whole = packing.write_shard(tmp_path / "whole.npy", texts, processor, 4)
    cut = packing.write_shard(tmp_path / "cut.npy", texts, processor, 4, max_records=30)
    assert np.array_equal(np.load(tmp_path / "cut.npy"), np.load(tmp_path / "whole.npy")[:30])
    assert cut.records == 30
    assert cut.dropped_tokens == whole.tokens - 120


def test_a_shard_that_fails_leaves_nothing(tmp_path: Path, processor: Any) -> None:
    def texts() -> Any:
        yield "the cat " * 200_000
        raise RuntimeError("damaged")

    with pytest.raises(RuntimeError, match="damaged"):
        packing.write_shard(tmp_path / "a.npy", texts(), processor, 4)
    assert list(tmp_path.iterdir()) == []
