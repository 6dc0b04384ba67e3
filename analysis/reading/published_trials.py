"""Reads one trial of AlgoPerf's published logs."""

import pathlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from analysis.files import evaluations
from analysis.files.measurements import Measurements
from analysis.files.records import Run
from analysis.files.trial_files import TrialFiles, read_ahead
from analysis.reading import fabricated, metrics, recorded_variants, selection
from analysis.reading.recorded_variants import FLAGS, META
from sweeps.records import layout


@dataclass(frozen=True)
class Place:
    """Where a trial lies and what its place says of it. `root` is the directory being read,
    `variant` what its submission's folder is called."""

    root: pathlib.Path
    path: pathlib.Path
    variant: str
    workload: str
    seed: int
    point: int
    stage: str


def read_trials(places: Sequence[Place], whole: bool = False) -> list[Run]:
    """Returns the trials as runs: `done` where one left evaluations, `failed` where it began and
    left none, `pending` where it left nothing. `whole` also checks measurements.csv.

    `steps` is the run's own limit (`max_global_steps` of flags_0.json).
    """
    ahead = read_ahead([place.path for place in places])
    return [_read_trial(place, whole, file) for place, file in zip(places, ahead, strict=True)]


def _read_trial(place: Place, whole: bool, ahead: Measurements | OSError) -> Run:
    files = TrialFiles(place.path, place.path.relative_to(place.root).as_posix(), ahead=ahead)
    evals = files.evaluations()
    if whole:
        files.check_losses()
    meta, flags = files.json(META), files.json(FLAGS)
    columns = evals.columns if evals else {}
    metric = metrics.target(columns, meta.get("workload.target_metric_name"), place.workload)
    hyperparameters = _hyperparameters(files, flags)
    recorded = recorded_variants.of_trial(files.name, flags, meta)
    state, reason = _state(files, evals, bool(meta or flags))
    problems, notes = _judged(files.name, evals, metric)
    run = Run(
        workload=place.workload,
        variant=recorded.variant or place.variant,
        stage=place.stage,
        point=place.point,
        seed=place.seed,
        path=place.path,
        name=files.name,
        state=state,
        reason=reason,
        steps=flags.get("max_global_steps"),
        step_hint=meta.get("workload.step_hint"),
        allowed_s=meta.get("workload.max_allowed_runtime_sec"),
        metric=metric,
        targets=_targets(meta),
        hyperparameters=hyperparameters,
        variant_hyperparameters=recorded.hyperparameters,
        evals=files.evaluation_curves(evals) if evals and columns else {},
        trains=files.loss_curves(),
        problems=(
            *files.problems,
            *problems,
            *recorded.problems,
            *fabricated.problems(files.name, meta),
        ),
        notes=(*files.notes, *notes),
    )
    selection.remember(run)
    return run


def _targets(meta: dict[str, Any]) -> dict[str, Any]:
    """Returns AlgoPerf's targets, empty where the metadata has none."""
    names = {
        "metric": "workload.target_metric_name",
        "validation": "workload.validation_target_value",
        "test": "workload.test_target_value",
    }
    return {name: meta[key] for name, key in names.items() if meta.get(key) is not None}


def _hyperparameters(files: TrialFiles, flags: dict[str, Any]) -> dict[str, Any]:
    """Self-tuning submissions have none; of the others a trial without them cannot be told."""
    found = files.json_if_there(layout.HPARAMS)
    if found is None and flags.get("tuning_ruleset") == "external":
        files.problems.append(f"missing: {files.name}: no {layout.HPARAMS}")
    return found or {}


def _state(
    files: TrialFiles, evals: Measurements | None, has_records: bool
) -> tuple[str, str | None]:
    if evals is not None and len(evals.columns.get("global_step", ())):
        return "done", None
    began = has_records or (files.directory / layout.MEASUREMENTS).is_file()
    what = f"no {layout.EVAL_MEASUREMENTS}" if evals is None else "no complete evaluation"
    if not began:
        files.problems.append(f"missing: {files.name}: {what}")
        return "pending", None
    reason = f"it began and left {what}"
    if not files.names_damage(layout.EVAL_MEASUREMENTS):
        files.problems.append(f"failed: {files.name}: {reason}")
    return "failed", reason


def _judged(name: str, evals: Measurements | None, metric: str) -> tuple[list[str], list[str]]:
    if evals is None or not evals.columns:
        return [], []
    found = evaluations.non_finite(evals, empty_is_nan=True)
    absent = evaluations.absent(evals, metric)
    notes = [f"{name}: no column {', '.join(absent)}"] if absent else []
    return [f"non-finite: {name}: {where}" for where in found], notes
