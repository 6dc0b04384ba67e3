"""SentencePiece vocabularies: trained from texts, loaded, told apart by their SHA-256.

Unigram models with the ids that token records share: 0 `<pad>`, 1 `</s>` (separator of documents),
2 `<unk>`, 3 `<mask>`, a control symbol that no text is ever encoded to; there is no `<s>`. Text is
normalised by `nmt_nfkc`, which also turns line breaks and runs of blanks into one blank.
"""

import io
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from workloads.base.errors import DataError

PAD, EOS, UNK, MASK = range(4)
SPECIAL_IDS = {"pad": PAD, "eos": EOS, "unk": UNK, "mask": MASK}
FIRST_ORDINARY = len(SPECIAL_IDS)
MASK_PIECE = "<mask>"
# How trainers spell symbols that are no text: <mask>, <|endoftext|>, [PAD].
_SYMBOL = re.compile(r"<.+>|\[.+\]")
# The trainer drops longer sentences without an error; texts are cut at blanks to stay below.
_MAX_BYTES = 4000


def train(
    texts: Iterable[str], vocab_size: int, *, byte_fallback: bool = False, num_threads: int = 1
) -> bytes:
    """A serialized model of exactly `vocab_size` pieces; the same texts give the same bytes.

    With `byte_fallback`, 256 of the pieces are bytes, so that nothing is unknown and no text is
    cheap because of it: right for 32,000 pieces, a quarter of the vocabulary for 1024.
    `num_threads` changes the order of the trainer's sums and so the model, however many CPUs there
    are: leave it fixed. Raises DataError where the texts do not yield so many pieces.
    """
    return trained(
        _sentences(texts),
        vocab_size,
        byte_fallback=byte_fallback,
        character_coverage=0.9995,
        pad_id=PAD,
        eos_id=EOS,
        unk_id=UNK,
        bos_id=-1,
        control_symbols=[MASK_PIECE],
        num_threads=num_threads,
        max_sentence_length=8 * _MAX_BYTES,
    )


def trained(sentences: Iterable[str], vocab_size: int, **settings: Any) -> bytes:
    """A serialized model with SentencePiece's own `settings`, unigram unless they say otherwise.

    Raises DataError where the sentences do not yield so many pieces.
    """
    import sentencepiece

    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(sentences),
            model_writer=model,
            vocab_size=vocab_size,
            minloglevel=2,
            **{"model_type": "unigram", **settings},
        )
    except (RuntimeError, OSError) as problem:
        raise DataError(f"SentencePiece cannot train {vocab_size} pieces: {problem}") from problem
    return model.getvalue()


def _sentences(texts: Iterable[str]) -> Iterator[str]:
    """Lines of the texts, long ones in parts of at most about 4000 characters."""
    for text in texts:
        for line in text.splitlines():
            while len(line) > _MAX_BYTES:
                end = line.rfind(" ", 0, _MAX_BYTES)
                end = end if end > 0 else _MAX_BYTES
                yield line[:end]
                line = line[end:]
            if line.strip():
                yield line


def load(path: str | os.PathLike[str], repair: str = "") -> Any:
    """The `SentencePieceProcessor` of a file; DataError unless it has the four ids above."""
    processor = read_processor(path, repair)
    mask = processor.piece_to_id(MASK_PIECE)
    ids = {
        "pad": processor.pad_id(),
        "eos": processor.eos_id(),
        "unk": processor.unk_id(),
        "mask": mask if processor.id_to_piece(mask) == MASK_PIECE else -1,
    }
    if ids != SPECIAL_IDS or processor.bos_id() != -1:
        raise DataError(
            f"{path}: special ids are {ids}, bos {processor.bos_id()}; they must be "
            f"{SPECIAL_IDS} and no bos (-1). {MASK_PIECE!r} is a control symbol",
            repair or "train the vocabulary with workloads.storage.tokenizer.train",
        )
    return processor


def read_processor(path: str | os.PathLike[str], repair: str = "") -> Any:
    """The `SentencePieceProcessor` of a file, which can be pickled.

    Raises DataError if it is no model, or if text could write its symbols.
    """
    import sentencepiece

    model = read(path, repair)
    try:
        processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        processor.id_to_piece(0)  # an empty file is taken for a model without pieces
    except (RuntimeError, OSError, IndexError) as problem:
        raise DataError(f"{path} is no SentencePiece model: {problem}", repair) from problem
    # Pieces with the score 0 are those that the trainer was given, and text is encoded to those of
    # them that are of none of these kinds.
    kinds = (processor.is_control, processor.is_unknown, processor.is_byte, processor.is_unused)
    symbols = [
        piece
        for number, piece in enumerate(processor.id_to_piece(list(range(len(processor)))))
        if _SYMBOL.fullmatch(piece)
        and processor.get_score(number) == 0
        and not any(is_kind(number) for is_kind in kinds)
    ]
    if symbols:
        raise DataError(
            f"{path}: text that holds the letters {' or '.join(symbols)} becomes the symbol",
            "train the vocabulary with --control_symbols instead of --user_defined_symbols"
            f"{repair and '; or '}{repair}",
        )
    return processor


def read(path: str | os.PathLike[str], repair: str = "") -> bytes:
    """The file's bytes; DataError where it cannot be read."""
    try:
        return Path(path).read_bytes()
    except OSError as problem:
        raise DataError(f"{path}: the tokenizer cannot be read: {problem}", repair) from problem
