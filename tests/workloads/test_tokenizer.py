"""The vocabulary: its special ids, long texts, and models that were made elsewhere."""

import io
import re
from pathlib import Path
from typing import Any

import pytest
import sentencepiece

from workloads.base.errors import DataError
from workloads.storage import tokenizer

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
