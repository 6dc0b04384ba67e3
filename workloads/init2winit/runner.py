"""init2winit's own trainer with our attention: `python -m workloads init2winit`.

Its `main.py` is run as it is: its function `main` reads its config, makes data set,
hyperparameters and model, and trains by its trainer. Replaced, in memory, are `models.get_model`,
whose class gets the variant, `_write_trial_meta_data`, which records it, and what the public tree
lacks (`missing_symbols`). What its hyperparameters refuse is said in a sentence.
"""

import functools
import os
import sys
from typing import Any

from workloads.algoperf.preflight import Request
from workloads.init2winit import installation, missing_symbols, preflight

# optimizer_lib/optimizers.py has no branch for nadam, though its defaults are there.
_NADAMW = (
    '"optimizer": "kitchen_sink", "opt_hparams": {"0": {"element": "scale_by_nadam", "hps": '
    '{"b1": 0.9, "b2": 0.999}}, "1": {"element": "add_decayed_weights", "hps": '
    '{"weight_decay": 0.1}}}'
)


def run(request: Request, init2winit_dir: str | None = None, data_dir: str | None = None) -> None:
    """Runs init2winit's main with the variant; returns when it has ended.

    Everything is checked first (`preflight.check`), before JAX or TensorFlow load; what is filled
    in, and notes, go to standard error. Raises ValueError for what the checks refuse and for
    hyperparameters that init2winit refuses, MissingError without init2winit, SystemExit
    where training ends, with status 1 where it diverged.
    """
    checkout = installation.find(init2winit_dir)
    checked = preflight.check(request, checkout, data_dir)
    print(f"python -m workloads init2winit: {checkout}", file=sys.stderr)
    for note in filter(None, (checkout.remark, checked.note)):
        print(f"python -m workloads init2winit: note: {note}", file=sys.stderr)
    for symbol in missing_symbols.TABLE:
        line = f"filled in ({symbol.kind}): {symbol.missing}: {symbol.instead}"
        print(line, file=sys.stderr)
    if data_dir is not None:
        os.environ["TFDS_DATA_DIR"] = data_dir
    main = checkout.main_module(data_dir)
    prepare(main, request, checked, checkout.record())
    _run(main, checked)


def prepare(
    main: Any, request: Request, checked: preflight.CheckedRun, checkout: dict[str, str]
) -> None:
    """Has init2winit's module main train `checked` with the variant.

    meta_data.json gains the record of the run, and that of the checkout.
    """
    from attention import registry
    from workloads.algoperf.causal_attention import Substitute
    from workloads.init2winit import models

    record = {**checked.record, **checkout}
    variant = registry.get(request.attention, **request.hyperparameters)
    get_model, build = main.models.get_model, main.hyperparameters.build_hparams
    write = main._write_trial_meta_data

    def with_variant(name: str) -> Any:
        count = functools.partial(record.__setitem__, "attention_layers")
        return models.model_class(get_model(name), name, lambda hps: variant, count)

    @functools.wraps(build)
    def build_hparams(*args: Any, **kwargs: Any) -> Any:
        try:
            hps = build(*args, **kwargs)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            words = " ".join(str(error).split())
            raise ValueError(f"init2winit refuses these hparam_overrides: {words}") from error
        check_hyperparameters(hps)
        return hps

    main.models = Substitute(main.models, get_model=with_variant)
    main.hyperparameters = Substitute(main.hyperparameters, build_hparams=build_hparams)
    main._write_trial_meta_data = lambda path, meta_data: write(path, {**meta_data, **record})
    main.experiment_dir = str(checked.experiment_dir)
    main.worker_id = checked.worker_id


def check_hyperparameters(hps: Any) -> None:
    """Raises ValueError for a warmup without a length, as the ViT's own defaults have it, and for
    the optimizer nadam."""
    schedule = hps.lr_hparams
    named = {"warmup_steps", "warmup_steps_fraction"} & set(schedule)
    if str(schedule.get("schedule", "")).endswith("_warmup") and not named:
        raise ValueError(
            f"the schedule {schedule['schedule']} needs lr_hparams.warmup_steps or "
            "lr_hparams.warmup_steps_fraction, for which init2winit has no default; give it in "
            "--config.hparam_overrides_json"
        )
    if hps.optimizer == "nadam":
        raise ValueError(
            "hyperparameter optimizer is nadam, which init2winit's optimizers.py does not make "
            f"(afd5a84); its NAdamW is {_NADAMW}"
        )


def _run(main: Any, checked: preflight.CheckedRun) -> None:
    """Runs its function main as the last lines of its file would."""
    import jax
    from absl import app, flags

    sys.argv = [str(main.__file__), *checked.arguments]
    flags.DEFINE_integer("worker_id", 1, "The run's number: <experiment_dir>/<worker_id>.")
    jax.config.config_with_absl()
    diverged = sys.modules["init2winit.utils"].TrainingDivergedError
    try:
        app.run(main.main)
    except diverged as error:
        print(f"python -m workloads init2winit: diverged: {error}", file=sys.stderr)
        raise SystemExit(1) from error
