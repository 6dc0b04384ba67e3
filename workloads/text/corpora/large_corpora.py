"""C4 and Wikipedia as token records: what `c4_lm` and `wikipedia_bert` read.

Many processes make them. Each input file becomes an output shard, its documents in their order,
packed as `workloads.storage.token_records` says. What is written depends on the input alone, not on
the number of processes or on interruptions. A finished shard is noted in `.progress/`, so a
preparation that was killed goes on with the shards that are missing; `tokens.json`, written last,
replaces the notes. Vocabulary: SentencePiece, 32,000 pieces with byte fallback,
trained on the first 100,000 documents of train, unless a model of that size lies in the directory
as `spm.model`.

`C4` is made from the TFDS directory `c4/en`. train is every shard of C4's train split but the last;
validation, which chooses hyperparameters and the step, is that last shard (TFDS spreads documents
over shards by hash: one of 1024 is 356,000 documents chosen at random); test is C4's validation
split. 156 billion tokens are 312 GB. Training the vocabulary on about 200 MB takes a quarter of an
hour of one core at the 4.2 s per MB measured on 40 MB. Tokenising takes 1 s per 12 MB and core: 800
GB are 19 hours of one core.

`WIKIPEDIA` is made from one of two trees, in records of 512 tokens without padding and without
next-sentence prediction:
- TFDS: `wikipedia/<date>.en/<version>` in the tree. TFDS spreads articles over shards by hash: the
  last shard is test, the last but one validation, the others train.
- MLPerf's BERT: `part-00000-of-00500` and so on, and `eval.txt`, all in one folder; one sentence
  per line, a blank line after each article. `eval.txt` (10,000 articles held out) is test, the last
  part validation, the others train.
"""

import dataclasses
import functools
import hashlib
import itertools
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from attention.common import files, machine
from workloads.base.errors import DataError, repair_commands
from workloads.storage import json_records, preparation, tfds_directory, token_records, tokenizer

EVAL_FILE = "eval.txt"
_PART = re.compile(r"part-(\d{5})-of-(\d{5})")
# Records of each split that evaluations of the models of the paper's sizes take.
FEWEST = {"train": 2048, "validation": 8192, "test": 8192}
SPLITS = tuple(FEWEST)
PROGRESS = ".progress"
# 16 partial sums whatever the machine: their number changes the vocabulary (tokenizer.train).
_TRAINER_THREADS = 16


def tfds_documents(split: tfds_directory.TfdsSplit, shard: int) -> Iterator[str]:
    """The feature `text` of one shard; every record's checksums are compared.

    Raises DataError where a record is damaged or its text is no UTF-8.
    """
    for number, example in enumerate(split.iterate_shard(shard)):
        yield decoded(example["text"], f"{split.shards[shard]}: record {number}", split.repair)


def mlperf_documents(path: str | os.PathLike[str], repair: str) -> Iterator[str]:
    """Documents of a file with one sentence per line and blank lines between documents.

    Sentences of a document are joined by line breaks. Raises DataError where a line is no UTF-8.
    """
    with open(path, "rb") as file:
        sentences = (
            decoded(line, f"{path}: line {number}", repair).strip()
            for number, line in enumerate(file, 1)
        )
        for has_text, lines in itertools.groupby(sentences, bool):
            if has_text:
                yield "\n".join(lines)


def decoded(text: bytes, where: str, repair: str) -> str:
    """The text; DataError, naming `where`, unless it is UTF-8."""
    try:
        return text.decode()
    except UnicodeDecodeError as problem:
        raise DataError(f"{where} is no UTF-8: {problem}", repair) from problem


@dataclasses.dataclass(frozen=True)
class Input:
    """An input file: `texts()` yields its documents, and is picklable."""

    path: str
    texts: Callable[[], Iterable[str]]

    @property
    def identity(self) -> str:
        """What a shard is noted to be made from: the file's name and size."""
        return f"{os.path.basename(self.path)}, {os.path.getsize(self.path)} bytes"


class _Note(msgspec.Struct, frozen=True):
    """A finished shard, and what it was made from and with."""

    length: int
    tokenizer: str
    source: dict[str, str]
    input: str
    shard: token_records.Shard | None = None


