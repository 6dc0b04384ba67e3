"""What validation chooses."""

import dataclasses
import math
import pathlib
import re

import numpy as np
import pytest

from analysis.load import metrics, selection
from analysis.load.records import Run, StudyRuns

ACCURACY = metrics.get("accuracy")


def run_of(values, column="validation/accuracy", point=0, seed=0, state="done", **more) -> Run:
    evals = {
        "global_step": np.arange(1, len(values) + 1) * 100,
        column: np.array(values, dtype=float),
        **{name: np.array(numbers, dtype=float) for name, numbers in more.items()},
    }
    return Run(
        workload="imagenet_vit",
        variant="standard",
        stage="tune",
        point=point,
        seed=seed,
        path=pathlib.Path("trial_1"),
        name="tune/standard/imagenet_vit_jax/trial_1",
        state=state,
        metric=column.split("/")[1],
        evals=evals if len(values) else {},
    )


@pytest.mark.parametrize(
    ("values", "column", "step"),
    [
        ([0.1, 0.7, 0.3, 0.7], "validation/accuracy", 200),  # the first of the highest
        ([0.9, 0.2, 0.2], "validation/wer", 200),  # the first of the lowest
        ([math.nan, math.inf, 0.2, math.nan], "validation/accuracy", 300),
        ([], "validation/accuracy", None),
        ([math.nan, math.nan], "validation/accuracy", None),
    ],
)
def test_the_best_step_is_the_first_of_the_best_finite_ones(values, column, step) -> None:
    row = selection.best_step(run_of(values, column), metrics.get(column))
    assert (row and row["global_step"]) == step
    assert row is None or isinstance(row["global_step"], int)


@pytest.mark.parametrize("metric", ["accuracy", "error"])
def test_test_and_train_choose_nothing(metric) -> None:
    more = {"test/accuracy": [0.9, 0.1], "train/accuracy": [0.9, 0.1]}
    row = selection.best_step(run_of([0.3, 0.4], **more), metrics.get(metric))
    assert (row["global_step"], row["test/accuracy"]) == (200, 0.1)


def test_a_missing_column_is_named_with_its_file() -> None:
    text = metrics.get("wer").missing(run_of([0.5]), "validation")
    assert re.search(r"eval_measurements.csv.*validation/wer.*validation/accuracy", text)
    assert selection.best_step(run_of([0.5]), metrics.get("wer")) is None


@pytest.mark.parametrize("state", ["diverged", "failed", "running", "pending", "cut"])
def test_a_trial_that_is_not_done_is_never_chosen(state) -> None:
    runs = [run_of([0.9], point=0, state=state), run_of([0.2], point=1)]
    if state == "cut":
        runs[0] = dataclasses.replace(runs[1], point=0, state="done", ends_early=True)
    assert selection.best_point(runs, ACCURACY) == 1
    assert selection.best_point(runs[:1], ACCURACY) is None


# Values of a point's seeds ("diverged" and "failed" are lost, as is nan), and the chosen point.
SEEDS = [
    ({0: [0.9, "diverged", "diverged"], 1: [0.2, 0.3, 0.1]}, 1),
    ({0: [0.9, 0.8, "diverged"], 1: [0.5, 0.6, 0.7]}, 0),
    ({0: [0.9, 0.4, "failed"], 1: [0.5, 0.6, 0.1]}, 1),
    ({0: [0.9, "failed"], 1: [0.2, 0.2]}, 1),
    ({0: [0.9, math.nan], 1: [0.2, 0.2]}, 1),
    ({0: ["diverged"], 1: ["diverged"], 2: [0.1]}, 2),
    ({0: [0.3, 0.5, 0.5], 1: [0.5, 0.9, "diverged"]}, 0),
    ({0: ["diverged", 0.9], 1: ["failed", 0.8]}, None),
    # The best median, not the best seed; the lower of equal ones; nothing to choose from.
    ({0: [0.95, 0.5, 0.4], 1: [0.6, 0.61, 0.1]}, 1),
    ({3: [0.5], 1: [0.5], 2: [0.5]}, 1),
    ({0: [math.nan]}, None),
    ({}, None),
]


@pytest.mark.parametrize("mode", ["max", "min"])
@pytest.mark.parametrize(("seeds", "chosen"), SEEDS)
def test_a_lost_seed_counts_as_the_worst(seeds, chosen, mode) -> None:
    column = {"max": "validation/accuracy", "min": "validation/loss"}[mode]
    sign = {"max": 1, "min": -1}[mode]
    runs = []
    for point, values in seeds.items():
        for seed, value in enumerate(values):
            state, number = ("done", sign * value) if isinstance(value, float) else (value, 0.95)
            runs.append(run_of([number], column, point=point, seed=seed, state=state))
    assert selection.best_point(runs, metrics.get(column)) == chosen


def test_a_point_without_a_rival_stands_for_its_variant() -> None:
    """Nothing is chosen then; how many seeds were lost is said beside its numbers."""
    runs = [run_of([0.9]), run_of([0.9], seed=1, state="diverged")]
    assert selection.best_point(runs, ACCURACY) is None
    only = StudyRuns("one", {}, tuple(runs), (), pathlib.Path("one"))
    assert selection.chosen_point(only, "tune", "standard") == 0
