"""C4 and Wikipedia as token records: what `c4_lm` and `wikipedia_bert` read.

Each input file becomes an output shard, its documents in their order, packed as
`workloads.storage.token_records` says. Vocabulary: SentencePiece, 32,000 pieces with byte fallback,
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
import re
from collections.abc import Sequence
from pathlib import Path

from workloads.base.errors import DataError
from workloads.storage import tfds_directory
from workloads.text.corpora import token_preparation
from workloads.text.corpora.token_preparation import Input, TextCorpus

EVAL_FILE = "eval.txt"
_PART = re.compile(r"part-(\d{5})-of-(\d{5})")


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
    inputs = token_preparation.shards_of(train)
    if len(inputs) < 2:
        raise train.error(
            "has one shard; two are needed, since the last one becomes the validation split"
        )
    shards = {"train": inputs[:-1], "validation": inputs[-1:]}
    return dataset, {**shards, "test": token_preparation.shards_of(test)}


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
            Input(str(path), functools.partial(token_preparation.mlperf_documents, path, repair))
            for path in (*parts, evaluation)
        ]
    elif directory:
        split = tfds_directory.TfdsSplit(
            directory, "train", repair=repair, features=tfds_directory.TEXT
        )
        dataset, inputs = split.dataset, token_preparation.shards_of(split)
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
