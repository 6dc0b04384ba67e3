"""`c4_lm` and its kin: the paper's decoder-only language models on C4.

c4_lm (301 M parameters), c4_lm_234m, _435m, _1b, _2b, _8b: sizes in
workloads/text/transformer_sizes.py, the network in workloads/text/transformer.py. Sequences of 1024
tokens, 1024 a batch, 160,000 steps:
167.8 billion tokens. AlgoPerf's released tree has no language model; this workload is ours.

Selection is by the last shard of C4's train split, which no model trains on; the test set is C4's
validation split (workloads/text/corpora/c4.py). Evaluations take the first sequences of each.
"""

from typing import Any

from workloads.base.base_workload import Sizes
from workloads.base.options import Options
from workloads.text.corpora import c4
from workloads.text.lm_workload import LMWorkload
from workloads.text.transformer_sizes import SIZES

DATA = Sizes(
    # What 160,000 steps see: 1.08 epochs of C4's 156 B tokens. `check` says what there is.
    num_train=160_000 * 1024,
    num_eval_train=c4.FEWEST["train"],
    num_validation=c4.FEWEST["validation"],
    num_test=c4.FEWEST["test"],
    eval_batch_size=256,
)


def make(name: str, variant: Any, options: Options) -> LMWorkload:
    """Returns the workload; use `workloads.registry.make`."""
    return LMWorkload(name, variant, options, SIZES[name], DATA)
