"""The small data sets beside C4 and Wikipedia: texts of this Python's own installation, as tokens.

A document of Python's documentation is one topic of `pydoc_data.topics`, or all docstrings of one
source file of the standard library in the order they stand in. Sources are parsed, never imported.
What not every installation has (tests, tkinter, idlelib, ensurepip), what a later Python dropped
with its directory (lib2to3, distutils) and the tables of encodings are left out. Text differs
between Python versions, patch releases included, and so do losses on it.

`PYDOC` is the data of pydoc_lm and pydoc_bert, records of 64 tokens. `PYDOC_FINEWEBEDU` has the
same text in sequences of 65 tokens, as AlgoPerf's decoder takes them, without the test part.
`PYSOURCE` has the same source files whole, five times as much text: a document is one file, code
and comments, with each run of blanks as one.

The documents are taken in the order of the SHA-256 of their names: the first tenth of the
characters is the test part, the second validation, the rest train. No document and no paragraph is
in two of them. The vocabulary is trained on the train part alone. Each split is cut to a fixed
number of records, which every Python from 3.11 to 3.13 has.

Reference rows for language models are token frequencies and pairs of neighbours, both fitted on the
train records. The pair model is p(b | a) = (n(a, b) + λ p(b)) / (n(a) + λ), with
p(b) = (n(b) + 1) / (n + V) (MacKay & Peto 1995, eq. 3: a Dirichlet prior around the single
frequencies). Before the first token of a record stands the separator, as in a decoder's input.
"""

import ast
import gc
import hashlib
import importlib.util
import inspect
import itertools
import math
import os
import platform
import re
import sysconfig
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from attention.common import files
from workloads.base.errors import DataError
from workloads.storage import small_data, token_records, tokenizer

LEFT_OUT = {
    # Not everywhere.
    *("ensurepip", "idlelib", "test", "tests", "tkinter", "turtledemo"),
    # Dropped by later versions.
    *("distutils", "lib2to3"),
    # No part of the library, and tables.
    *("__phello__", "__pycache__", "dist-packages", "lib-dynload", "site-packages"),
    *("encodings", "pydoc_data"),
}
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_BLANK_LINE = re.compile(r"\n\s*\n")


@dataclass(frozen=True)
class Document:
    """`name` is `topic:NAME` or a source file's path below the library; paragraphs as lines."""

    name: str
    text: str


def documents() -> list[Document]:
    """All documents, topics first, each group sorted by name; no paragraph occurs twice.

    A paragraph that stands in several documents stays in the first (without this, 13 % of the
    validation characters stood in train too). Raises DataError where the installation has no
    `pydoc_data`.
    """
    return deduplicated(itertools.chain(_topics(), _library(_documentation)))


def source_documents() -> list[Document]:
    """Returns the library's source files, sorted by name; no paragraph occurs twice."""
    return deduplicated(_library(importlib.util.decode_source))


def deduplicated(texts: Iterable[tuple[str, str]]) -> list[Document]:
    """Documents from (name, text): paragraphs on one line each, later copies of one dropped.

    Copies are found by their letters and digits alone; paragraphs without any are dropped, and so
    are documents that nothing is left of.
    """
    known: set[str] = set()
    kept = []
    for name, text in texts:
        paragraphs = []
        for paragraph in _BLANK_LINE.split(text):
            key = "".join(filter(str.isalnum, paragraph)).lower()
            if key and key not in known:
                known.add(key)
                paragraphs.append(" ".join(paragraph.split()))
        if paragraphs:
            kept.append(Document(name, "\n".join(paragraphs)))
    return kept


def _topics() -> Iterator[tuple[str, str]]:
    try:
        from pydoc_data import topics
    except ImportError as problem:
        raise DataError(
            f"this Python has no help topics: {problem}", "install the whole standard library"
        ) from problem
    return ((f"topic:{name}", topics.topics[name]) for name in sorted(topics.topics))


def library_path() -> Path:
    """Returns where this Python's standard library lies, to which documents' names are relative."""
    return Path(sysconfig.get_path("stdlib"))


def _library(text: Callable[[bytes], str]) -> Iterator[tuple[str, str]]:
    """Returns each source file's path below the library, and the text of its bytes."""
    library = library_path()
    for path in sorted(_sources(library), key=lambda path: path.relative_to(library).as_posix()):
        yield path.relative_to(library).as_posix(), text(path.read_bytes())


def _documentation(source: bytes) -> str:
    return "\n\n".join(docstrings(source))


def _sources(library: Path) -> Iterator[Path]:
    for path in library.iterdir():
        # _sysconfigdata… and config-… are written when Python is built, sitecustomize by a site.
        name = path.name
        if name in LEFT_OUT or name.startswith(("_sysconfigdata", "config-", "sitecustomize")):
            continue
        if path.is_dir():
            yield from _sources(path)
        elif path.suffix == ".py":
            yield path


