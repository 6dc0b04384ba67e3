"""`wikipedia_bert`: masked language models on Wikipedia, in BERT's base size and the paper's 2.2 B.

The encoder is the language models' network without the causal mask (workloads/text/transformer.py):
pre-LN, no biases, no learned positions, and one embedding for input and output, so base has
110 M parameters. There is no next-sentence task and no segment embedding; the paper reports the
MLM error alone, and so do we. Sequences of 512 tokens, 1024 a batch.
"""

from typing import Any

from workloads.base.base_workload import Sizes
from workloads.base.options import Options
from workloads.text.bert_workload import BertWorkload
from workloads.text.corpora import wikipedia
from workloads.text.transformer_sizes import SIZES

DATA = Sizes(
    # What 160,000 steps see, many epochs of Wikipedia; what a directory holds, `check` says.
    num_train=160_000 * 1024,
    num_eval_train=wikipedia.FEWEST["train"],
    num_validation=wikipedia.FEWEST["validation"],
    num_test=wikipedia.FEWEST["test"],
    eval_batch_size=256,
)


def make(name: str, variant: Any, options: Options) -> BertWorkload:
    """Returns the workload; use `workloads.registry.make`."""
    return BertWorkload(name, variant, options, SIZES[name], DATA)
