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

import os
from collections.abc import Sequence
from pathlib import Path

from workloads.base.errors import DataError
from workloads.storage import tfds_directory
from workloads.text.corpora import token_preparation
from workloads.text.corpora.token_preparation import Input

LENGTH, VOCAB_SIZE = 1024, 32_000
TRAINING_DOCUMENTS = 100_000
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
    token_preparation.prepare(
        data_dir,
        check,
        lambda: _inputs(Path(manual_dir or data_dir), data_dir),
        length=LENGTH,
        vocab_size=VOCAB_SIZE,
        documents=TRAINING_DOCUMENTS,
        processes=processes,
    )


def _inputs(tree: Path, data_dir: str | os.PathLike[str]) -> tuple[str, dict[str, Sequence[Input]]]:
    """The data set's name and the inputs of each split, from the newest prepared 3.x in the tree.

    Raises DataError where there is none.
    """
    place = tree / "c4" / "en"
    found = [path for path in tfds_directory.versions(place) if path.name.startswith("3.")]
    if not found:
        raise DataError(
            f"{place}: no prepared C4 is there. Folders such as {place / '3.1.0'} are looked for, "
            "with dataset_info.json, features.json, c4-train.tfrecord-00000-of-01024 to 01023 and "
            "c4-validation.tfrecord-00000-of-00008 to 00007 (800 GB)",
            "prepare it with `tfds build c4/en` (needs Apache Beam), or copy a prepared one, then "
            f"say where it is: python -m workloads prepare c4_lm --data_dir {data_dir} --from TREE",
        )
    dataset = f"c4/en:{found[0].name}"
    train, test = (
        tfds_directory.TfdsSplit(
            found[0],
            split,
            dataset=dataset,
            repair=_repair(data_dir),
            features=tfds_directory.TEXT,
        )
        for split in ("train", "validation")
    )
    inputs = token_preparation.shards_of(train)
    if len(inputs) < 2:
        raise train.error(
            "has one shard; two are needed, since the last one becomes the validation split"
        )
    shards = {"train": inputs[:-1], "validation": inputs[-1:]}
    return dataset, {**shards, "test": token_preparation.shards_of(test)}


def _repair(data_dir: str | os.PathLike[str]) -> str:
    return (
        f"python -m workloads prepare c4_lm --data_dir {data_dir} --from TREE, where TREE holds "
        "c4/en/3.1.0 of TFDS; copy damaged files of it again"
    )