def shards_of(split: tfds_directory.TfdsSplit) -> list[Input]:
    """The shards of a TFDS split as inputs, in order."""
    return [
        Input(path, functools.partial(tfds_documents, split, shard))
        for shard, path in enumerate(split.shards)
    ]


@dataclasses.dataclass(frozen=True)
class TextCorpus:
    """Records of `length` tokens out of `vocab_size`, made from a tree of text files.

    workload: its name. inputs(tree, repair): the data set's name and the inputs of train,
    validation and test; raises DataError where the tree has none. content: of that tree, for
    errors. documents: of train, the first ones, on which the vocabulary is trained. fewest: records
    of each split without which an evaluation could not be made.
    """

    workload: str

    inputs: Callable[[Path, str], tuple[str, Mapping[str, Sequence[Input]]]]
    content: str
    length: int
    vocab_size: int = 32_000
    documents: int = 100_000
    fewest: Mapping[str, int] = dataclasses.field(default_factory=lambda: FEWEST)

    def _repair(self, data_dir: str | os.PathLike[str]) -> str:
        return repair_commands(self.workload, data_dir, "TREE", self.content)

    def check(self, data_dir: str | os.PathLike[str], full: bool = False) -> list[str]:
        """One line about the source, one about the tokenizer, one per split; seconds.

        Raises DataError at the first thing amiss. With `full`, reads every record.
        """
        repair = self._repair(data_dir)
        info = token_records.read_info(data_dir, repair)
        stored = (info.length, info.vocab_size, sorted(info.splits))
        if stored != (self.length, self.vocab_size, sorted(SPLITS)):
            raise DataError(
                f"{data_dir}: records of {stored[0]} tokens out of {stored[1]} in the splits "
                f"{', '.join(stored[2])}; {self.length} tokens out of {self.vocab_size} in "
                f"{', '.join(SPLITS)} are expected",
                repair,
            )
        for split, fewest in self.fewest.items():
            records = info.total(split, "records")
            if records < fewest:
                raise DataError(
                    f"{data_dir}: split {split!r} has {records} records, at least {fewest} are "
                    "needed",
                    repair,
                )
        return [
            f"made from {info.source['dataset']}, vocabulary {info.source['vocabulary']}",
            *token_records.check(data_dir, repair, full=full),
        ]

    def describe(self, data_dir: str | os.PathLike[str]) -> dict[str, Any]:
        """Returns what tells the data of a directory from others: `splits` of `tokens.json`, with
        the SHA-256 of every shard's ids."""
        info = token_records.read_info(data_dir, self._repair(data_dir))
        return dict(msgspec.to_builtins(info.splits))

    def prepare(
        self,
        data_dir: str | os.PathLike[str],
        manual_dir: str | os.PathLike[str] | None = None,
        processes: int | None = None,
    ) -> None:
        """Writes the records below `data_dir` from the files in `manual_dir` (None: `data_dir`).

        Killed, it goes on where it was when it is called again. What is there is left as it is
        where `check` passes. `processes` (None: the CPUs this process may use) read, tokenise
        and pack, one input file each at a time. Raises DataError where files are missing, not whole
        or damaged.
        """
        data_dir = Path(data_dir)
        with preparation.locked(data_dir):
            if (data_dir / token_records.INFO_FILE).exists():
                self.check(data_dir)
                return
            dataset, inputs = self.inputs(Path(manual_dir or data_dir), self._repair(data_dir))
            texts = itertools.chain.from_iterable(part.texts() for part in inputs["train"])
            source = {"dataset": dataset, "vocabulary": self._vocabulary(data_dir, texts)}
            jobs = {
                token_records.file_name(split, number, len(inputs[split])): part
                for split in SPLITS
                for number, part in enumerate(inputs[split])
            }
            self._write_records(data_dir, jobs, source, processes)

    def _vocabulary(self, data_dir: Path, texts: Iterable[str]) -> str:
        """Makes `spm.model` unless it was put there; returns how it came about.

        It is trained with byte fallback. Raises DataError where the model that is there has
        another size or other special ids.
        """
        path, note = data_dir / token_records.TOKENIZER_FILE, data_dir / PROGRESS / "tokenizer"
        first = f"the first {self.documents} documents"
        if not path.exists():
            _report(f"training a vocabulary of {self.vocab_size} on {first}")
            model = tokenizer.train(
                itertools.islice(texts, self.documents),
                self.vocab_size,
                byte_fallback=True,
                num_threads=_TRAINER_THREADS,
            )
            note.parent.mkdir(exist_ok=True)
            files.write(note, hashlib.sha256(model).hexdigest())
            files.write(path, model)
        repair = (
            f"put a model of {self.vocab_size} pieces there, made by spm_train with --pad_id=0 "
            "--eos_id=1 --unk_id=2 --bos_id=-1 --control_symbols='<mask>', or remove "
            f"{path} to have one trained"
        )
        pieces = tokenizer.load(path, repair).vocab_size()
        if pieces != self.vocab_size:
            raise DataError(f"{path} has {pieces} pieces; {self.vocab_size} are needed", repair)
        digest = files.sha256(path)
        is_ours = note.exists() and note.read_text("utf-8") == digest
        return f"trained on {first} of train" if is_ours else "given"

    def _write_records(
        self,
        data_dir: Path,
        jobs: Mapping[str, Input],
        source: Mapping[str, str],
        processes: int | None,
    ) -> None:
        """Writes the shards that are missing, then `tokens.json`.

        jobs: the input of each shard, by its file `<split>/<name>` below the directory.
        """
        digest = files.sha256(data_dir / token_records.TOKENIZER_FILE)
        notes = {
            file: _Note(self.length, digest, dict(source), part.identity)
            for file, part in jobs.items()
        }
        finished = {file: _finished(data_dir, file, note) for file, note in notes.items()}
        written = {file: shard for file, shard in finished.items() if shard is not None}
        todo = [file for file in jobs if file not in written]
        for path in map(data_dir.joinpath, todo):
            for rest in path.parent.glob(f".{path.name}.*.tmp"):
                rest.unlink()  # of a preparation that was killed
        if written:
            _report(f"{len(written)} of {len(jobs)} shards are there already")
        start, tokens = time.perf_counter(), 0
        write = functools.partial(_write, data_dir, notes, jobs)
        results = preparation.in_processes(write, todo, processes or machine.cpu_count())
        for number, shard in enumerate(results, 1):
            written[shard.file] = shard
            tokens += shard.tokens
            speed = tokens / (time.perf_counter() - start)
            _report(f"{number} of {len(todo)} shards, {tokens:,} tokens, {speed:,.0f} tokens/s")
        splits = {
            split: [written[file] for file in jobs if file.startswith(f"{split}/")]
            for split in SPLITS
        }
        token_records.write_info(
            data_dir, length=self.length, vocab_size=self.vocab_size, splits=splits, source=source
        )
        shutil.rmtree(data_dir / PROGRESS)


