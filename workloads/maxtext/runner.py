"""MaxText's own training with our attention: `python -m workloads maxtext`.

MaxText's `train` is executed unmodified; four methods of its classes are replaced, in memory
(`operator.substituted`). A record of the run lies beside its `metrics_file`, for `analysis`.
"""

import importlib.metadata
import importlib.util
import json
import pathlib
import sys
from collections.abc import Sequence
from typing import Any
from unittest import mock

from attention import registry, table
from attention.common import files

RECORD = "maxtext.json"
# What MaxText does not give a variant, and why.
LACKS = {
    "layer": "does not tell an attention operator its layer's index",
    "memory": "hands nothing on from layer to layer",
    "rope": "rotates its queries and keys itself",
}
# What tells runs of one hyperparameter point apart.
_OF_A_RUN = (
    *("run_name", "metrics_file", "base_output_directory"),
    *("init_weights_seed", "data_shuffle_seed"),
)


def run(variant: str, tau: float | None, arguments: Sequence[str]) -> None:
    """Runs MaxText's training with the variant; returns when it has ended.

    arguments: a configuration file and key=value, as MaxText takes them. Raises ValueError for a
    variant or a setting that cannot be used together, and without MaxText.
    """
    hyperparameters: dict[str, Any] = {} if tau is None else {"tau": tau}
    chosen = registry.get(variant, **hyperparameters)
    table.check_model(variant, LACKS, "MaxText")
    if not arguments or "=" in arguments[0]:
        raise ValueError(
            "no configuration of MaxText's; give its file and settings after `--`: "
            "... -- CONFIG.yml run_name=NAME steps=100"
        )
    if importlib.util.find_spec("maxtext") is None:
        raise ValueError(
            f"MaxText is not installed in this Python {sys.version_info[0]}.{sys.version_info[1]}; "
            f"it needs Python 3.12 or newer: pip install 'maxtext[tpu]==0.2.5' (docs/maxtext.md)"
        )
    from absl import logging
    from maxtext.trainers.pre_train import train

    from workloads.maxtext import operator

    # As absl's app.run does, which MaxText starts by: its lines of steps are shown.
    logging.use_absl_handler()
    logging.set_verbosity(logging.INFO)
    original = train.initialize

    def initialize(argv: Sequence[str]) -> Any:
        config, recorder = original(argv)
        operator.check_config(config, chosen)
        if config.metrics_file:
            _write_record(config, chosen.name, tau, arguments)
        return config, recorder

    with (
        mock.patch.object(train, "initialize", initialize),
        operator.substituted(chosen) as substitution,
    ):
        train.main(["maxtext", *arguments])
    print(
        f"python -m workloads maxtext: {chosen.name!r} ran in all {substitution.layers} layers",
        file=sys.stderr,
    )


def _write_record(config: Any, variant: str, tau: float | None, arguments: Sequence[str]) -> None:
    """Writes which variant trains beside the run's metrics file.

    Raises ValueError if a run with another metrics file has its record there.
    """
    metrics = pathlib.Path(config.metrics_file)
    path = metrics.parent / RECORD
    if (
        path.is_file()
        and json.loads(path.read_text(encoding="utf-8"))["metrics_file"] != metrics.name
    ):
        raise ValueError(
            f"{path} is another run's; give each run a folder: metrics_file=RUN/m.jsonl"
        )
    metrics.parent.mkdir(parents=True, exist_ok=True)
    settings = dict(argument.split("=", 1) for argument in arguments[1:])
    record = {
        "attention": variant,
        "attention_tau": tau,
        "workload": f"maxtext:{config.model_name}_{config.dataset_type.value}",
        "rng_seed": config.init_weights_seed,
        "num_train_steps": config.steps,
        "metrics_file": metrics.name,
        "hyperparameters": {key: value for key, value in settings.items() if key not in _OF_A_RUN},
        "versions": {name: importlib.metadata.version(name) for name in ("maxtext", "jax", "flax")},
    }
    files.write(path, json.dumps(record, indent=1) + "\n")
