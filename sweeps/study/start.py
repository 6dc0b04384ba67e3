"""Initial parameters from another study's checkpoints: config.finetune_from.

A trial starts from the last checkpoint of the other study's trial with the same variant and seed;
of several points, from the one that validation prefers. If the other study has fewer seeds, they
are taken in turn. Only trials that are done count, of the last stage that has begun. The optimizer
and the schedule begin anew.
"""

import dataclasses
import math
import pathlib
from collections.abc import Iterable
from typing import Any

from attention.common import files
from sweeps.records import layout, status
from sweeps.study import checks, selection
from sweeps.study import trial as trials
from sweeps.study.trial import Trial
from workloads import catalog

# Parts of a checkpoint's state that are taken over, as its record names them.
_PARTS = (".params", ".model_state")


@dataclasses.dataclass(frozen=True)
class Start:
    """The checkpoint that trials of a variant and a seed start from.

    checkpoint: its folder. content: 16 hex digits of what the parameters are, which is in the
    trials' ids.
    """

    variant: str
    seed: int
    checkpoint: str
    content: str


def content(checkpoint: pathlib.Path) -> str:
    """Returns what identifies a checkpoint's parameters: its trial, its step, their shapes and the
    sums of their bits.

    Raises ValueError if its record is damaged.
    """
    record = layout.record(checkpoint / layout.CHECKPOINT_RECORD, shapes=dict, sums=dict, trial=str)
    identity: dict[str, Any] = {
        part: {name: value for name, value in record[part].items() if name.startswith(_PARTS)}
        for part in ("shapes", "sums")
    }
    identity |= {"trial": record["trial"], "step": int(checkpoint.name)}
    return layout.digest(identity)[:16]


def find(settings: dict[str, Any], pairs: Iterable[tuple[str, int]]) -> tuple[Start, ...]:
    """Returns the starts of pairs of variant and seed, by config.finetune_from.

    Raises selection.NotYetError if the other study or its trials are not there, ValueError if
    its model is another one or a checkpoint cannot be read.
    """
    directory = pathlib.Path(settings["finetune_from"])
    try:
        _, planned = layout.planned_stage(directory, layout.study_record(directory))
    except ValueError as error:
        raise selection.NotYetError(
            f"finetune_from: {error}; train it first: python -m sweeps run "
            f"--config={files.quoted(directory.name)} "
            f"--config.experiment_dir={files.quoted(directory.parent)}"
        ) from error
    done = [row for row in planned if status.read(directory / row["path"])["state"] == "done"]
    starts = []
    for variant, seed in pairs:
        seeds = sorted({row["seed"] for row in done if row["variant"] == variant})
        if not seeds:
            trained = dict.fromkeys(row["variant"] for row in done)
            raise selection.NotYetError(
                f"finetune_from: {directory} has no trial of {variant} that is done, for trials of "
                f"{variant} to start from; variants with one: {', '.join(trained) or 'none'}"
            )
        source = (variant, seed if seed in seeds else seeds[seed % len(seeds)])
        points = [row for row in done if (row["variant"], row["seed"]) == source]
        source_trial = directory / _best(directory, points)
        _check_model(settings, variant, trials.read(source_trial), source_trial)
        steps = layout.checkpoint_steps(source_trial)
        if not steps:
            raise ValueError(
                f"finetune_from: {source_trial} has no checkpoint, so there is nothing to start "
                f"from; copy its {layout.CHECKPOINTS}/ back"
            )
        checkpoint = source_trial / layout.CHECKPOINTS / str(steps[-1])
        starts.append(Start(variant, seed, str(checkpoint), content(checkpoint)))
    return tuple(starts)


def _best(study: pathlib.Path, rows: list[dict[str, Any]]) -> str:
    """Returns the path of the point that validation prefers, of one variant's and seed's."""
    if len(rows) == 1:
        return str(rows[0]["path"])
    entry = catalog.get(rows[0]["workload"])
    column = f"validation/{entry.metric}"
    values = [selection.trial_value(study / row["path"], column, entry.mode) for row in rows]
    best = selection.best_index(
        [math.nan if value is None else value for value in values], entry.mode
    )
    return str(rows[best or 0]["path"])


def _check_model(settings: dict[str, Any], variant: str, other: Trial, where: pathlib.Path) -> None:
    """Raises ValueError if a trial's model is another one than the study's."""
    fields = (
        *("param_dtype", "scan_layers", "kv_heads", "positions", "global_every"),
        "document_mask",
    )
    wanted = {
        "its model": catalog.model(settings["workload"]),
        variant: checks.variant_hyperparameters(variant, settings),
        **{field: settings[field] for field in fields},
    }
    trained = {
        "its model": catalog.model(other.workload),
        variant: other.variant_hyperparameters,
        **{field: getattr(other, field) for field in fields},
    }
    for name, value in wanted.items():
        if trained[name] != value:
            raise ValueError(
                f"finetune_from: {where} cannot be started from: {name} is {trained[name]} there "
                f"and {value} here"
            )
