"""Reads runs of MaxText's training that `python -m workloads maxtext` started.

Each folder holds `maxtext.json`, the record of the run, and MaxText's metrics file: a line for each
training step and each evaluation, beside lines of evaluations that go on (metric_logger.py of
MaxText 0.2.5).
"""

import collections
import dataclasses
import json
import math
import pathlib
from typing import Any

import numpy as np

from analysis.load import trials
from analysis.load.measurements import STEP, Measurements
from analysis.load.records import MAXTEXT_FILE, VISIBLE, Problem, Run

STAGE = "maxtext"
SEED = "rng_seed"
# Keys that only lines of training steps and of evaluations have.
TRAINING, EVALUATION = "learning/loss", "eval/total_loss"
_DURATION = "perf/step_time_seconds"


def find(root: pathlib.Path) -> list[Run]:
    """Returns the runs in `root`, at most two levels below, unread."""
    patterns = (f"{VISIBLE}/{MAXTEXT_FILE}", f"{VISIBLE}/{VISIBLE}/{MAXTEXT_FILE}")
    folders = sorted(path.parent for pattern in patterns for path in root.glob(pattern))
    return [
        Run("", "its own", STAGE, 0, 0, path, path.relative_to(root).as_posix(), "pending")
        for path in folders
    ]


def read(run: Run, files: trials.TrialFiles) -> tuple[Run, Measurements, dict[str, Any]]:
    """Returns the run, its evaluations and its record.

    One that ended before its last step is `running`: it may have been killed. Without evaluations
    a run is `failed`.
    """
    record = files.json(MAXTEXT_FILE)
    losses, evaluations = _rows(files, record.get("metrics_file", ""))
    steps, last = record.get("num_train_steps") or 1, max(losses, default=0)
    state, kind, reason = "done", "", f"it ended at step {last:,} of {steps:,}"
    if losses and not math.isfinite(losses[last][TRAINING]):
        state, kind, reason = "diverged", "diverged", f"its loss is not finite at step {last:,}"
    elif last < steps:
        state, kind = "running", "unfinished"
    elif not evaluations:
        state, kind = "failed", "missing"
        reason = "no evaluation; have MaxText evaluate: eval_interval=STEPS eval_steps=BATCHES"
    if kind:
        files.report(kind, reason)
    passed = np.cumsum(_column(losses, _DURATION))
    seconds = dict(zip(sorted(losses), passed, strict=True))
    columns = {
        STEP: np.array(sorted(evaluations), np.int64),
        "validation/loss": _column(evaluations, "eval/avg_loss"),
        "accumulated_submission_time": np.array(
            [seconds.get(step, math.nan) for step in sorted(evaluations)]
        ),
        # MaxText evaluates one split.
        "train/num_examples": np.zeros(len(evaluations)),
        "test/num_examples": np.zeros(len(evaluations)),
    }
    seed = record.get(SEED, 0)
    run = dataclasses.replace(
        run,
        workload=record.get("workload", STAGE),
        seed=seed,
        state=state,
        reason=reason if kind else None,
        steps=steps,
        hyperparameters={**record.get("hyperparameters", {}), SEED: seed},
        losses=lambda: {
            STEP: np.array(sorted(losses), np.int64),
            "loss": _column(losses, TRAINING),
        },
    )
    return run, Measurements(columns if evaluations else {}), record


def _rows(files: trials.TrialFiles, name: str) -> tuple[dict[int, Any], dict[int, Any]]:
    """Returns the lines of training steps and of evaluations, by the number of steps taken.

    A restarted run writes steps again: the last line counts.
    """
    rows: dict[str, dict[int, Any]] = collections.defaultdict(dict)
    try:
        for line in (files.directory / name).read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            kind = next((key for key in (TRAINING, EVALUATION) if key in row), "")
            rows[kind][int(row["step"]) + 1] = row
    except (OSError, ValueError, KeyError, TypeError) as error:
        files.problems.append(Problem("unreadable", files.name, name, str(error)))
    return rows[TRAINING], rows[EVALUATION]


def _column(rows: dict[int, Any], key: str) -> np.ndarray:
    return np.array([rows[step].get(key, math.nan) for step in sorted(rows)], np.float64)
