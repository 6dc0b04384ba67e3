"""FineWeb-Edu as AlgoPerf prepares it, and the small data set in its form.

AlgoPerf tokenises with GPT-2's vocabulary of 50,257 and saves Arrow files with `datasets`, in the
folders `train` and `val` (datasets/dataset_setup.py). Its loader
(algoperf/workloads/finewebedu_lm/input_pipeline.py at a6ce1da) cuts the stream of all tokens into
sequences of 1,025: inputs are the first 1,024, targets the last. There is no test split.

`pydoc_finewebedu` has Python's own documentation in the same form, cut to 65 tokens: documents,
roles and tokenizer are those of `workloads.text.corpora.pydoc_text`; its test part is left out.
"""

import math
import os
import platform
from pathlib import Path
from typing import Any

import numpy as np

from attention.common import files
from workloads.base.errors import DataError, repair_commands
from workloads.storage import arrow_tokens, preparation, tokenizer
from workloads.storage.arrow_tokens import ArrowTokens
from workloads.text.corpora import pydoc_text

FOLDERS = {"train": "train", "validation": "val"}
# Vocabulary and context of each workload.
_SHAPES = {
    "finewebedu_lm": (50_257, 1024),
    "pydoc_finewebedu": (pydoc_text.VOCAB_SIZE, pydoc_text.LENGTH),
}
_SAMPLE = 32  # sequences
# Sequences of the small data set, which every Python from 3.11 to 3.13 has.
SMALL = {"train": 6600, "validation": 850}
NOTE = f"{pydoc_text.NOTE} As Arrow files of token ids, without the test part."


class Finewebedu:
    """The data of `finewebedu_lm`, and what `pydoc_finewebedu` has in common with them."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.vocabulary, self.context = _SHAPES[name]

    def repair(self, data_dir: str | os.PathLike[str]) -> str:
        """Returns what makes the data."""
        return (
            "prepare it with AlgoPerf's `python3 datasets/dataset_setup.py --finewebedu`, and "
            "give the folder that holds `train` and `val` as data_dir; then run "
            f"python -m workloads check {self.name} --data_dir={files.quoted(data_dir)}"
        )

    def sequences(self, split: str, data_dir: str | os.PathLike[str]) -> ArrowTokens:
        """Returns the sequences of a split, each one token longer than the context.

        Raises DataError where they are absent or damaged.
        """
        folder = Path(data_dir) / FOLDERS[split]
        return ArrowTokens(folder, self.context + 1, self.vocabulary, self.repair(data_dir))

    def check(self, data_dir: str | os.PathLike[str], full: bool = False) -> list[str]:
        """Returns a line per split; raises DataError at the first thing amiss.

        With `full` every token is read, else those of a sample.
        """
        splits = {split: self.sequences(split, data_dir) for split in FOLDERS}
        for tokens in splits.values():
            for number in range(0, len(tokens), 1 if full else len(tokens) // _SAMPLE + 1):
                tokens[number]
        return [f"{split}: {len(tokens):,} sequences" for split, tokens in splits.items()]

    def describe(self, data_dir: str | os.PathLike[str]) -> list[Any]:
        """Returns what tells the splits of a directory from others, as `ArrowTokens.describe`."""
        return [self.sequences(split, data_dir).describe() for split in FOLDERS]

    def prepare(self, data_dir: str | os.PathLike[str], manual_dir: str = "") -> Path:
        """Raises DataError: AlgoPerf prepares these data."""
        del manual_dir
        raise DataError(f"{data_dir}: {self.name} has no data of ours", self.repair(data_dir))


class PydocFinewebedu(Finewebedu):
    """The data of `pydoc_finewebedu`."""

    def repair(self, data_dir: str | os.PathLike[str]) -> str:
        return repair_commands(self.name, data_dir)

    def check(self, data_dir: str | os.PathLike[str], full: bool = True) -> list[str]:
        """Returns lines about the data, all of which are read whatever `full` says."""
        lines = super().check(data_dir, full)
        digest, stored = self._sha256(data_dir), self.read_reference(data_dir)
        repair = self.repair(data_dir)
        preparation.check_digest(data_dir, "the tokens", digest, stored.get("sha256"), repair)
        return [*lines, f"text of Python {stored.get('python')}, SHA-256 {digest}"]

    def read_reference(self, data_dir: str | os.PathLike[str]) -> dict[str, Any]:
        """Returns `reference.json`: `note`, `rows` of simple predictors, `sha256`, `python`."""
        return preparation.read_reference(data_dir, self.repair(data_dir))

    def prepare(self, data_dir: str | os.PathLike[str], manual_dir: str = "") -> Path:
        """Writes the data below `data_dir` unless they are there; returns `data_dir`."""
        del manual_dir
        return preparation.prepare_once(data_dir, self.check, self._write)

    def _write(self, data_dir: Path) -> None:
        preparation.claim(data_dir, NOTE, [preparation.REFERENCE_FILE, *FOLDERS.values()])
        parts = pydoc_text.split_documents(pydoc_text.documents())
        texts = (document.text for document in parts["train"])
        model = tokenizer.train(texts, self.vocabulary)
        files.write(data_dir / "spm.model", model)
        processor = tokenizer.load(data_dir / "spm.model")
        for split, folder in FOLDERS.items():
            encoded = [
                [*processor.encode(document.text), tokenizer.EOS] for document in parts[split]
            ]
            arrow_tokens.write(
                data_dir / folder, _first(encoded, SMALL[split] * (self.context + 1))
            )
        # What is predicted: sequences without their first token.
        records = {split: rows[:, 1:] for split, rows in self._tokens(data_dir).items()}
        rows = [
            {**row, **{f"{split}/ppl": math.exp(row[f"{split}/loss"]) for split in FOLDERS}}
            for row in pydoc_text.reference_rows(records, self.vocabulary)
        ]
        preparation.write_reference(
            data_dir,
            NOTE,
            rows,
            sha256=self._sha256(data_dir),
            python=platform.python_version(),
        )

    def _tokens(self, data_dir: str | os.PathLike[str]) -> dict[str, np.ndarray]:
        """Returns all sequences of each split, int32 [N, L + 1]."""
        opened = {split: self.sequences(split, data_dir) for split in FOLDERS}
        return {
            split: np.stack([tokens[n]["tokens"] for n in range(len(tokens))])
            for split, tokens in opened.items()
        }

    def _sha256(self, data_dir: str | os.PathLike[str]) -> str:
        """Returns the SHA-256 of the tokens, split by split, as little-endian int32."""
        return pydoc_text.content_sha256(self._tokens(data_dir), "<i4")


def _first(documents: list[list[int]], count: int) -> list[list[int]]:
    """Returns the documents of the first `count` tokens. Raises DataError where there are fewer."""
    kept = []
    for document in documents:
        kept.append(document[:count])
        count -= len(kept[-1])
        if not count:
            return kept
    raise DataError(
        f"the text of Python {platform.python_version()} is {count:,} tokens too short",
        "use Python 3.11, 3.12 or 3.13 with its whole standard library",
    )
