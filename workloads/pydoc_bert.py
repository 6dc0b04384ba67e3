"""`pydoc_bert`: the masked language model of `wikipedia_bert`, small, on Python's documentation."""

from typing import Any

from workloads import pydoc_text
from workloads.bert_workload import BertWorkload
from workloads.options import Options
from workloads.table_workload import Sizes
from workloads.transformer_sizes import SIZES

DATA = Sizes(
    num_train=pydoc_text.SIZES["train"],
    num_eval_train=400,
    num_validation=pydoc_text.SIZES["validation"],
    num_test=pydoc_text.SIZES["test"],
    eval_batch_size=16,
)


def make(name: str, variant: Any, options: Options) -> BertWorkload:
    """Returns the workload; use `workloads.registry.make`."""
    return BertWorkload(name, variant, options, SIZES[name], DATA)
