"""A trial in init2winit's words: its point, seed and batch size as `hparam_overrides`."""

from typing import Any

from sweeps.study.trial import Trial
from workloads import init2winit_specs as specs
from workloads.init2winit import preflight


def hparam_overrides(trial: Trial) -> dict[str, Any]:
    """Returns the hyperparameters that a trial's own init2winit is given.

    NAdamW and AdamW by its `kitchen_sink`: the direction, then decay of all parameters, then the
    rate, which it puts behind (optimizer_lib/kitchen_sink); gradients are clipped by their norm
    before that. Warmup of int(warmup_factor · steps) updates, then a cosine to 0, as AlgoPerf's
    (`sweeps.training.optimizers.learning_rate`). Dropout by the model's names.
    """
    point = trial.hyperparameters
    model = specs.MODELS[specs.short_name(trial.workload)]
    direction = {
        "b1": 1.0 - point["one_minus_beta1"],
        "b2": point["beta2"],
        "eps": point["epsilon"],
    }
    decay = {"weight_decay": point["weight_decay"]}
    chain: dict[str, Any] = {
        "0": {"element": specs.OPTIMIZERS[trial.optimizer], "hps": direction},
        "1": {"element": "add_decayed_weights", "hps": decay},
    }
    # Among elements by their numbers alone it takes them for a chain; beside the limit of the
    # gradients' norm it has to be told so.
    optimizer: dict[str, Any] = chain
    if "grad_clip" in point:
        optimizer = {"join": chain, "grad_clip": point["grad_clip"]}
    return {
        **specs.read_config(trial.init2winit_config).get(specs.OVERRIDES, {}),
        # A point that names no rate has 0 (`sweeps.study.hyperparameters.DEFAULTS`).
        **dict.fromkeys(model.dropout, point["dropout_rate"]),
        "batch_size": trial.batch_size,
        "rng_seed": trial.seed,
        "label_smoothing": point["label_smoothing"],
        "optimizer": "kitchen_sink",
        "opt_hparams": optimizer,
        "lr_hparams": {
            "schedule": "cosine_warmup",
            "base_lr": point["learning_rate"],
            "warmup_steps": int(point["warmup_factor"] * trial.steps),
        },
    }


def main_arguments(trial: Trial, experiment_dir: str) -> tuple[str, ...]:
    """Returns the arguments of init2winit's main.py that train a trial in `experiment_dir`."""
    fields = specs.read_config(trial.init2winit_config)
    return preflight.arguments(
        fields | {specs.OVERRIDES: hparam_overrides(trial)},
        experiment_dir,
        model=specs.short_name(trial.workload),
        num_train_steps=trial.steps,
        eval_frequency=trial.eval_every,
        log_frequency=trial.log_every,
    )
