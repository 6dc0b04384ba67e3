"""Stored records: token records with their vocabulary, TFRecord files and TFDS directories.

Token records are packed without loss, read by number; their vocabulary has its special ids. Of
TFRecord files and TFDS directories: framing, checksums, the index, what is refused.
"""

import hashlib
import io
import json
import logging
import os
import pickle
import re
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentencepiece
import tensorflow_datasets as tfds
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from attention.common import machine
from tests.workloads import data_files
from tests.workloads.small_directories import (
    EXAMPLES,
    PICTURES,
    REPAIR,
    ROWS,
    open_pictures,
    write_pictures,
    write_tokens,
)
from workloads.base.errors import DataError
from workloads.storage import arrow_tokens, tfds_directory, tfrecord, token_records, tokenizer
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


@given(DOCUMENTS, st.integers(1, 9), st.integers(1, 13))
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
            assert processor.piece_to_id(symbol) not in processor.encode(f"a {symbol} cat{symbol}")


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    return write_pictures(tmp_path / "data")


def test_examples_come_back_by_number_as_the_library_parses_them(pictures: Path) -> None:
    split = open_pictures(pictures)
    assert len(split) == 20
    assert split.num_classes == 7
    info = tfds.builder_from_directory(pictures).info
    assert f"{info.name}/{info.config_name}:{info.version}" == PICTURES
    assert info.splits["train"].shard_lengths == [7, 7, 6]
    features = info.features
    skip = {"image": tfds.decode.SkipDecoding()}
    for number in np.random.default_rng(1).permutation(20).tolist():
        image_and_label = {name: EXAMPLES[number][name] for name in ("image", "label")}
        assert split[number] == image_and_label
        parsed = features.deserialize_example_np(split.serialized(number), decoders=skip)
        assert parsed == {**image_and_label, "file_name": f"{number}.png".encode()}
    with pytest.raises(IndexError, match="example 20 asked, there are 20"):
        split[20]


def test_writing_again_replaces_what_is_there(pictures: Path, tmp_path: Path) -> None:
    (pictures / "imagenet_v2-train.tfrecord-00001-of-00003").unlink()
    (pictures / "imagenet_v2-train.tfrecord-00000-of-00001").touch()
    write_pictures(tmp_path / "data")
    assert open_pictures(pictures)[19]["label"] == 5
    assert not (pictures / "imagenet_v2-train.tfrecord-00000-of-00001").exists()


def test_what_is_half_written_is_refused(pictures: Path, tmp_path: Path) -> None:
    broken = [*EXAMPLES[:2], {**EXAMPLES[0], "label": 7}]
    with pytest.raises(ValueError, match="7"):
        write_pictures(tmp_path / "data", broken)
    with pytest.raises(DataError, match="has no dataset_info.json"):
        open_pictures(pictures)


def test_array_record_is_read_alike_and_its_damage_noticed(pictures: Path) -> None:
    from array_record.python import array_record_module

    for path in sorted(pictures.glob("*.tfrecord-*")):
        writer = array_record_module.ArrayRecordWriter(
            str(path).replace("tfrecord", "array_record"), "group_size:1"
        )
        for record in tfrecord.TFRecordFile(path):
            writer.write(record)
        writer.close()
        path.unlink()
    edit = data_files.edited(lambda info: info.update(fileFormat="array_record"))
    edit(pictures / "dataset_info.json")
    split = open_pictures(pictures)
    assert split.file_format == "array_record"
    sent = pickle.loads(pickle.dumps(split))
    for number in (19, 0, 7, 6):
        assert split[number] == {k: EXAMPLES[number][k] for k in ("image", "label")}
        assert sent[number] == split[number]
    data_files.flip(pictures / "imagenet_v2-train.array_record-00000-of-00003", 100)
    with pytest.raises(DataError, match="record 0 cannot be read"):
        open_pictures(pictures)[0]


def test_the_place_says_the_configuration_of_a_data_set_prepared_before_2020(
    pictures: Path, tmp_path: Path
) -> None:
    for name in ("configName", "configDescription"):
        forget = data_files.edited(lambda info, name=name: info.pop(name, None))
        forget(pictures / "dataset_info.json")
    assert open_pictures(pictures).dataset == PICTURES
    for elsewhere in ("other/matched-frequency/3.0.0", "imagenet_v2/3.0.0"):
        copy = tmp_path / "elsewhere" / elsewhere
        shutil.copytree(pictures, copy)
        with pytest.raises(DataError, match=r"this is data set imagenet_v2:3\.0\.0, not"):
            open_pictures(copy)
    builder = tfds.builder_from_directory(pictures)
    for shallow in ("/", "/data"):
        assert tfds_directory._full_name(builder, Path(shallow)) == "imagenet_v2:3.0.0"


