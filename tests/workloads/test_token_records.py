"""Token records: packed without loss, read by number; their vocabulary and its special ids."""

import hashlib
import io
import json
import os
import pickle
import re
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest
import sentencepiece
from hypothesis import strategies as st

from tests.workloads.small_directories import REPAIR, ROWS, write_tokens
from workloads.base.errors import DataError
from workloads.storage import arrow_tokens, token_records, tokenizer
from workloads.storage.arrow_tokens import ArrowTokens
from workloads.text.corpora.large_corpora import C4


@pytest.fixture
def directory(tmp_path: Path, spm_model: bytes) -> Path:
    write_tokens(tmp_path, spm_model)
    return tmp_path


def _open(directory: Path, split: str = "train") -> ArrowTokens:
    return token_records.open_split(directory, split, REPAIR)


def test_records_come_back_by_number_over_all_shards(directory: Path) -> None:
    """In another process, too; files are mapped and not kept open."""
    split = _open(directory)
    assert (len(split), split.length, split.vocabulary) == (9, 6, 330)
    for number in (8, 0, 3, 4):
        record = split[number]
        assert list(record) == ["tokens"]
        assert record["tokens"].dtype == np.int32
        assert record["tokens"].tolist() == ROWS[number].tolist()
        record["tokens"][:] = 0  # a copy
        assert split[number]["tokens"].tolist() == ROWS[number].tolist()
    opened = [os.path.realpath(path) for path in Path("/proc/self/fd").iterdir()]
    assert not any(path.startswith(str(directory)) for path in opened)
    assert _open(directory, "test")[0]["tokens"].tolist() == ROWS[9].tolist()
    for number in (9, -1):
        with pytest.raises(IndexError, match=f"sequence {number} asked, there are 9"):
            split[number]
    sent = pickle.dumps(split)
    assert len(sent) < 2000
    assert pickle.loads(sent)[7]["tokens"].tolist() == ROWS[7].tolist()


def test_the_former_format_is_refused_with_the_command(tmp_path: Path) -> None:
    info = {"format": "attnperf token records", "version": 1, "length": 1024, "splits": {}}
    (tmp_path / "tokens.json").write_text(json.dumps(info))
    with pytest.raises(DataError, match=r"tokens\.json cannot be read.*\n.*remove .*prepare c4_lm"):
        C4.prepare(tmp_path)


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


def _write(folder: Path, texts: Any, processor: Any, length: int, most: int | None = None) -> Any:
    shard = token_records.write_shard(folder, "a/0.arrow", iter(texts), processor, length, most)
    arrow_tokens.write_state(folder / "a", ["0.arrow"])
    rows = [record["tokens"] for record in ArrowTokens(folder / "a", length, 330, REPAIR)]
    assert shard.sha256 == hashlib.sha256(np.array(rows, "<u2").tobytes()).hexdigest()
    return shard, np.array(rows)


