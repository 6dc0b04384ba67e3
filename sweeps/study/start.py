"""Where a trial starts whose study goes on from another one's models: config.finetune_from.

A trial starts from the last checkpoint of the other study's trial with the same variant and seed;
of several points, from the one that validation prefers. Where the other study has fewer seeds, they
are taken in turn: of one seed, all trials start from it. Trials are those of the last stage that
has begun, and done. The parameters alone are taken over: the optimizer and the schedule begin anew.
"""

import dataclasses
import hashlib
import json
import pathlib
from collections.abc import Iterable
from typing import Any

from attention import files
from sweeps.records import layout, status
from sweeps.study import checks, selection
from sweeps.study import trial as trials
from sweeps.study.trial import Trial
from workloads import catalog

# Parts of a checkpoint's state that are taken over, as its record names them.
_PARTS = (".params", ".model_state")


class NotTrainedError(ValueError):
    """The other study is not there, or not trained yet."""


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

    Raises ValueError where its record is damaged.
    """
    path = checkpoint / layout.CHECKPOINT_RECORD
    record: Any = layout.read_json_if_there(path)
    try:
        identity: dict[str, Any] = {
            part: {name: value for name, value in record[part].items() if name.startswith(_PARTS)}
            for part in ("shapes", "sums")
        }
        identity |= {"trial": record["trial"], "step": int(checkpoint.name)}
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{path} does not say what the checkpoint holds ({type(error).__name__}: {error}), so "
            "nothing can start from it"
        ) from error
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]


def find(settings: dict[str, Any], pairs: Iterable[tuple[str, int]]) -> tuple[Start, ...]:
    """Returns the starts of pairs of variant and seed, by config.finetune_from.

    Raises NotTrainedError where the other study or its trials are not there, ValueError where its
    model is another one or a checkpoint cannot be read.
    """
    directory = pathlib.Path(settings["finetune_from"])
    rows = _rows(directory)
    by_variant: dict[str, dict[int, list[dict[str, Any]]]] = {}
    for row in rows:
        if status.read(directory / row["path"])["state"] == "done":
            by_variant.setdefault(row["variant"], {}).setdefault(row["seed"], []).append(row)
    starts = []
    for variant, seed in pairs:
        seeds = by_variant.get(variant)
        if not seeds:
            raise NotTrainedError(
                f"finetune_from: {directory} has no trial of {variant} that is done, for trials of "
                f"{variant} to start from; variants with one: {', '.join(by_variant) or 'none'}"
            )
        of_seed = seeds[seed] if seed in seeds else seeds[sorted(seeds)[seed % len(seeds)]]
        starts.append(_start(settings, directory, variant, seed, _best(directory, of_seed)))
    return tuple(starts)


def _rows(directory: pathlib.Path) -> list[dict[str, Any]]:
    if not (directory / layout.STUDY).exists():
        raise NotTrainedError(
            f"finetune_from: {directory} is no study; train it first: python -m sweeps run "
            f"--config={files.quoted(directory.name)} "
            f"--config.experiment_dir={files.quoted(directory.parent)}"
        )
    record = layout.study_record(directory)
    try:
        _, rows = layout.planned_stage(directory, record)
    except ValueError as error:
        raise NotTrainedError(f"finetune_from: {error}") from error
    return rows


def _best(directory: pathlib.Path, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns the point that validation prefers, of trials of one variant and seed."""
    if len(rows) == 1:
        return rows[0]
    entry = catalog.get(rows[0]["workload"])
    column = f"validation/{entry.metric}"
    values = [selection.trial_value(directory / row["path"], column, entry.mode) for row in rows]
    numbers = [float("nan") if value is None else value for value in values]
    best = selection.best_index(numbers, entry.mode)
    return rows[best or 0]


def _start(
    settings: dict[str, Any], study: pathlib.Path, variant: str, seed: int, row: dict[str, Any]
) -> Start:
    directory = study / row["path"]
    _check_model(settings, variant, trials.read(directory), directory)
    steps = layout.checkpoint_steps(directory)
    if not steps:
        raise ValueError(
            f"finetune_from: {directory} has no checkpoint, so there is nothing to start from; "
            f"copy its {layout.CHECKPOINTS}/ back"
        )
    checkpoint = directory / layout.CHECKPOINTS / str(steps[-1])
    return Start(variant, seed, str(checkpoint), content(checkpoint))


def _check_model(settings: dict[str, Any], variant: str, other: Trial, where: pathlib.Path) -> None:
    """Raises ValueError where a trial's model is another one than the study's."""
    mine, its = catalog.model(settings["workload"]), catalog.model(other.workload)
    differing = [f"its model is {its}, this study's {mine}"] if mine != its else []
    here, there = checks.variant_hyperparameters(variant, settings), other.variant_hyperparameters
    if here != there:
        differing.append(f"{variant} has {there} there and {here} here")
    differing += [
        f"{key} is {getattr(other, key)} there and {settings[key]} here"
        for key in ("param_dtype", "scan_layers")
        if getattr(other, key) != settings[key]
    ]
    if differing:
        raise ValueError(f"finetune_from: {where} cannot be started from: {differing[0]}")