def docstrings(source: bytes) -> list[str]:
    """Docstrings of a module, its classes and functions, outer before inner, without indentation.

    Raises SyntaxError for a source that is no Python.
    """
    return [inspect.cleandoc(text) for text in _walk(syntax_tree(source))]


def syntax_tree(source: bytes) -> ast.Module:
    """Returns the syntax tree of a module. Raises SyntaxError for a source that is no Python.

    Garbage is not collected meanwhile: Python 3.11 raises SystemError where a finalizer parses,
    too, as it does when asyncio logs a lost exception (python/cpython#106905).
    """
    is_collecting = gc.isenabled()
    gc.disable()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in old sources
            return ast.parse(source)
    finally:
        if is_collecting:
            gc.enable()


def _walk(node: ast.AST) -> Iterator[str]:
    if isinstance(node, _DOCUMENTED) and (text := ast.get_docstring(node, clean=False)):
        yield text
    for child in ast.iter_child_nodes(node):
        yield from _walk(child)


VOCAB_SIZE, LENGTH = 1024, 64
# Of the token ids, split by split: for this release of Python and sentencepiece 0.2.
PINNED = {
    "3.11.7": (
        "d4d9af1d2e3037bad6f9d65db87e36d0a946f24decbe8df88ab5f62816e6dae2",
        "fe5b82559df126cb3a62b16171d46ec6888dde500e07d4fd01001664c75e4a2f",
    ),
}
_HELD_OUT = 0.1
# The weight of the prior, in tokens: the best of 10, 20, 50, 100, 200 on the validation part.
PRIOR_WEIGHT = 100.0
UNIGRAM, BIGRAM = "most frequent token", "left neighbour (smoothed bigram)"


@dataclass(frozen=True, kw_only=True)
class PydocText(small_data.SmallData):
    """Documents as token records.

    sizes: records by split; length: tokens of each; digest_type: of the ids whose SHA-256 is taken;
    documents: makes all documents, in a fixed order.
    """

    sizes: Mapping[str, int]
    length: int
    digest_type: str
    documents: Callable[[], list[Document]] = documents

    @property
    def names(self) -> list[str]:
        return [token_records.INFO_FILE, token_records.TOKENIZER_FILE, *self.sizes]

    def _write(self, data_dir: Path, content: Any) -> dict[str, Any]:
        parts = split_documents(self.documents())
        model = tokenizer.train((document.text for document in parts["train"]), VOCAB_SIZE)
        files.write(data_dir / token_records.TOKENIZER_FILE, model)
        python = platform.python_version()
        token_records.write_info(
            data_dir,
            length=self.length,
            vocab_size=VOCAB_SIZE,
            splits={split: [self._write_split(data_dir, split, parts)] for split in self.sizes},
            source={"note": self.note, "python": python},
        )
        return {"rows": self.rows(self.records(data_dir)), "python": python}

    def _write_split(
        self, data_dir: Path, split: str, parts: Mapping[str, list[Document]]
    ) -> token_records.Shard:
        processor = tokenizer.load(data_dir / token_records.TOKENIZER_FILE)
        texts = (document.text for document in parts[split])
        name, size = token_records.file_name(split, 0, 1), self.sizes[split]
        shard = token_records.write_shard(data_dir, name, texts, processor, self.length, size)
        if shard.records != size:
            raise DataError(
                f"the text of Python {platform.python_version()} gives {shard.records} records for "
                f"{split}; {size} are needed",
                "use Python 3.11, 3.12 or 3.13 with its whole standard library",
            )
        return shard

    def _examine(self, data_dir: Path) -> tuple[list[str], str]:
        lines = token_records.check(data_dir, self.repair(data_dir))
        digest = hashlib.sha256()
        for split, records in sorted(self.records(data_dir).items()):
            digest.update(split.encode())
            digest.update(records.astype(self.digest_type).tobytes())
        return lines, digest.hexdigest()

    def _comparison(self, reference: small_data.Reference) -> list[str]:
        text = f"text of Python {reference.python}"
        if reference.sha256 in PINNED.get(reference.python, ()):
            return [f"{text}, the records that published figures were made with"]
        return [f"{text}: losses are comparable with those on records of the same SHA-256 only"]

    def records(self, data_dir: str | os.PathLike[str]) -> dict[str, np.ndarray]:
        """Returns all records of each split, int32 [N, length]."""
        repair = self.repair(data_dir)
        splits = {split: token_records.open_split(data_dir, split, repair) for split in self.sizes}
        return {
            split: np.stack([tokens[number]["tokens"] for number in range(len(tokens))])
            for split, tokens in splits.items()
        }

    def rows(self, records: Mapping[str, np.ndarray]) -> list[dict[str, Any]]:
        """Returns `reference_rows` of all records."""
        return reference_rows(records, VOCAB_SIZE)


