"""Published runs that are no results of their own: cut short, or there twice."""

import json
import pathlib

import pytest

from analysis.compare import build
from analysis.load import selection
from analysis.load.studies import read_study
from analysis.views import runs as listing

TIMED = "global_step,validation/loss,test/loss,accumulated_submission_time\n"
META = {
    "workload.target_metric_name": "loss",
    "workload.validation_target_value": 0.125,
    "workload.test_target_value": 0.125,
    "workload.step_hint": 1000,
    "workload.max_allowed_runtime_sec": 500,
}


def trial(root: pathlib.Path, name: str, rows: str, **meta: object) -> None:
    directory = root / name
    directory.mkdir(parents=True)
    (directory / "eval_measurements.csv").write_text(TIMED + rows)
    (directory / "meta_data_0.json").write_text(json.dumps(META | meta))


@pytest.mark.parametrize(
    ("rows", "state"),
    [
        ("1,0.75,0.75,5\n", "failed"),
        ("1,0.75,0.75,5\n899,0.5,0.5,449\n", "failed"),
        ("1,0.75,0.75,5\n900,0.5,0.5,300\n", "done"),  # the steps
        ("1,0.75,0.75,5\n300,0.5,0.5,450\n", "done"),  # the time
        ("1,0.75,0.75,5\n300,0.5,0.5,450\n301,0.5,0.5,nan\n", "done"),  # its last known time
        ("1,0.75,0.75,5\n100,0.125,0.5,50\n", "done"),  # the target
        ("1,0.75,0.75,5\n100,nan,0.5,50\n", "failed"),
    ],
)
def test_a_run_is_complete_by_its_steps_its_time_or_its_target(tmp_path, rows, state) -> None:
    trial(tmp_path, "study_0/w_jax/trial_1", rows)
    assert read_study(tmp_path).runs[0].state == state


def test_a_run_that_died_says_so_and_chooses_no_point(tmp_path) -> None:
    """Its loss at step 1 would have made point 2 the best."""
    for study in (0, 1):
        trial(tmp_path, f"study_{study}/w_jax/trial_1", f"1,3,3,5\n1000,0.5,0.5,39{study}\n")
    trial(tmp_path, "study_0/w_jax/trial_2", "1,0.25,0.25,5\n")
    trial(tmp_path, "study_1/w_jax/trial_2", "1,3,3,5\n1000,0.75,0.75,400\n")
    study = read_study(tmp_path)
    said = (
        "failed: study_0/w_jax/trial_2: it ended at step 1 of 1,000 and 5 of 500 s, without "
        "reaching validation loss ≤ 0.125"
    )
    assert study.problems == (said,)
    assert [values for _, values in listing.medians(study).values()] == [[0.5, 0.5], [0.75]]
    assert selection.best_point(study.runs) == 1
    assert build.error_table(study).rows[0].point == 1


def test_without_a_step_hint_the_longest_run_counts_as_complete(tmp_path) -> None:
    nothing = {"workload.step_hint": None, "workload.max_allowed_runtime_sec": None}
    for study, last in enumerate((800, 790, 80)):
        trial(tmp_path, f"study_{study}/w_jax/trial_1", f"{last},0.5,0.5,{last}\n", **nothing)
    study = read_study(tmp_path)
    assert [run.state for run in study.runs] == ["done", "done", "failed"]
    assert "it ended at step 80 of 800, without" in study.problems[0]


def test_a_workload_without_a_target_is_not_judged(tmp_path) -> None:
    unknown = {"workload.target_metric_name": None}
    trial(tmp_path, "study_0/w_jax/trial_1", "1,0.75,0.75,5\n", **unknown)
    assert read_study(tmp_path).problems == ()


def test_the_own_limit_of_a_run_counts(tmp_path) -> None:
    """It was told to take 40 steps of the 1,000 that the workload suggests."""
    trial(tmp_path, "study_0/w_jax/trial_1", "1,0.75,0.75,5\n40,0.5,0.5,20\n")
    flags = {"max_global_steps": 40}
    (tmp_path / "study_0/w_jax/trial_1/flags_0.json").write_text(json.dumps(flags))
    assert read_study(tmp_path).runs[0].state == "done"


def test_two_names_of_one_seed_are_duplicated(tmp_path) -> None:
    trial(tmp_path, "study_0/w_jax/trial_1", "1000,0.5,0.5,400\n")
    trial(tmp_path, "study_00/w_jax/trial_1", "1000,0.75,0.5,401\n")
    name = tmp_path.name
    assert read_study(tmp_path).problems == (
        f"duplicated: study_00/w_jax/trial_1: {name}, point 1, seed 0 is study_0/w_jax/trial_1, "
        "too; the first counts",
    )


def test_a_study_that_is_a_copy_is_duplicated(tmp_path) -> None:
    for study in (0, 1):
        trial(tmp_path, f"study_{study}/w_jax/trial_1", "1,0.75,0.5,9\n1000,0.5,0.5,400\n")
    trial(tmp_path, "study_2/w_jax/trial_1", "1,0.5,0.5,9\n1000,0.5,0.5,400\n")
    assert read_study(tmp_path).problems == (
        "duplicated: study_1/w_jax/trial_1/eval_measurements.csv: byte for byte that of "
        "study_0/w_jax/trial_1, times included; it is no result of its own",
    )


def test_files_without_times_may_be_alike_by_chance(tmp_path) -> None:
    for study in (0, 1):
        trial(tmp_path, f"study_{study}/w_jax/trial_1", "1000,0.5,0.5,\n")
    assert read_study(tmp_path).problems == ()


def test_a_column_that_other_trials_have_is_missing(tmp_path) -> None:
    for study in (0, 1):
        trial(tmp_path, f"study_{study}/w_jax/trial_1", f"1000,0.5,0.5,40{study}\n")
    path = tmp_path / "study_1/w_jax/trial_1/eval_measurements.csv"
    path.write_text(path.read_text().replace("test/loss", "tst/loss"))
    assert read_study(tmp_path).problems == ("missing: study_1/w_jax/trial_1: no column test/loss",)
