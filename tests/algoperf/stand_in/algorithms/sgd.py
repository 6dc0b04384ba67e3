"""A submission: plain gradient descent with the workload as a static argument of its step."""

import functools

import jax
from algoperf import spec


def get_batch_size(workload_name):
    if workload_name not in ("imagenet_vit", "librispeech_conformer", "wmt"):
        raise ValueError(f"Unsupported workload name: {workload_name}.")
    return 4


@functools.partial(jax.jit, static_argnums=(0,))
def _step(workload, params, model_state, batch, rng, rate):
    def loss_of(params):
        logits, _ = workload.model_fn(
            params, batch, model_state, spec.ForwardPassMode.TRAIN, rng, update_batch_norm=True
        )
        loss = workload.loss_fn(batch["targets"], logits, batch.get("weights"))
        return loss["summed"] / loss["n_valid_examples"]

    return jax.tree.map(lambda p, g: p - rate * g, params, jax.grad(loss_of)(params))


def update_params(workload, current_param_container, model_state, hyperparameters, batch, rng):
    rate = hyperparameters["learning_rate"]
    return _step(workload, current_param_container, model_state, batch, rng, rate)


def prepare_for_eval(workload, current_param_container, global_step):
    return current_param_container
