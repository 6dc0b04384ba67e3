"""C4 as token records: what `c4_lm` reads, made from the TFDS directory `c4/en`.

train is every shard of C4's train split but the last; validation, which chooses hyperparameters
and the step, is that last shard (TFDS spreads documents over shards by hash: one of 1024 is 356,000
documents chosen at random); test is C4's validation split. Each input shard becomes an output
shard, its documents in their order: 156 billion tokens are 312 GB. Vocabulary: SentencePiece,
32,000 pieces with byte fallback, trained on the first 100,000 documents of train (about 200 MB, a
quarter of an hour of one core at the 4.2 s per MB measured on 40 MB), unless a model of that size
lies in the directory as `spm.model`. Tokenising takes 1 s per 12 MB and core: 800 GB are 19 hours
of one core.
"""

import functools
import itertools
import os
from collections.abc import Iterator
from pathlib import Path

from workloads.base.errors import DataError
from workloads.storage import document_files, tfds_directory, token_records
from workloads.text.corpora import token_preparation

LENGTH, VOCAB_SIZE = 1024, 32_000
TRAINING_DOCUMENTS = 100_000
SPLITS = ("train", "validation", "test")
# Records of each split without which an evaluation could not be made.
FEWEST = {"train": 2048, "validation": 8192, "test": 8192}


def check(data_dir: str | os.PathLike[str], full: bool = False) -> list[str]:
    """One line about the source, one about the tokenizer, one per split; seconds.

    Raises DataError at the first thing amiss. With `full`, reads every record (312 GB).
    """
    return token_preparation.check(
        data_dir, LENGTH, VOCAB_SIZE, FEWEST, _repair(data_dir), full=full
    )


def prepare(
    data_dir: str | os.PathLike[str],
    manual_dir: str | os.PathLike[str] | None = None,
    processes: int | None = None,
) -> None:
    """Write the records below `data_dir` from the TFDS tree in `manual_dir` (None: `data_dir`).

    The tree holds `c4/en/3.1.0` or another 3.x, as TFDS prepares it. Killed, it goes on where it
    was when it is called again. Raises DataError where the tree is missing or not whole.
    """
    data_dir, repair = Path(data_dir), _repair(data_dir)
    with token_preparation.locked(data_dir):
        if (data_dir / token_records.INFO_FILE).exists():
            check(data_dir)
            return
        directory = _find(Path(manual_dir or data_dir), data_dir)
        dataset = f"c4/en:{directory.name}"
        train, test = (
            tfds_directory.TfdsSplit(
                directory, split, dataset=dataset, repair=repair, features=tfds_directory.TEXT
            )
            for split in ("train", "validation")
        )
        jobs = _jobs(train, test)
        origin = token_preparation.vocabulary(
            data_dir, _train_texts(train), VOCAB_SIZE, TRAINING_DOCUMENTS
        )
        token_preparation.write_records(
            data_dir,
            jobs,
            length=LENGTH,
            source={"dataset": dataset, "vocabulary": origin},
            processes=processes,
        )


def _find(tree: Path, data_dir: Path) -> Path:
    """The newest prepared 3.x of c4/en in the tree; DataError where there is none."""
    place = tree / "c4" / "en"
    found = [path for path in document_files.versions(place) if path.name.startswith("3.")]
    if not found:
        raise DataError(
            f"{place}: no prepared C4 is there. Folders such as {place / '3.1.0'} are looked for, "
            "with dataset_info.json, features.json, c4-train.tfrecord-00000-of-01024 to 01023 and "
            "c4-validation.tfrecord-00000-of-00008 to 00007 (800 GB)",
            "prepare it with `tfds build c4/en` (needs Apache Beam), or copy a prepared one, then "
            f"say where it is: python -m workloads prepare c4_lm --data_dir {data_dir} --from TREE",
        )
    return found[0]


def _train_texts(train: tfds_directory.TfdsSplit) -> Iterator[str]:
    """Documents of the shards that become train, in order."""
    shards = range(len(train.shards) - 1)
    return itertools.chain.from_iterable(
        document_files.tfds_documents(train, shard) for shard in shards
    )


def _jobs(
    train: tfds_directory.TfdsSplit, test: tfds_directory.TfdsSplit
) -> list[token_preparation.Job]:
    if len(train.shards) < 2:
        raise train.error(
            "has one shard; two are needed, since the last one becomes the validation split"
        )
    inputs = [_input(train, shard) for shard in range(len(train.shards))]
    return [
        *token_preparation.jobs_of("train", inputs[:-1]),
        *token_preparation.jobs_of("validation", inputs[-1:]),
        *token_preparation.jobs_of("test", [_input(test, s) for s in range(len(test.shards))]),
    ]


def _input(split: tfds_directory.TfdsSplit, shard: int) -> token_preparation.Input:
    texts = functools.partial(document_files.tfds_documents, split, shard)
    return token_preparation.Input(split.shards[shard], texts)


def _repair(data_dir: str | os.PathLike[str]) -> str:
    return (
        f"python -m workloads prepare c4_lm --data_dir {data_dir} --from TREE, where TREE holds "
        "c4/en/3.1.0 of TFDS; copy damaged files of it again"
    )