# What TensorFlow 2.21's TFRecordWriter wrote for the records b"abc" and b"".
WRITTEN_BY_TENSORFLOW = bytes.fromhex(
    "0300000000000000b099490e6162636e57f121000000000000000029039807d8ea82a2"
)
RECORDS = [b"abc", b"", bytes(range(256)) * 3, b"last"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    tfrecord.write_tfrecord(tmp_path / "some.tfrecord", RECORDS)
    return tmp_path / "some.tfrecord"


def _read(path: Path) -> list[bytes]:
    return list(tfrecord.TFRecordFile(path))


def _npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def test_files_are_the_bytes_that_tensorflow_writes(tmp_path: Path) -> None:
    """Where the name is none that the locale can read: `é` as Python has it under LC_ALL=C."""
    # CRC-32C of "123456789" is 0xE3069283 (the check value of the Castagnoli polynomial); rotated
    # right by 15 bits it is 0x2507C60D, and adding 0xA282EAD8 gives 0xC78AB0E5.
    assert tfrecord.masked_crc32c(b"123456789") == 0xC78AB0E5
    path = tmp_path / os.fsdecode(b"\xff\xe9.tfrecord")
    tfrecord.write_tfrecord(path, [b"abc", b""])
    assert path.read_bytes() == WRITTEN_BY_TENSORFLOW
    assert list(tmp_path.iterdir()) == [path]
    assert _read(path) == [b"abc", b""]
    assert list(machine.cache_folder().rglob("*.npy"))


def test_records_come_back_by_number_in_any_order(path: Path) -> None:
    file = tfrecord.TFRecordFile(path)
    assert len(file) == 4
    assert [file[number] for number in (3, 0, 2, 1)] == [b"last", b"abc", RECORDS[2], b""]
    np.testing.assert_array_equal(file.offsets, [0, 19, 35, 35 + 768 + 16, path.stat().st_size])
    with pytest.raises(IndexError, match="record 4 asked, the file has 4"):
        file[4]
    assert list(pickle.loads(pickle.dumps(file))) == RECORDS


@given(place=st.integers(0, 10**6), change=st.integers(1, 255))
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_changed_byte_never_goes_unnoticed(tmp_path: Path, place: int, change: int) -> None:
    path = tmp_path / "changed.tfrecord"
    tfrecord.write_tfrecord(path, RECORDS)
    content = bytearray(path.read_bytes())
    content[place % len(content)] ^= change
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"changed\.tfrecord: record \d at byte \d+"):
        _read(path)


@given(size=st.integers(0, 10**6))
@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_cut_file_is_noticed_unless_cut_between_records(tmp_path: Path, size: int) -> None:
    path = tmp_path / "cut.tfrecord"
    tfrecord.write_tfrecord(path, RECORDS)
    ends = tfrecord.scan_offsets(str(path)).tolist()
    size %= ends[-1]
    os.truncate(path, size)
    if size in ends:
        assert _read(path) == RECORDS[: ends.index(size)]
    else:
        with pytest.raises(DataError, match=r"record \d at byte \d+ is cut off"):
            tfrecord.scan_offsets(str(path))


@pytest.mark.parametrize("length", [2**63, 2**64 - 1, 2**45])
@pytest.mark.parametrize(
    "read", [tfrecord.scan_offsets, lambda path: list(tfrecord.stream(path)), _read]
)
def test_a_length_beyond_the_file_is_named(
    path: Path, length: int, read: Callable[[str], object]
) -> None:
    """Its checksum is right."""
    header = tfrecord.HEADER.pack(length, tfrecord.masked_crc32c(struct.pack("<Q", length)))
    path.write_bytes(header + bytes(100))
    with pytest.raises(DataError, match="record 0 at byte 0 is cut off"):
        read(str(path))


def test_a_file_changed_behind_a_cached_index_is_noticed(path: Path) -> None:
    assert _read(path)[0] == b"abc"
    tfrecord.write_tfrecord(path, [b"xyz", *RECORDS[1:]])
    assert _read(path)[0] == b"xyz"
    status = path.stat()
    swapped = [*RECORDS[:2], RECORDS[3], RECORDS[2]]
    path.write_bytes(b"".join(map(tfrecord.framed, swapped)))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    with pytest.raises(DataError, match="record 2 at byte 35 has a length other than"):
        _read(path)


@pytest.mark.parametrize(
    "damage", [b"", b"not an array", b"\x93NUMPY", _npy(np.zeros(0, np.int64)), _npy(np.arange(5))]
)
def test_a_damaged_cache_entry_is_replaced(
    path: Path, damage: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    _read(path)
    (entry,) = machine.cache_folder().rglob("*.npy")
    with monkeypatch.context() as patch:
        patch.setattr(tfrecord, "scan_offsets", None)  # a scan would now fail
        assert _read(path) == RECORDS
    good = entry.read_bytes()
    entry.write_bytes(damage)
    assert _read(path) == RECORDS
    assert entry.read_bytes() == good


def test_an_unwritable_cache_is_told_once(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tfrecord._warn_once.cache_clear()
    monkeypatch.setenv("ATTNPERF_CACHE", str(path))  # a file, so no folder can be made below it
    with caplog.at_level(logging.WARNING):
        assert _read(path) == RECORDS
        assert _read(path) == RECORDS
    (message,) = caplog.messages
    assert "cannot be written" in message
    assert "ATTNPERF_CACHE" in message
