"""AlgoPerf's own published logs, through the same reader."""

import json
import pathlib
import statistics

import pytest

from analysis import cli
from analysis.load.studies import read_study
from analysis.views import runs as listing

LOGS = pathlib.Path(__file__).resolve().parents[2].parent / "shared" / "algoperf_logs" / "baseline"
needs_logs = pytest.mark.skipif(
    not LOGS.is_dir(), reason="AlgoPerf's published logs are not beside the repository"
)

VIT_ERROR_MEDIANS = [0.2398, 0.2168, 0.2432, 0.2769, 0.2538]
CONFORMER_WER_MEDIANS = [0.08369, 0.09040, 0.08148, 0.11587, 0.08191]
CONFORMER_WER_DEVIATIONS = [0.0014, 0.0168, 0.0010, 0.0087, 0.0023]


def of_workload(workload: str) -> dict[int, list[float]]:
    found = listing.medians(read_study(LOGS))
    return {key[3]: values for key, (_, values) in found.items() if key[2] == workload}


@needs_logs
def test_every_log_is_read_without_a_problem() -> None:
    study = read_study(LOGS)
    assert study.published
    assert study.problems == ()
    assert len(study.runs) == 2 * 5 * 5
    assert {run.seed for run in study.runs} == set(range(5))
    assert {run.point for run in study.runs} == set(range(1, 6))
    assert {(run.workload, run.metric) for run in study.runs} == {
        ("imagenet_vit", "accuracy"),
        ("librispeech_conformer", "wer"),
    }
    assert all("learning_rate" in run.hyperparameters for run in study.runs)


@needs_logs
def test_vit_medians_at_the_step_that_validation_chose() -> None:
    values = of_workload("imagenet_vit")
    medians = [statistics.median(values[trial]) for trial in range(1, 6)]
    assert medians == pytest.approx(VIT_ERROR_MEDIANS, abs=5e-5)


@needs_logs
def test_conformer_medians_and_deviations() -> None:
    values = of_workload("librispeech_conformer")
    medians = [statistics.median(values[trial]) for trial in range(1, 6)]
    deviations = [statistics.stdev(values[trial]) for trial in range(1, 6)]
    assert medians == pytest.approx(CONFORMER_WER_MEDIANS, abs=5e-6)
    assert deviations == pytest.approx(CONFORMER_WER_DEVIATIONS, abs=5e-5)


@needs_logs
def test_the_same_medians_as_json(capsys) -> None:
    """What `runs --json` prints: medians over five studies, and the trials that they are of."""
    assert cli.main(["runs", str(LOGS), "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["shares_seeds"] is False
    wanted = {
        "imagenet_vit": (VIT_ERROR_MEDIANS, 5e-5),
        "librispeech_conformer": (CONFORMER_WER_MEDIANS, 5e-6),
    }
    for workload, (medians, tolerance) in wanted.items():
        found = [each for each in record["medians"] if each["workload"] == workload]
        assert [each["point"] for each in found] == [1, 2, 3, 4, 5]
        assert [each["median"] for each in found] == pytest.approx(medians, abs=tolerance)
        assert {each["n"] for each in found} == {5}
        for each in found:
            values = [
                run["best_validation"]
                for run in record["runs"]
                if (run["workload"], run["point"]) == (workload, each["point"])
            ]
            assert statistics.median(values) == each["median"]
    deviations = [each["sd"] for each in record["medians"] if each["metric"] == "wer"]
    assert deviations == pytest.approx(CONFORMER_WER_DEVIATIONS, abs=5e-5)


@needs_logs
def test_a_log_with_metadata_states_targets_and_step_hint() -> None:
    vit = next(run for run in read_study(LOGS).runs if run.name.endswith("vit_jax/trial_1"))
    assert vit.targets == pytest.approx(
        {"metric": "accuracy", "validation": 0.77309, "test": 0.6519}
    )
    assert (vit.step_hint, vit.steps) == (186666, 186666)


@needs_logs
def test_a_directory_of_submissions_is_read_too() -> None:
    study = read_study(LOGS.parent)
    assert len(study.runs) == 50
    assert {run.variant for run in study.runs} == {"baseline"}


def test_a_log_without_evaluations_is_missing_by_name(tmp_path: pathlib.Path) -> None:
    """A tree of the published shape: one trial whole, one without its file, one cut."""
    whole = "global_step,validation/wer,preemption_count\n1,0.5,0\n2,0.25,0\n"
    for trial, text in ((1, whole), (2, None), (10, whole[:-4])):
        directory = tmp_path / "study_0" / "speech_jax" / f"trial_{trial}"
        directory.mkdir(parents=True)
        if text:
            (directory / "eval_measurements.csv").write_text(text)
    study = read_study(tmp_path)
    assert [(run.point, run.state, run.last_step) for run in study.runs] == [
        (1, "done", 2),
        (2, "pending", None),
        (10, "done", 1),
    ]
    assert study.problems == (
        "missing: study_0/speech_jax/trial_2: no eval_measurements.csv",
        "truncated: study_0/speech_jax/trial_10/eval_measurements.csv: "
        "in its last line (3), which is left out: '2,0.2'",
    )
