"""`pydoc_lm`: the language model of `c4_lm`, small, on the documentation that ships with Python.

A stand-in that a bare machine trains in under a minute: the same network, loader, loss and metric.
2 layers of width 64, 164,160 parameters, sequences of 64 tokens out of 1024. With NAdamW (rate
0.01, β2 0.99, decay 0.1, batch 8) one seed of standard attention ends at 4.04 nats per token on
validation after 2000 steps (45 s of one shared CPU core), LASER at 4.02; 3000 steps give 3.95, and
0.005 is as good a rate. The smoothed bigram of the same text has 4.37. A third of the
time of a step is the vocabulary's matrix and its softmax, 5 % the loader.
"""

from typing import Any

from workloads.base.base_workload import Sizes
from workloads.base.options import Options
from workloads.text.corpora import pydoc_text
from workloads.text.lm_workload import LMWorkload
from workloads.text.transformer_sizes import SIZES

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
