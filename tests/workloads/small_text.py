"""Small language models, and random records for them in memory."""

import dataclasses

import numpy as np

from attention import registry, table
from workloads import catalog
from workloads.base.options import Options
from workloads.base.workload import Sizes
from workloads.text.finewebedu_workload import FinewebeduWorkload
from workloads.text.language_models import BertWorkload, LMWorkload
from workloads.text.text_specs import TransformerSize

TINY = TransformerSize(2, 16, 32, 4, 8, vocabulary=64, context=16)
COUNTS = {"train": 50, "validation": 14, "test": 9}
KINDS = {
    "pydoc_lm": LMWorkload,
    "pydoc_bert": BertWorkload,
    "pydoc_finewebedu": FinewebeduWorkload,
}


def records(split, size=TINY, more=0):
    """Returns records of so many tokens more than the context."""
    shape = (COUNTS[split], size.context + more)
    tokens = np.random.default_rng(COUNTS[split]).integers(4, size.vocabulary, shape)
    return [{"tokens": row} for row in tokens]


def make(name="pydoc_lm", variant="standard", size=TINY, **options):
    """Returns a workload of another size that needs no folder for its records; τ is 0.8."""
    made = registry.get(variant, **table.hyperparameters(variant, 0.8))
    num_test = COUNTS["test"]
    if name == "pydoc_finewebedu":  # Its heads are as wide as the model; it has no test split.
        size, num_test = dataclasses.replace(size, heads=size.width // size.head_size), 0
    sizes = Sizes(COUNTS["train"], 6, COUNTS["validation"], num_test, eval_batch_size=4)
    workload = KINDS[name](catalog.get(name), made, Options(**options), size, sizes)
    workload._open = lambda split, data_dir: records(split, size, workload._more_tokens)
    return workload