class PydocFinewebedu(PydocText):
    """The documentation in sequences whose first token is never predicted."""

    def rows(self, records: Mapping[str, np.ndarray]) -> list[dict[str, Any]]:
        """Returns `reference_rows` of what is predicted, with `<split>/ppl`, e to the loss."""
        predicted = {split: sequences[:, 1:] for split, sequences in records.items()}
        return [
            {**row, **{f"{split}/ppl": math.exp(row[f"{split}/loss"]) for split in records}}
            for row in reference_rows(predicted, VOCAB_SIZE)
        ]


PYDOC = PydocText(
    workload="pydoc_lm",
    note=(
        "Stand-in: Python's own help topics and docstrings, half a million tokens, neither C4 nor "
        "Wikipedia. Losses depend on the Python release they were made with."
    ),
    # Python 3.11.2 has 7148, 964 and 890; 3.11.7 7178, 962 and 888; 3.13.5 more than 6891, 943 and
    # 878.
    sizes={"train": 6800, "validation": 800, "test": 800},
    length=LENGTH,
    digest_type="<u2",
)
PYDOC_FINEWEBEDU = PydocFinewebedu(
    workload="pydoc_finewebedu",
    note=f"{PYDOC.note} As Arrow files of token ids, without the test part.",
    # Every Python from 3.11 to 3.13 has as many.
    sizes={"train": 6600, "validation": 850},
    length=LENGTH + 1,
    digest_type="<i4",
)
PYSOURCE = PydocText(
    workload="pysource_lm_164k",
    note=(
        "Stand-in: the source code of Python's own standard library, two million tokens, neither "
        "C4 nor Wikipedia. Losses depend on the Python release they were made with."
    ),
    # Python 3.11.7 has 31306, 4220 and 4015; other releases were not counted. The first 1600 of
    # validation are as many as an evaluation takes time for.
    sizes={"train": 28_000, "validation": 1600, "test": 3200},
    length=LENGTH,
    digest_type="<u2",
    documents=source_documents,
)


def split_documents(
    documents: list[Document],
) -> dict[str, list[Document]]:
    """Documents of each role, by the order of their names' SHA-256 and their characters."""
    ordered = sorted(
        documents, key=lambda document: hashlib.sha256(document.name.encode()).digest()
    )
    sizes = np.cumsum([0] + [len(document.text) for document in ordered])
    share = sizes[:-1] / sizes[-1]  # of the characters that stand before each document
    roles = np.where(share < _HELD_OUT, "test", np.where(share < 2 * _HELD_OUT, "validation", ""))
    parts: dict[str, list[Document]] = {role: [] for role in PYDOC.sizes}
    for document, role in zip(ordered, roles, strict=True):
        parts[role or "train"].append(document)
    return parts


def reference_rows(records: Mapping[str, np.ndarray], vocab_size: int) -> list[dict[str, Any]]:
    """Two rows with `<split>/loss` (nats per token) and `<split>/error` (fraction of tokens); the
    first, the same answer everywhere, is marked `constant`.

    `records` are integers `[N, L]` per split, `train` among them. Every position counts in the
    loss. An error is a token other than the most probable one (ties: the lowest id); it is counted
    over the ordinary tokens, each as likely to be masked as the next.
    """
    singles = unigram(records["train"], vocab_size)
    pairs = bigram(records["train"], singles)
    return [
        {"constant": True, **_row(UNIGRAM, np.broadcast_to(singles, pairs.shape), records)},
        _row(BIGRAM, pairs, records),
    ]


def unigram(train: np.ndarray, vocab_size: int) -> np.ndarray:
    """p(b), float64 `[V]`."""
    counts = np.bincount(train.ravel(), minlength=vocab_size) + 1.0
    return counts / counts.sum()


def bigram(train: np.ndarray, singles: np.ndarray) -> np.ndarray:
    """p(b | a), float64 `[V, V]`, a first."""
    counts = np.zeros((len(singles), len(singles)))
    np.add.at(counts, (_left(train), train), 1.0)
    smoothed = counts + PRIOR_WEIGHT * singles
    return smoothed / (counts.sum(axis=1, keepdims=True) + PRIOR_WEIGHT)


def _left(tokens: np.ndarray) -> np.ndarray:
    """The token before each one."""
    return np.pad(tokens[:, :-1], ((0, 0), (1, 0)), constant_values=tokenizer.EOS)


def _row(name: str, probabilities: np.ndarray, records: Mapping[str, np.ndarray]) -> dict[str, Any]:
    best = probabilities.argmax(axis=1)
    row: dict[str, Any] = {"name": name}
    for split, tokens in records.items():
        left = _left(tokens)
        row[f"{split}/loss"] = float(-np.log(probabilities[left, tokens]).mean())
        wrong = best[left] != tokens
        row[f"{split}/error"] = float(wrong[tokens >= tokenizer.FIRST_ORDINARY].mean())
    return row
