"""Our NAdamW as an AlgoPerf submission, external tuning ruleset, JAX::

    python submission_runner.py --framework=jax --workload=imagenet_vit \\
        --submission_path=sweeps/algoperf/submission.py --tuning_ruleset=external \\
        --tuning_search_space=sweeps/spaces/paper_nadamw.json --num_tuning_trials=50 ...

The runner imports the path as a module: it works from any folder in which `import sweeps` does.

Hyperparameters: learning_rate, beta2, weight_decay, one_minus_beta1 or beta1, warmup_factor or
warmup_steps; label_smoothing (default 0), dropout_rate (default: the model's), grad_clip (default:
none), epsilon (default 1e-8). All of them are traced: trials of one process that differ in values
alone share a compilation as long as the workload object lives.

Signatures: algoperf/spec.py and submission_runner.py. The runner parses its flags before it imports
a submission, so that ATTNPERF_BATCH_SIZE sets the batch size, which flags_0.json has as
`batch_size`.
"""

import functools
import math
import os
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from absl import flags

from sweeps.study.hyperparameters import complete
from sweeps.training import optimizers

OPTIMIZER = "nadamw"
# algorithms/baselines/external_tuning/jax_nadamw_full_budget.py.
BATCH_SIZES = {
    "criteo1tb": 262_144,
    "fastmri": 32,
    "finewebedu_lm": 64,
    "imagenet_resnet": 1024,
    "imagenet_resnet_gelu": 512,
    "imagenet_resnet_silu": 512,
    "imagenet_vit": 1024,
    "librispeech_conformer": 256,
    "librispeech_deepspeech": 256,
    "mnist": 16,
    "ogbg": 512,
    "wmt": 128,
}
_OPTIONAL = {"label_smoothing": 0.0, "grad_clip": math.inf, "epsilon": 1e-8}
_LOG_EVERY = 100  # updates, as AlgoPerf's own submissions


_VARIABLE = "ATTNPERF_BATCH_SIZE"
if "batch_size" not in flags.FLAGS:
    _text = os.environ.get(_VARIABLE, "0")
    if not _text.isdecimal():
        raise ValueError(f"{_VARIABLE}={_text!r}: give a whole number of examples")
    flags.DEFINE_integer("batch_size", int(_text), f"{_VARIABLE}; 0: AlgoPerf's")


def get_batch_size(workload_name: str) -> int:
    """Returns the global batch size: ATTNPERF_BATCH_SIZE, else that of AlgoPerf's NAdamW baseline.

    Raises ValueError for a name without one; the runner then asks for its base workload's.
    """
    if size := flags.FLAGS["batch_size"].value:
        return int(size)
    if workload_name not in BATCH_SIZES:
        raise ValueError(
            f"no batch size is known for workload {workload_name!r}, only for "
            f"{', '.join(BATCH_SIZES)}; set {_VARIABLE}"
        )
    return BATCH_SIZES[workload_name]


def scalars_of(hyperparameters: Any, step_hint: int) -> dict[str, float]:
    """Returns what the compiled step takes, from the runner's named tuple of a trial.

    Raises ValueError for hyperparameters that are unknown, missing, impossible or given in both
    forms.
    """
    point: Mapping[str, Any] = hyperparameters._asdict()
    in_steps = {"warmup_factor": 0.0} if "warmup_steps" in point else {}
    if in_steps.keys() & point.keys():
        raise ValueError("the search space has warmup_factor and warmup_steps; give one of them")
    complete({**in_steps, **{name: point[name] for name in point if name != "warmup_steps"}})
    values = {**_OPTIONAL, **point, "step_hint": step_hint}
    # AlgoPerf computes these in Python's 53 bits and rounds them to float32 at their use.
    values.setdefault("beta1", 1.0 - values.get("one_minus_beta1", 0.0))
    values["one_minus_beta1"] = 1.0 - values["beta1"]
    values["one_minus_beta2"] = 1.0 - values["beta2"]
    factor = values.pop("warmup_factor", None)
    if factor is not None:
        values["warmup_steps"] = int(factor * step_hint)
    return values


