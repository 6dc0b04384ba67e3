"""Sequences of tokens that count; perplexity, and no test split, as AlgoPerf's."""

import jax.numpy as jnp
import numpy as np

from algoperf.workloads.base import CLASSES, TinyWorkload
from algoperf.workloads.finewebedu_lm.finewebedu_lm_jax.models import ModelConfig, TransformerDo

LENGTH = 8


class LmWorkload(TinyWorkload):
    target_metric_name = "ppl"
    validation_target_value = 1.5
    test_target_value = None
    num_test_examples = 0
    input_shape, input_dtype = (LENGTH,), jnp.int32

    def has_reached_validation_target(self, eval_result):
        return eval_result["validation/ppl"] <= self.validation_target_value

    def has_reached_test_target(self, eval_result):
        return True

    def make_model(self):
        return TransformerDo(ModelConfig(classes=CLASSES))

    def _build_input_queue(
        self,
        data_rng,
        split,
        data_dir,
        global_batch_size,
        cache=None,
        repeat_final_dataset=None,
        num_batches=None,
    ):
        draws = np.random.default_rng(np.asarray(data_rng).ravel().tolist())
        while True:
            starts = draws.integers(0, CLASSES, (global_batch_size, 1))
            tokens = jnp.asarray((starts + np.arange(LENGTH + 1)) % CLASSES)
            weights = None if split == "train" else jnp.ones((global_batch_size, LENGTH))
            yield {"inputs": tokens[:, :-1], "targets": tokens[:, 1:], "weights": weights}

    def _eval_model_on_split(self, split, num_examples, *args, **kwargs):
        if num_examples == 0:
            return {"loss": 0.0, "ppl": 1.0}
        metrics = super()._eval_model_on_split(split, num_examples, *args, **kwargs)
        loss = metrics["loss"] / LENGTH
        return {"loss": loss, "ppl": float(np.exp(loss))}
