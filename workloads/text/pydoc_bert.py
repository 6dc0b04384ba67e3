"""`pydoc_bert`: the masked language model of `wikipedia_bert`, small, on Python's documentation.

The network of `pydoc_lm` without the causal mask, 9 or 10 of 64 places to predict. With NAdamW
(rate 0.005, β2 0.99, decay 0.1, batch 16) one seed of standard attention ends at an error of 0.731
on test (3.85 nats) after 4000 steps, in 130 s of one shared CPU core; it stays near 0.85, the error
of knowing the most frequent words, for the first 1000 steps. The left neighbour's most frequent
successor is wrong in 0.840 of all places.
"""

from typing import Any

from workloads.base.base_workload import Sizes
from workloads.base.options import Options
from workloads.text.bert_workload import BertWorkload
from workloads.text.corpora import pydoc_text
from workloads.text.transformer_sizes import SIZES

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
