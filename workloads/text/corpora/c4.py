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
from collections.abc import Sequence
from pathlib import Path

from workloads.base.errors import DataError
from workloads.storage import tfds_directory
from workloads.text.corpora import token_preparation
from workloads.text.corpora.token_preparation import Input, TextCorpus


def _inputs(tree: Path, repair: str) -> tuple[str, dict[str, Sequence[Input]]]:
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
    inputs = token_preparation.shards_of(train)
    if len(inputs) < 2:
        raise train.error(
            "has one shard; two are needed, since the last one becomes the validation split"
        )
    shards = {"train": inputs[:-1], "validation": inputs[-1:]}
    return dataset, {**shards, "test": token_preparation.shards_of(test)}


C4 = TextCorpus(
    "c4_lm",
    _inputs,
    "c4/en/3.1.0 of TFDS (copy damaged files of it again)",
    length=1024,
)
