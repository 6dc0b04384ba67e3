"""init2winit's own output: rows of training and evaluations mixed, in its own names."""

import json
import pathlib

import numpy as np
import pytest

from analysis.load import logs
from analysis.load.studies import read_study

HEADER = (
    "global_step,learning_rate,train_cost,valid/error_rate,valid/ce_loss,valid/num_examples,"
    "test/error_rate,test/ce_loss,preemption_count,eval_time,run_time_no_eval,run_time"
)
TRAINED, EVALUATED = "{},0.1,{},,,,,,,,,", "{},0.1,{},{},{},400.0,{},2.5,{},0.5,2.0,2.5"
LINES = (
    TRAINED.format(5, 2.5),
    EVALUATED.format(10, 2.0, 0.75, 2.25, 0.7, 0),
    TRAINED.format(15, 1.5),
    EVALUATED.format(20, 1.0, 0.5, 2.0, 0.6, 0),
)


def worker(
    root, name, lines=LINES, *, seed=0, batch=8, number=1, hparams=(), **changes
) -> pathlib.Path:
    path = root / name / str(number)
    path.mkdir(parents=True)
    record = {
        "worker_id": number, "status": "done", "timestamp": 1.0, "attention": name,
        "attention_tau": 1.0, "model": "vit", "dataset": "mnist", "num_train_steps": 20,
    }  # fmt: skip
    (path / "meta_data.json").write_text(json.dumps(record | changes))
    hyperparameters = {"rng_seed": seed, "batch_size": batch, "lr_hparams": {"base_lr": 0.1}}
    (path / "hparams.json").write_text(json.dumps(hyperparameters | dict(hparams)))
    if lines is not None:
        (path / "measurements.csv").write_text("\n".join([HEADER, *lines]) + "\n")
    return path


def test_evaluations_get_our_names_and_rows_of_training_are_curves(tmp_path) -> None:
    worker(tmp_path, "laser")
    study = read_study(tmp_path)
    (run,) = study.runs
    assert (run.variant, run.workload, run.state) == ("laser", "init2winit:mnist_vit", "done")
    assert (run.metric, run.steps, run.seed, run.point) == ("accuracy", 20, 0, 0)
    expected = {
        "global_step": [10, 20],
        "validation/accuracy": [0.25, 0.5],
        "validation/loss": [2.25, 2.0],
        "test/accuracy": [0.3, 0.4],
        "total_duration": [2.5, 5.0],
        "accumulated_submission_time": [2.0, 4.0],
    }
    for name, values in expected.items():
        assert run.evals[name].tolist() == pytest.approx(values)
    losses = run.losses()
    assert not any("/" in name for name in losses)
    assert losses["global_step"].tolist() == [5, 10, 15, 20]
    assert losses["loss"].tolist() == [2.5, 2.0, 1.5, 1.0]
    assert (study.shares_seeds, study.published, study.problems) == (True, False, ())


def test_a_resumed_run_counts_what_came_after_it_went_on(tmp_path) -> None:
    resumed = (
        *LINES[:2],
        EVALUATED.format(15, 9.0, 0.9, 9.0, 0.9, 0),
        EVALUATED.format(15, 1.0, 0.6, 2.1, 0.6, 1),
        EVALUATED.format(20, 1.0, 0.5, 2.0, 0.6, 1),
    )
    worker(tmp_path, "laser", resumed)
    (run,) = read_study(tmp_path).runs
    assert run.evals["global_step"].tolist() == [10, 15, 20]
    assert run.evals["validation/accuracy"].tolist() == [0.25, 0.4, 0.5]


def test_records_as_others_wrote_them(tmp_path) -> None:
    """A byte order mark hides no trial; a wrong type and a time that is nan are not believed."""
    path = worker(tmp_path, "laser", num_train_steps="20") / "meta_data.json"
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    first = EVALUATED.format(10, 1.0, 0.5, 2.0, 0.6, 0).replace(",0.5,2.0,", ",0.5,nan,")
    worker(tmp_path, "standard", [LINES[0], first, *LINES[2:]])
    study = read_study(tmp_path)
    laser, standard = study.runs
    assert laser.steps is None
    (problem,) = laser.problems
    assert (problem.kind, problem.file) == ("unreadable", "meta_data.json")
    assert np.isnan(standard.evals["accumulated_submission_time"]).all()


@pytest.mark.parametrize(
    ("lines", "status", "state", "kind"),
    [
        (LINES[:2], "incomplete", "running", "unfinished"),
        ([LINES[0], LINES[1].replace("0.75", "nan")], "diverged", "diverged", "diverged"),
        (LINES[:2], "done", "done", "truncated"),
        (LINES[:1], "incomplete", "running", "unfinished"),
        (LINES, "sleeping", "failed", "failed"),
        (None, "done", "done", "missing"),
    ],
)
def test_a_trial_that_is_not_whole_is_named(tmp_path, lines, status, state, kind) -> None:
    worker(tmp_path, "laser", lines, status=status)
    worker(tmp_path, "standard")
    study = read_study(tmp_path)
    assert study.runs[0].state == state
    assert [(problem.kind, problem.trial) for problem in study.problems] == [(kind, "laser/1")]


def test_before_its_first_evaluation_a_trial_has_rows_of_training_alone(tmp_path) -> None:
    path = worker(tmp_path, "laser", status="incomplete") / "measurements.csv"
    path.write_text("global_step,train_cost\n5,2.5\n")
    (run,) = read_study(tmp_path).runs
    assert (run.last_step, run.losses()["loss"].tolist()) == (None, [2.5])


def test_points_are_what_differs_and_seeds_are_the_recorded_ones(tmp_path) -> None:
    for number, (seed, batch) in enumerate([(0, 8), (1, 8), (0, 16)], 1):
        worker(tmp_path, "laser", seed=seed, batch=batch, number=number)
    runs = read_study(tmp_path).runs
    assert [(run.point, run.seed) for run in runs] == [(0, 0), (0, 1), (1, 0)]
    assert [run.hyperparameters["batch_size"] for run in runs] == [8, 8, 16]
    assert {len(run.hyperparameters) for run in runs} == {1}


def test_seeds_that_were_drawn_are_no_pairs(tmp_path) -> None:
    for name in ("standard", "laser"):
        worker(tmp_path, name, seed=-1, number=4)
    study = read_study(tmp_path)
    assert not study.shares_seeds
    assert [run.seed for run in study.runs] == [4, 4]


def test_temperatures_are_told_apart_and_its_own_attention_is_no_variant(tmp_path) -> None:
    """hparams.json names a variant where meta_data.json names none."""
    worker(tmp_path, "laser+temp", attention_tau=0.5, dataset="fake")
    variant = {"attention": "laser+temp", "attention_tau": 2.0}
    worker(tmp_path, "laser+temp", number=2, attention=None, hparams=variant, dataset="fake")
    worker(tmp_path, "own", number=3, attention=None)
    study = read_study(tmp_path)
    assert [(run.variant, run.workload) for run in study.runs] == [
        ("laser+temp (tau = 0.5)", "init2winit:fake_vit"),
        ("laser+temp (tau = 2.0)", "init2winit:fake_vit"),
        ("its own", "init2winit:mnist_vit"),
    ]
    assert not any("attention" in name for run in study.runs for name in run.hyperparameters)


@pytest.mark.parametrize("content", ["{", "[]", '{"worker_id": 1}', '{"status": "done"}'])
def test_other_directories_are_left_alone(tmp_path, content) -> None:
    path = tmp_path / "1"
    path.mkdir()
    (path / "meta_data.json").write_text(content)
    assert logs.read_logs(tmp_path) is None