def test_a_shard_holds_what_was_tokenised(
    tmp_path: Path, processor: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_records, "_BATCH_CHARACTERS", 10)
    texts = ["the cat sat on a mat", "", "look at values", "你"]
    shard, rows = _write(tmp_path, texts, processor, 5)
    stream = _stream([processor.encode(text) for text in texts])
    assert rows.shape == (len(stream) // 5, 5)
    assert rows.ravel().tolist() == stream[: rows.size]
    assert (shard.records, shard.documents, shard.empty_documents) == (len(rows), 4, 1)
    assert (shard.tokens, shard.dropped_tokens) == (len(stream), len(stream) % 5)
    assert shard.unknown_tokens == 0
    # Cut, after several batches.
    cut, first = _write(tmp_path, texts, processor, 5, 3)
    np.testing.assert_array_equal(first, rows[:3])
    assert (cut.records, cut.dropped_tokens) == (3, len(stream) - 15)


def test_unknown_tokens_are_counted(tmp_path: Path) -> None:
    model = tokenizer.train(["a cat sat on the mat by the sea"] * 20, 18)
    small = sentencepiece.SentencePieceProcessor(model_proto=model)
    shard, _ = _write(tmp_path, ["a 你 cat 好 sat"], small, 2)
    assert shard.unknown_tokens == 2


TEXTS = ["a cat sat on the mat by the sea"] * 20


def test_special_ids(spm_model: bytes) -> None:
    processor = sentencepiece.SentencePieceProcessor(model_proto=spm_model)
    assert [processor.id_to_piece(number) for number in range(4)] == [
        "<pad>",
        "</s>",
        "<unk>",
        "<mask>",
    ]
    assert processor.bos_id() == -1
    assert 3 not in processor.encode("a <mask> b")
    assert processor.vocab_size() == 330
    # Bytes stand for unknown characters.
    assert processor.decode(processor.encode("你")) == "你"
    without_bytes = tokenizer.train(TEXTS, 17)
    assert tokenizer.train(iter(TEXTS), 17) == without_bytes
    small = sentencepiece.SentencePieceProcessor(model_proto=without_bytes)
    assert tokenizer.UNK in small.encode("你")


def test_a_long_text_counts_whole() -> None:
    """SentencePiece would drop a sentence of 80,000 bytes."""
    filler = "a cat " * 13_000
    processor = sentencepiece.SentencePieceProcessor(
        model_proto=tokenizer.train([filler + "zebra " * 2000 + "q" * 5000], 14)
    )
    assert tokenizer.UNK not in processor.encode("zebra q")
    assert max(map(len, tokenizer._sentences([filler, "q" * 9000]))) <= 4000


def test_too_few_texts_are_refused_and_words_may_be_symbols(tmp_path: Path) -> None:
    path = tmp_path / "other.model"
    path.write_bytes(tokenizer.trained(TEXTS, 18, user_defined_symbols=["cat", "."]))
    assert "cat" in tokenizer.read_processor(path).encode("a cat.", out_type=str)
    with pytest.raises(DataError, match="cannot train 500 pieces"):
        tokenizer.train(TEXTS, 500)


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ({}, "special ids are .*'pad': -1.* bos 1; they must be"),
        ({"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}, "'mask': -1}, bos -1; they must"),
    ],
)
def test_a_model_with_other_ids_is_refused(
    tmp_path: Path, ids: dict[str, int], message: str
) -> None:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS), model_writer=model, vocab_size=16, minloglevel=2, **ids
    )
    (tmp_path / "other.model").write_bytes(model.getvalue())
    with pytest.raises(DataError, match=message):
        tokenizer.load(tmp_path / "other.model")


@pytest.mark.parametrize("kind", ["unigram", "bpe", "char"])
@pytest.mark.parametrize(
    ("symbol", "settings"),
    [
        ("<mask>", {}),
        ("<s>", {}),
        ("<pad>", {"pad_id": 0, "unk_id": 1, "bos_id": 2, "eos_id": 3}),
        ("</s>", {}),
        ("[CLS]", {}),
        ("<|endoftext|>", {}),
    ],
)
def test_symbols_that_text_could_write_are_refused(
    tmp_path: Path, symbol: str, settings: dict[str, Any], kind: str
) -> None:
    path = tmp_path / "other.model"
    for option in ("user_defined_symbols", "control_symbols"):
        symbols = {option: [symbol]}
        path.write_bytes(
            tokenizer.trained(
                TEXTS, 19, model_type=kind, hard_vocab_limit=False, **symbols, **settings
            )
        )
        if option == "user_defined_symbols":
            with pytest.raises(DataError, match=rf"letters {re.escape(symbol)} becomes"):
                tokenizer.read_processor(path)
        else:
            processor = tokenizer.read_processor(path)
            ids = processor.encode(f"a {symbol} cat{symbol}")
            assert processor.piece_to_id(symbol) not in ids
