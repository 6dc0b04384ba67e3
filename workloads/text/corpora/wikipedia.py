"""Wikipedia as token records: what `wikipedia_bert` reads, made from TFDS or MLPerf's text files.

- TFDS: `wikipedia/<date>.en/<version>` in the tree. TFDS spreads articles over shards by hash: the
  last shard is test, the last but one validation, the others train.
- MLPerf's BERT: `part-00000-of-00500` and so on, and `eval.txt`, all in one folder; one sentence
  per line, a blank line after each article. `eval.txt` (10,000 articles held out) is test, the last
  part validation, the others train.

Each input file becomes an output shard, its documents in their order, packed as
`workloads.storage.token_records` says: 512 tokens without padding, no next-sentence prediction.
Vocabulary: SentencePiece, 32,000 pieces with byte fallback, trained on the first 100,000 documents
of train, unless a model of that size lies in the directory as `spm.model`.
"""

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


def _inputs(tree: Path, repair: str) -> tuple[str, dict[str, Sequence[Input]]]:
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
    _inputs,
    "wikipedia/<date>.en/<version> of TFDS (`tfds build wikipedia/20230601.en`), or the text files "
    "of MLPerf's BERT benchmark (copy damaged ones again)",
    length=512,
)
