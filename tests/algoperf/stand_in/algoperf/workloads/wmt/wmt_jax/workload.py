"""Methods that call the model beside model_fn, as those of AlgoPerf's translation do."""

import functools

import jax

from algoperf.workloads.imagenet_vit.imagenet_jax.workload import ImagenetVitWorkload


class WmtWorkload(ImagenetVitWorkload):
    @functools.partial(jax.jit, static_argnums=(0,))
    def eval_step(self, params, batch):
        return self.loss_fn(batch["targets"], self.logits(params, batch))

    @functools.partial(jax.jit, static_argnums=(0,))
    def initialize_cache(self, inputs):
        return self._model.init(jax.random.PRNGKey(0), inputs)

    def predict_step(self, inputs, params):
        return self.logits(params, {"inputs": inputs})
