"""Token records as sources of examples."""

import os
from typing import Any

import numpy as np

from workloads.base import example_queue
from workloads.images import image_sources
from workloads.storage.token_records import TokenSplit
from workloads.text.transformer_sizes import TransformerSize


def records(
    data_dir: str | os.PathLike[str], split: str, size: TransformerSize, repair: str
) -> example_queue.Source:
    """Returns the records of train, eval_train (those of train), validation or test.

    Raises DataError where there are none, or they were made for another model's vocabulary or
    context; `repair` is the command that makes them.
    """
    found = TokenSplit(data_dir, "train" if split == "eval_train" else split, repair)
    if (found.vocab_size, found.length) != (size.vocabulary, size.context):
        raise found.error(
            f"has a vocabulary of {found.vocab_size} in records of {found.length} tokens; the "
            f"model takes {size.vocabulary} and {size.context}"
        )
    return found


def evenly_spaced(source: Any, number: int) -> example_queue.Source:
    """Returns every n-th record, the same in every run: no permutation of what may be 10^8.

    Raises ValueError where there are fewer.
    """
    if not 0 < number <= len(source):
        raise ValueError(f"{source}: {number} records were asked; 1 to {len(source)} are allowed")
    return image_sources.Subset(source, np.arange(number) * (len(source) // number))


def tokens(record: dict[str, Any], generator: np.random.Generator) -> dict[str, Any]:
    """Returns the record's tokens, int32 [L]; nothing is drawn."""
    del generator
    return {"tokens": record["tokens"].astype(np.int32)}
