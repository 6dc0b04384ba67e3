"""A submission: plain gradient descent with the workload as a static argument of its step."""

import functools

import jax
from algoperf import spec


def get_batch_size(workload_name):
    if workload_name not in ("imagenet_vit", "librispeech_conformer", "wmt"):
        raise ValueError(f"Unsupported workload name: {workload_name}.")
    return 4


def init_optimizer_state(workload, model_params, model_state, hyperparameters, rng):
    return {}


@functools.partial(jax.jit, static_argnums=(0,))
def _step(workload, params, model_state, batch, rng, rate):
    def loss_of(params):
        logits, _ = workload.model_fn(
            params, batch, model_state, spec.ForwardPassMode.TRAIN, rng, update_batch_norm=True
        )
        loss = workload.loss_fn(batch["targets"], logits, batch.get("weights"))
        return loss["summed"] / loss["n_valid_examples"]

    loss, gradient = jax.value_and_grad(loss_of)(params)
    return loss, jax.tree.map(lambda p, g: p - rate * g, params, gradient)


def update_params(
    workload,
    current_param_container,
    current_params_types,
    model_state,
    hyperparameters,
    batch,
    loss_type,
    optimizer_state,
    eval_results,
    global_step,
    rng,
    train_state=None,
):
    rate = hyperparameters.learning_rate
    loss, params = _step(workload, current_param_container, model_state, batch, rng, rate)
    workload.metrics_logger.append_scalar_metrics({"loss": loss.item()}, global_step)
    return optimizer_state, params, model_state


def prepare_for_eval(
    workload,
    current_param_container,
    current_params_types,
    model_state,
    hyperparameters,
    loss_type,
    optimizer_state,
    eval_results,
    global_step,
    rng,
):
    return optimizer_state, current_param_container, model_state


def data_selection(
    workload,
    input_queue,
    optimizer_state,
    current_param_container,
    model_state,
    hyperparameters,
    global_step,
    rng,
):
    return next(input_queue)
