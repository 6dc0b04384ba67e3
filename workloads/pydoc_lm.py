"""`pydoc_lm`: the language model of `c4_lm`, small, on the documentation that ships with Python."""

from typing import Any

from workloads import pydoc_text
from workloads.lm_workload import LMWorkload
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


def make(name: str, variant: Any, options: Options) -> LMWorkload:
    """Returns the workload; use `workloads.registry.make`."""
    return LMWorkload(name, variant, options, SIZES[name], DATA)
