"""Which checkpoints count: those whose trial has every measurement of the updates before them.

A trial resumes at its last checkpoint, and its curve goes on there. So a checkpoint is worth
nothing where rows before it are missing: its file was cut short or corrupted, or a worker that was
frozen past its lease finished writing a checkpoint of updates whose rows a later attempt replaced.
Such a checkpoint is removed, and the trial computes those updates again.
"""

import pathlib
import shutil
from typing import Any

from sweeps.records import layout, measurements
from sweeps.study.trial import Trial

# Where orbax keeps the item `progress` of sweeps.training.checkpoints: plain JSON.
RECORD = "progress/metadata"


def settle(trial: Trial, directory: pathlib.Path) -> list[str]:
    """Removes checkpoints that do not count; returns a line on each, and on damaged files.

    Call it as the trial's only worker, before its checkpoints are opened. Raises ValueError where
    the curve cannot be put together at all.
    """
    steps = _steps(directory)
    if not steps:
        return []
    found = measurements.damages(directory)
    rows = measurements.curve(directory)
    for step in steps:
        lacking = missing(trial, rows, step)
        if lacking is None or _is_of_another(trial, directory, step):
            break
        found.append(f"checkpoint {step} is removed: no {lacking} is on disk; it is computed again")
        shutil.rmtree(directory / layout.CHECKPOINTS / str(step))
    return found


def republish(trial: Trial, directory: pathlib.Path) -> bool:
    """Writes the CSVs of a trial that is done anew; returns whether its attempts hold every row.

    Where one is missing nothing is written: what is left of the CSVs may be all there is. Raises
    OSError where they cannot be read or written for now.
    """
    try:
        if missing(trial, measurements.curve(directory), trial.steps) is not None:
            return False
    except (ValueError, KeyError, TypeError):  # e.g. a damaged record of an attempt
        return False
    measurements.publish(directory)
    return True


def _is_of_another(trial: Trial, directory: pathlib.Path, step: int) -> bool:
    """Whether a checkpoint says that it is another trial's; it is refused when it is opened."""
    path = directory / layout.CHECKPOINTS / str(step) / RECORD
    try:
        return bool(layout.read_json(path)["trial"] != trial.id)
    except (OSError, ValueError, KeyError, TypeError):  # damaged
        return False


def _steps(directory: pathlib.Path) -> list[int]:
    """Returns the steps that have a whole checkpoint, the last first."""
    folder = directory / layout.CHECKPOINTS
    if not folder.is_dir():
        return []
    return sorted(
        (int(path.name) for path in folder.iterdir() if path.name.isdigit()), reverse=True
    )


def missing(trial: Trial, rows: list[dict[str, Any]], step: int) -> str | None:
    """Returns the first measurement that should be there once `step` updates are done, or None."""
    losses = {row["global_step"] for row in rows if row["kind"] == "train"}
    evaluations = {row["global_step"] for row in rows if row["kind"] == "eval"}
    due = [*range(trial.eval_every, step + 1, trial.eval_every)]
    due += [trial.steps] * (step == trial.steps)
    for update in range(0, step, trial.log_every):
        if update not in losses:
            return f"loss of update {update}"
    for done in due:
        if done not in evaluations:
            return f"evaluation after {done} updates"
    return None
