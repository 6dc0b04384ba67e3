"""What the stand-in's workloads share: random data, cross-entropy, accuracy."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from algoperf import param_utils, spec

CLASSES = 6


class TinyWorkload(spec.Workload):
    target_metric_name = "accuracy"
    validation_target_value = 0.99
    test_target_value = 0.99
    loss_type = spec.LossType.SOFTMAX_CROSS_ENTROPY
    num_train_examples = 16
    num_eval_train_examples = 4
    num_validation_examples = 4
    num_test_examples = 4
    eval_batch_size = 4
    train_mean = 0.0
    train_stddev = 1.0
    max_allowed_runtime_sec = 600
    eval_period_time_sec = 0
    step_hint = 100
    input_shape, input_dtype = (5, 8), jnp.float32

    def has_reached_validation_target(self, eval_result):
        return eval_result[f"validation/{self.target_metric_name}"] > self.validation_target_value

    def has_reached_test_target(self, eval_result):
        return eval_result[f"test/{self.target_metric_name}"] > self.test_target_value

    def is_output_params(self, param_key):
        return param_key == "head"

    def make_model(self):
        raise NotImplementedError

    def init_model_fn(self, rng):
        self._model = self.make_model()
        variables = jax.jit(self._model.init)(
            rng, jnp.ones((1, *self.input_shape), self.input_dtype)
        )
        self._param_shapes = param_utils.jax_param_shapes(variables["params"])
        self._param_types = param_utils.jax_param_types(self._param_shapes)
        return variables["params"], {}

    def model_fn(
        self,
        params,
        augmented_and_preprocessed_input_batch,
        model_state,
        mode,
        rng,
        update_batch_norm,
        dropout_rate=0.0,
    ):
        inputs = augmented_and_preprocessed_input_batch["inputs"]
        return self._model.apply({"params": params}, inputs), model_state

    def loss_fn(self, label_batch, logits_batch, mask_batch=None, label_smoothing=0.0):
        wanted = jax.nn.one_hot(label_batch, logits_batch.shape[-1])
        wanted = wanted * (1 - label_smoothing) + label_smoothing / logits_batch.shape[-1]
        losses = -jnp.sum(wanted * jax.nn.log_softmax(logits_batch), axis=-1)
        weights = jnp.ones_like(losses) if mask_batch is None else mask_batch
        return {
            "summed": jnp.sum(losses * weights),
            "n_valid_examples": jnp.sum(weights),
            "per_example": losses,
        }

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
            inputs = draws.standard_normal((global_batch_size, *self.input_shape))
            yield {
                "inputs": jnp.asarray(inputs, jnp.float32),
                "targets": jnp.asarray(draws.integers(0, CLASSES, global_batch_size)),
            }

    @functools.partial(jax.jit, static_argnums=(0,))
    def _eval_batch(self, params, batch, model_state, rng):
        logits, _ = self.model_fn(
            params, batch, model_state, spec.ForwardPassMode.EVAL, rng, update_batch_norm=False
        )
        hits = jnp.sum(jnp.argmax(logits, -1) == batch["targets"])
        return {"accuracy": hits, "loss": self.loss_fn(batch["targets"], logits)["summed"]}

    def _eval_model_on_split(
        self,
        split,
        num_examples,
        global_batch_size,
        params,
        model_state,
        rng,
        data_dir,
        global_step=0,
    ):
        if split not in self._eval_iters:
            self._eval_iters[split] = self._build_input_queue(
                rng, split, data_dir, global_batch_size
            )
        total = {"accuracy": 0.0, "loss": 0.0}
        for _ in range(-(-num_examples // global_batch_size)):
            found = self._eval_batch(params, next(self._eval_iters[split]), model_state, rng)
            total = {name: total[name] + float(found[name]) for name in total}
        accuracy, loss = (total[name] / num_examples for name in ("accuracy", "loss"))
        return {self.target_metric_name: accuracy, "loss": loss}
