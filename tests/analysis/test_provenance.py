"""Where a study's numbers come from, and what validation chooses."""

import dataclasses
import math
import pathlib
import re

import numpy as np
import pytest

from analysis import report
from analysis.compare import frames
from analysis.load import metrics, selection
from analysis.load.records import Run, StudyRuns
from analysis.views import sentences
from sweeps.records import layout


def _table(hand_made, hardware):
    """One trial per variant and seed; `hardware` maps (variant, seed) to meta_data_0.json."""
    made = hand_made()
    made.record = {"git_commit": "abc", "versions": {"python": "3.11", "numpy": "2", "jax": "0.7"}}
    for variant in ("standard", "laser"):
        for seed in range(2):
            made.add_seeds(variant, (0.2,), first=seed, meta=hardware.get((variant, seed), {}))
    made.add_seeds("standard", (0.2,), "tune", first=7)
    return made.table()


def test_what_trials_agree_on_is_said_once(hand_made) -> None:
    gpu = {"gpu_model_name": "Tesla V100", "gpu_count": 8}
    everywhere = {(v, s): gpu for v in ("standard", "laser") for s in range(2)}
    expected = {
        "Devices": "8 × Tesla V100",
        "Commit": "abc",
        "Versions": "python 3.11, jax 0.7, numpy 2",
        "Trials": "4 in this table, 5 in the study",
        "Stage": "compare",
        "Seeds": "0, 1",
        "Steps": "400",
        "Host": "not recorded",
    }
    assert expected.items() <= dict(report.provenance(_table(hand_made, everywhere))).items()


def test_trials_on_other_devices_are_counted(hand_made) -> None:
    cpu = {"device_kind": "cpu", "device_count": 1, "cpu_model_name": "EPYC ", "cpu_count": 1}
    pair = {"device_kind": "H200", "device_count": 8, "process_count": 2}
    hardware = {("standard", 0): cpu, ("standard", 1): cpu, ("laser", 0): cpu, ("laser", 1): pair}
    assert {
        ("Devices", "1 × cpu (3 trials); 8 × H200 in 2 processes (1 trial)"),
        ("Host", "1 × EPYC (3 trials); not recorded (1 trial)"),
    } <= set(report.provenance(_table(hand_made, hardware)))


def _trained(made, variant, attempts, planned=None):
    """A trial whose attempts, by their numbers, ran at commits."""
    made.add_seeds(variant, (0.2,), git_commit=planned)
    directory = made.root / made.planned["compare"][-1]["path"]
    for number, commit in attempts.items():
        record = {"git_commit_hash": commit, "model_flops_per_step": 1e9 * (number + 1)}
        record |= {"versions": {"jax": f"0.{number}"}, "device_kind": f"device {number}"}
        layout.write_json(directory / f"meta_data_{number}.json", record)


@pytest.mark.parametrize(
    ("attempts", "planned", "expected"),
    [
        ({0: "bbbb222"}, "aaaa111", ("bbbb222",)),
        ({1: "bbbb222"}, "aaaa111", ("bbbb222",)),  # the first attempt died before it recorded
        ({0: "bbbb222", 1: "cccc333"}, "aaaa111", ("bbbb222", "cccc333")),
        ({9: "bbbb222", 10: "cccc333"}, "aaaa111", ("bbbb222", "cccc333")),
        ({0: None, 1: "cccc333"}, "aaaa111", ("cccc333",)),
        ({0: None}, "aaaa111", ("aaaa111",)),
        ({}, "aaaa111", ("aaaa111",)),
        ({}, None, ("start00",)),
    ],
)
def test_the_commit_is_that_of_the_attempts_that_trained(
    hand_made, attempts, planned, expected
) -> None:
    made = hand_made(record={"git_commit": "start00", "date": "2026-11-28"})
    for variant in ("standard", "laser"):
        _trained(made, variant, attempts, planned)
    table = made.table()
    assert table.commits == expected
    assert dict(report.provenance(table))["Commit"] == ", ".join(expected)
    told = [text for text in sentences.caveats(table) if "commits" in text]
    assert len(told) == (len(expected) == 2)


def test_metadata_are_those_of_the_first_attempt_that_wrote_any(hand_made) -> None:
    """Training FLOP was missing where attempt 1 died while it compiled; versions and devices were
    those of planning."""
    made = hand_made()
    _trained(made, "standard", {1: "bbbb222", 2: "bbbb222"})
    _trained(made, "laser", {0: "bbbb222"})
    (made.root / made.planned["compare"][1]["path"] / "meta_data_0.json").write_text("{")
    table = made.table()
    costs = [frames.costs(table, row)["train_flop"] for row in table.rows]
    assert costs == pytest.approx([2e9 * 400, float("nan")], nan_ok=True)
    assert {
        ("Versions", "jax 0.1, jax 0.2 (1 trial); not recorded (1 trial)"),
        ("Devices", "? × device 1, ? × device 2 (1 trial); not recorded (1 trial)"),
    } <= set(report.provenance(table))


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