def _write(
    data_dir: Path, notes: Mapping[str, _Note], jobs: Mapping[str, Input], file: str
) -> token_records.Shard:
    note = notes[file]
    processor = tokenizer.load(data_dir / token_records.TOKENIZER_FILE)
    shard = token_records.write_shard(data_dir, file, jobs[file].texts(), processor, note.length)
    path = _note_path(data_dir, file)
    path.parent.mkdir(parents=True, exist_ok=True)
    json_records.write(path, msgspec.structs.replace(note, shard=shard))
    return shard


def _note_path(data_dir: Path, file: str) -> Path:
    return data_dir / PROGRESS / f"{file}.json"


def _finished(data_dir: Path, file: str, expected: _Note) -> token_records.Shard | None:
    """Returns the shard as it was noted, None if it must be written again."""
    try:
        note = json_records.read(_note_path(data_dir, file), _Note, "")
    except DataError:
        return None
    is_current = msgspec.structs.replace(note, shard=None) == expected
    return note.shard if is_current and (data_dir / file).is_file() else None


def _report(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _c4_inputs(tree: Path, repair: str) -> tuple[str, dict[str, Sequence[Input]]]:
    """The data set's name and the inputs of each split, from the newest prepared 3.x in the tree.

    Raises DataError where there is none.
    """
    place = tree / "c4" / "en"
    versions = [path for path in tfds_directory.versions(place) if path.name.startswith("3.")]
    if not versions:
        raise DataError(
            f"{place}: no prepared C4 is there. Folders such as {place / '3.1.0'} are looked for, "
            "with dataset_info.json, features.json, c4-train.tfrecord-00000-of-01024 to 01023 and "
            "c4-validation.tfrecord-00000-of-00008 to 00007 (800 GB)",
            "prepare it with `tfds build c4/en` (needs Apache Beam), or copy a prepared one; then "
            f"run {repair}",
        )
    dataset = f"c4/en:{versions[0].name}"
    open_split = functools.partial(
        tfds_directory.TfdsSplit,
        versions[0],
        dataset=dataset,
        repair=repair,
        features=tfds_directory.TEXT,
    )
    train, test = open_split("train"), open_split("validation")
    inputs = shards_of(train)
    if len(inputs) < 2:
        raise train.error(
            "has one shard; two are needed, since the last one becomes the validation split"
        )
    shards = {"train": inputs[:-1], "validation": inputs[-1:]}
    return dataset, {**shards, "test": shards_of(test)}


C4 = TextCorpus(
    "c4_lm",
    _c4_inputs,
    "c4/en/3.1.0 of TFDS (copy damaged files of it again)",
    length=1024,
)
# As many tokens of each split: its validation shard has about 5,000 such records.
C4_32K = dataclasses.replace(
    C4,
    workload="c4_lm_32k",
    length=32_768,
    fewest={split: records // 32 for split, records in C4.fewest.items()},
)


def _wikipedia_inputs(tree: Path, repair: str) -> tuple[str, dict[str, Sequence[Input]]]:
    """The data set's name and the inputs of each split; DataError where the tree has none."""
    parts = _parts(tree, repair)
    directory = _newest(tree)
    if parts and directory:
        raise DataError(
            f"{tree} holds both {directory} and MLPerf's {parts[0].name} …; name a folder that "
            "holds one of them",
            repair,
        )
    if parts:
        evaluation = tree / EVAL_FILE
        if not evaluation.is_file():
            raise DataError(f"{evaluation} is missing: MLPerf's articles for evaluation", repair)
        dataset = "MLPerf's text files"
        inputs = [
            Input(str(path), functools.partial(mlperf_documents, path, repair))
            for path in (*parts, evaluation)
        ]
    elif directory:
        split = tfds_directory.TfdsSplit(
            directory, "train", repair=repair, features=tfds_directory.TEXT
        )
        dataset, inputs = split.dataset, shards_of(split)
    else:
        raise DataError(
            f"{tree}: no Wikipedia is there. Looked for: TFDS folders such as "
            f"{tree / 'wikipedia' / '20230601.en' / '1.0.0'} with dataset_info.json, or MLPerf's "
            f"part-00000-of-00500 and so on with {EVAL_FILE}",
            repair,
        )
    if len(inputs) < 3:
        raise DataError(
            f"{dataset} in {tree} has {len(inputs)} files; three are needed: the last one becomes "
            "the test split, the last but one the validation split",
            repair,
        )
    return dataset, {"train": inputs[:-2], "validation": inputs[-2:-1], "test": inputs[-1:]}


def _newest(tree: Path) -> Path | None:
    """The newest version of the newest English Wikipedia in the tree."""
    versions = [
        version
        for config in sorted((tree / "wikipedia").glob("*.en"), reverse=True)
        for version in tfds_directory.versions(config)
    ]
    return versions[0] if versions else None


def _parts(tree: Path, repair: str) -> list[Path]:
    """MLPerf's parts in order; DataError where some are missing or parts of two sets are mixed."""
    parts = [path for path in sorted(tree.glob("part-*")) if _PART.fullmatch(path.name)]
    wanted = int(parts[0].name[-5:]) if parts else 0
    names = [f"part-{number:05d}-of-{wanted:05d}" for number in range(wanted)]
    strange = {path.name for path in parts}.symmetric_difference(names)
    if strange:
        raise DataError(
            f"{tree} does not hold {wanted} parts: {min(strange)} is missing, or of another set",
            repair,
        )
    return parts


WIKIPEDIA = TextCorpus(
    "wikipedia_bert",
    _wikipedia_inputs,
    "wikipedia/<date>.en/<version> of TFDS (`tfds build wikipedia/20230601.en`), or the text files "
    "of MLPerf's BERT benchmark (copy damaged ones again)",
    length=512,
)
