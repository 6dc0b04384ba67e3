"""What the small workloads share: random data, cross-entropy, accuracy."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from algoperf import spec

CLASSES = 6


class TinyWorkload:
    target_metric_name = "accuracy"
    validation_target_value = 0.99
    test_target_value = 0.99
    num_train_examples = 16
    num_eval_train_examples = 4
    num_validation_examples = 4
    num_test_examples = 4
    eval_batch_size = 4
    step_hint = 100

    def __init__(self, tokenizer_vocab_path=None):
        self.tokenizer_vocab_path = tokenizer_vocab_path
        self._eval_iters = {}
        self._param_shapes = None

    @property
    def param_shapes(self):
        if self._param_shapes is None:
            raise ValueError("init_model_fn comes first")
        return self._param_shapes

    def make_model(self):
        raise NotImplementedError

    def example(self):
        """What the model is initialised on."""
        return (jnp.ones((1, 5, 8)),)

    def init_model_fn(self, rng):
        self._model = self.make_model()
        params = jax.jit(self._model.init)(rng, *self.example())["params"]
        self._param_shapes = params
        return params, {}

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
        return self.logits(params, augmented_and_preprocessed_input_batch), None

    def logits(self, params, batch):
        return self._model.apply({"params": params}, batch["inputs"])

    def loss_fn(self, label_batch, logits_batch, mask_batch=None, label_smoothing=0.0):
        wanted = jax.nn.one_hot(label_batch, logits_batch.shape[-1])
        losses = -jnp.sum(wanted * jax.nn.log_softmax(logits_batch), axis=-1)
        weights = jnp.ones_like(losses) if mask_batch is None else mask_batch
        return {"summed": jnp.sum(losses * weights), "n_valid_examples": jnp.sum(weights)}

    def draw(self, draws, size):
        """A batch."""
        inputs = draws.standard_normal((size, 5, 8)).astype(np.float32)
        return {"inputs": inputs, "targets": draws.integers(0, CLASSES, size)}

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
            yield jax.tree.map(jnp.asarray, self.draw(draws, global_batch_size))

    @functools.partial(jax.jit, static_argnums=(0,))
    def _eval_batch(self, params, batch, model_state, rng):
        logits, _ = self.model_fn(
            params, batch, model_state, spec.ForwardPassMode.EVAL, rng, update_batch_norm=False
        )
        hits = jnp.mean(jnp.argmax(logits, -1) == batch["targets"])
        loss = self.loss_fn(batch["targets"], logits)
        return {self.target_metric_name: hits, "loss": loss["summed"] / loss["n_valid_examples"]}

    def _eval_model_on_split(self, split, batch_size, params, model_state, rng, data_dir):
        if split not in self._eval_iters:
            self._eval_iters[split] = self._build_input_queue(rng, split, data_dir, batch_size)
        return self._eval_batch(params, next(self._eval_iters[split]), model_state, rng)

    def eval_model(
        self,
        global_batch_size,
        params,
        model_state,
        rng,
        data_dir,
        imagenet_v2_data_dir,
        global_step,
    ):
        results = {}
        for split in ("train", "validation", "test"):
            metrics = self._eval_model_on_split(
                split, global_batch_size, params, model_state, rng, data_dir
            )
            results |= {f"{split}/{name}": float(value) for name, value in metrics.items()}
            if split != "train":
                results[f"{split}/num_examples"] = getattr(self, f"num_{split}_examples")
        return results
