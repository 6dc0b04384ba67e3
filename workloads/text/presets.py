"""The language-model workloads: the paper's on C4 and Wikipedia, and small stand-ins.

`c4_lm` (301 M parameters), `c4_lm_234m`, `_435m`, `_1b`, `_2b`, `_8b`: the paper's decoder-only
models. Sequences of 1024 tokens, 1024 a batch, 160,000 steps: 167.8 billion tokens. AlgoPerf's
released tree has no language model; this workload is ours. Selection is by the last shard of C4's
train split, which no model trains on; the test set is C4's validation split
(workloads/text/corpora/c4.py). Evaluations take the first sequences of each.

`wikipedia_bert`, `wikipedia_bert_2b`: masked language models in BERT's base size and the paper's
2.2 B. The encoder is the language models' network without the causal mask: pre-LN, no biases, no
learned positions, and one embedding for input and output, so base has 110 M parameters. There is no
next-sentence task and no segment embedding; the paper reports the MLM error alone, and so do we.
Sequences of 512 tokens, 1024 a batch.

`pydoc_lm`: the same network, loader, loss and metric on the documentation that ships with Python,
which a bare machine trains in under a minute. 2 layers of width 64, 164,160 parameters, sequences
of 64 tokens out of 1024. With NAdamW (rate 0.01, β2 0.99, decay 0.1, batch 8) one seed of standard
attention ends at 4.04 nats per token on validation after 2000 steps (45 s of one shared CPU core),
LASER at 4.02; 3000 steps give 3.95, and 0.005 is as good a rate. The smoothed bigram of the same
text has 4.37. A third of the time of a step is the vocabulary's matrix and its softmax, 5 % the
loader.

`pydoc_bert`: without the causal mask, 9 or 10 of 64 positions to predict. With NAdamW (rate 0.005,
β2 0.99, decay 0.1, batch 16) one seed of standard attention ends at an error of 0.731 on test (3.85
nats) after 4000 steps, in 130 s of one shared CPU core; it stays near 0.85, the error of knowing
the most frequent words, for the first 1000 steps. The left neighbour's most frequent successor is
wrong at 0.840 of all positions.
"""

from collections.abc import Mapping
from typing import Any

from workloads.base.options import Options
from workloads.base.workload import Sizes
from workloads.base.workload_spec import WorkloadSpec
from workloads.text.corpora import c4, pydoc_text, wikipedia
from workloads.text.language_models import BertWorkload, LMWorkload
from workloads.text.specs import SIZES


def _full_size(fewest: Mapping[str, int]) -> Sizes:
    return Sizes(
        # What 160,000 steps see: 1.08 epochs of C4's 156 B tokens, many of Wikipedia's. What a
        # directory holds, `check` says.
        num_train=160_000 * 1024,
        num_eval_train=fewest["train"],
        num_validation=fewest["validation"],
        num_test=fewest["test"],
        eval_batch_size=256,
    )


C4, WIKIPEDIA = _full_size(c4.C4.fewest), _full_size(wikipedia.WIKIPEDIA.fewest)
PYDOC = Sizes(
    num_train=pydoc_text.SIZES["train"],
    num_eval_train=400,
    num_validation=pydoc_text.SIZES["validation"],
    num_test=pydoc_text.SIZES["test"],
    eval_batch_size=16,
)


def make_lm(row: WorkloadSpec, variant: Any, options: Options) -> LMWorkload:
    """Returns a language model's workload; use `workloads.registry.make`."""
    sizes = PYDOC if row.embedded else C4
    return LMWorkload(row, variant, options, SIZES[row.name], sizes)


def make_bert(row: WorkloadSpec, variant: Any, options: Options) -> BertWorkload:
    """Returns a masked language model's workload; use `workloads.registry.make`."""
    sizes = PYDOC if row.embedded else WIKIPEDIA
    return BertWorkload(row, variant, options, SIZES[row.name], sizes)
