"""Sequences of tokens that count; perplexity, and no test split, as AlgoPerf's."""

import jax.numpy as jnp
import numpy as np

from algoperf.workloads.base import CLASSES, TinyWorkload
from algoperf.workloads.finewebedu_lm.finewebedu_lm_jax.models import TransformerDo

LENGTH = 8


class LmWorkload(TinyWorkload):
    target_metric_name = "ppl"
    num_test_examples = 0

    def make_model(self):
        return TransformerDo()

    def example(self):
        return (jnp.ones((1, LENGTH), jnp.int32),)

    def draw(self, draws, size):
        tokens = (draws.integers(0, CLASSES, (size, 1)) + np.arange(LENGTH + 1)) % CLASSES
        return {"inputs": tokens[:, :-1], "targets": tokens[:, 1:], "weights": None}

    def _eval_model_on_split(self, split, *args, **kwargs):
        if split == "test":
            return {"loss": 0.0, "ppl": 1.0}
        loss = super()._eval_model_on_split(split, *args, **kwargs)["loss"]
        return {"loss": loss, "ppl": jnp.exp(loss)}