class Update:
    """The compiled train step of one workload object; `compilations` counts its programs."""

    def __init__(self, workload: Any) -> None:
        from algoperf import jax_sharding_utils

        self._workload = workload
        self.compilations = 0
        whole = self._whole = jax_sharding_utils.get_replicate_sharding()
        divided = jax_sharding_utils.get_batch_dim_sharding()
        self._step = jax.jit(
            self._traced,
            donate_argnums=(0, 1, 2),
            in_shardings=(whole, whole, whole, divided, whole, whole),
            out_shardings=whole,
        )

    def __call__(self, state: Any, params: Any, model_state: Any, *arguments: Any) -> Any:
        """Returns state, parameters, model state, loss and gradient norm after an update."""
        if not self.compilations:
            # Not every workload's first parameters lie as the step returns them (wmt's), and
            # JAX would trace the step again for the second update.
            carried = jax.device_put((state, params, model_state), self._whole)
            return self._step(*carried, *arguments)
        return self._step(state, params, model_state, *arguments)

    def _traced(
        self, state: Any, params: Any, model_state: Any, batch: Any, rng: Any, scalars: Any
    ) -> Any:
        from algoperf import spec

        self.compilations += 1
        dropout = {name: scalars[name] for name in ("dropout_rate",) if name in scalars}

        def summed_loss(params: Any) -> Any:
            logits, new = self._workload.model_fn(
                params,
                batch,
                model_state,
                spec.ForwardPassMode.TRAIN,
                rng,
                update_batch_norm=True,
                **dropout,
            )
            losses = self._workload.loss_fn(
                label_batch=batch["targets"],
                logits_batch=logits,
                mask_batch=batch.get("weights"),
                label_smoothing=scalars["label_smoothing"],
            )
            return losses["summed"], (losses["n_valid_examples"], new)

        (summed, (count, new)), gradients = jax.value_and_grad(summed_loss, has_aux=True)(params)
        gradients = jax.tree.map(lambda leaf: leaf / count, gradients)
        norm = jnp.sqrt(sum(jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(gradients)))
        gradients = optimizers.clip(gradients, norm, scalars["grad_clip"])
        params, moments = optimizers.step(
            OPTIMIZER, gradients, state["moments"], params, state["step"], scalars
        )
        # Models without a state return None for it, which would be another program.
        kept = model_state if new is None else new
        return {"step": state["step"] + 1, "moments": moments}, params, kept, summed / count, norm


def init_optimizer_state(
    workload: Any, model_params: Any, model_state: Any, hyperparameters: Any, rng: Any
) -> tuple[Any, Update]:
    """Returns (state, update): moments and the number of updates made, and the compiled step.

    A pair, because the runner checkpoints the first and leaves the second.
    """
    scalars_of(hyperparameters, workload.step_hint)  # refused before the first batch is read
    # Compiled, so that each of the moments has a buffer of its own, which an update may reuse.
    moments = jax.jit(functools.partial(optimizers.init, OPTIMIZER))(model_params)
    return {"step": jnp.zeros([], jnp.int32), "moments": moments}, Update(workload)


def update_params(
    workload: Any,
    current_param_container: Any,
    current_params_types: Any,
    model_state: Any,
    hyperparameters: Any,
    batch: Any,
    loss_type: Any,
    optimizer_state: tuple[Any, Update],
    eval_results: Any,
    global_step: int,
    rng: Any,
    train_state: Any = None,
) -> tuple[Any, Any, Any]:
    """Returns (optimizer state, parameters, model state) after one update of NAdamW.

    Loss and gradient norm before clipping go to the workload's metrics logger every 100 updates.
    """
    state, update = optimizer_state
    values = scalars_of(hyperparameters, workload.step_hint)
    scalars = {name: jnp.asarray(value, jnp.float32) for name, value in values.items()}
    state, params, model_state, loss, norm = update(
        state, current_param_container, model_state, batch, rng, scalars
    )
    if global_step % _LOG_EVERY == 0 and workload.metrics_logger is not None:
        measured = {"loss": float(loss), "grad_norm": float(norm)}
        workload.metrics_logger.append_scalar_metrics(measured, global_step)
    return (state, update), params, model_state


def prepare_for_eval(
    workload: Any,
    current_param_container: Any,
    current_params_types: Any,
    model_state: Any,
    hyperparameters: Any,
    loss_type: Any,
    optimizer_state: Any,
    eval_results: Any,
    global_step: int,
    rng: Any,
) -> tuple[Any, Any, Any]:
    """Returns (optimizer state, parameters, model state) as they are: NAdamW evaluates these."""
    return optimizer_state, current_param_container, model_state


def data_selection(
    workload: Any,
    input_queue: Iterator[Any],
    optimizer_state: Any,
    current_param_container: Any,
    model_state: Any,
    hyperparameters: Any,
    global_step: int,
    rng: Any,
) -> Any:
    """Returns the next batch of the queue, as it comes."""
    return next(input_queue)
