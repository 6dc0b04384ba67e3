"""The SentencePiece model of a speech directory: `spm_model.vocab`, as AlgoPerf names it.

Despite its name the file is a model, not a list of pieces. The ids are SentencePiece's defaults:
0 `<unk>`, which also is CTC's blank, 1 `<s>`, 2 `</s>`.
"""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import sentencepiece

from workloads.base.errors import DataError
from workloads.storage import tokenizer

FILE_NAME = "spm_model.vocab"
BLANK = 0


def load(
    data_dir: str | os.PathLike[str], vocab_size: int, repair: str
) -> sentencepiece.SentencePieceProcessor:
    """The tokenizer of a directory, which can be pickled.

    Raises DataError if it is missing, no SentencePiece model, of another size, or if id 0 is not
    the unknown piece.
    """
    path = Path(data_dir) / FILE_NAME
    processor: sentencepiece.SentencePieceProcessor = tokenizer.read_processor(path, repair)
    sizes = processor.vocab_size(), processor.unk_id(), processor.eos_id()
    if sizes[:2] != (vocab_size, BLANK) or sizes[2] < 0:
        raise DataError(
            f"{path} has {sizes[0]} pieces, unknown id {sizes[1]}, end-of-sentence id {sizes[2]}; "
            f"{vocab_size} pieces, unknown id {BLANK} (the blank) and an end are expected",
            repair,
        )
    return processor


def train(texts: Iterable[str], vocab_size: int, **settings: Any) -> bytes:
    """A unigram model of exactly `vocab_size` pieces over these texts, as the file holds it.

    Character coverage is 1; every other setting but `settings` and the silence of its log is the
    library's own, as in AlgoPerf. Raises DataError where the texts do not give so many pieces.
    """
    return tokenizer.trained(texts, vocab_size, character_coverage=1.0, **settings)


def encode(processor: sentencepiece.SentencePieceProcessor, text: str) -> list[int]:
    """The ids of a text with the end-of-sentence id, as AlgoPerf stores them."""
    return [*processor.encode(text), processor.eos_id()]


def decode(processor: sentencepiece.SentencePieceProcessor, ids: Iterable[int]) -> str:
    """The text of ids; those of control pieces (the end, the beginning) and 0 give nothing."""
    return processor.decode([int(number) for number in ids if number != BLANK])
