"""init2winit's own output: rows of training and evaluations mixed, in its own names."""

import json
import pathlib

import numpy as np
import pytest

from analysis import cli
from analysis.load import init2winit, studies

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


def _write(root, name, lines=LINES, *, seed=0, batch=8, worker=1, **meta):
    path = root / name / str(worker)
    path.mkdir(parents=True)
    record = {
        "worker_id": worker, "status": "done", "timestamp": 1.0, "attention": name,
        "attention_tau": 1.0, "model": "vit", "dataset": "mnist", "num_train_steps": 20,
    }  # fmt: skip
    (path / "meta_data.json").write_text(json.dumps({**record, **meta}))
    hparams = {"rng_seed": seed, "batch_size": batch, "lr_hparams": {"base_lr": 0.1}}
    (path / "hparams.json").write_text(json.dumps(hparams))
    if lines is not None:
        (path / "measurements.csv").write_text("\n".join([HEADER, *lines]) + "\n")
    return path


def test_evaluations_get_our_names_and_rows_of_training_are_curves(tmp_path):
    _write(tmp_path, "laser")
    study = studies.read_study(tmp_path)
    (run,) = study.runs
    assert (run.variant, run.workload, run.state) == ("laser", "init2winit:mnist_vit", "done")
    assert (run.metric, run.steps, run.seed, run.point) == ("accuracy", 20, 0, 0)
    assert run.evals["global_step"].tolist() == [10, 20]
    assert run.evals["validation/accuracy"].tolist() == [0.25, 0.5]
    assert run.evals["validation/loss"].tolist() == [2.25, 2.0]
    assert np.allclose(run.evals["test/accuracy"], [0.3, 0.4])
    assert run.evals["total_duration"].tolist() == [2.5, 5.0]
    assert run.evals["accumulated_submission_time"].tolist() == [2.0, 4.0]
    losses = run.losses()
    assert losses["global_step"].tolist() == [5, 10, 15, 20]
    assert losses["loss"].tolist() == [2.5, 2.0, 1.5, 1.0]
    assert study.shares_seeds
    assert not any("laser" in problem for problem in study.problems)


def test_the_guides_table_has_the_columns_that_are_printed(tmp_path, capsys):
    page = (pathlib.Path(__file__).resolve().parents[2] / "docs/init2winit.md").read_text("utf-8")
    lines = page.split("\nError, median over seeds", 1)[1].splitlines()
    for name in ("standard", "laser"):
        _write(tmp_path / "i2w", name)
    assert cli.main(["table", str(tmp_path / "i2w")]) == 0
    printed = capsys.readouterr().out.split("\nError, median over seeds", 1)[1].splitlines()
    assert [line.split() for line in lines[2:4]] == [line.split() for line in printed[2:4]]


def test_a_resumed_run_counts_what_came_after_it_went_on(tmp_path):
    resumed = (
        *LINES[:2],
        EVALUATED.format(15, 9.0, 0.9, 9.0, 0.9, 0),
        EVALUATED.format(15, 1.0, 0.6, 2.1, 0.6, 1),
        EVALUATED.format(20, 1.0, 0.5, 2.0, 0.6, 1),
    )
    _write(tmp_path, "laser", resumed)
    (run,) = studies.read_study(tmp_path).runs
    assert run.evals["global_step"].tolist() == [10, 15, 20]
    assert run.evals["validation/accuracy"].tolist() == [0.25, 0.4, 0.5]


def test_records_as_others_wrote_them(tmp_path):
    """A byte order mark hides no trial; a wrong type and a time that is nan are not believed."""
    path = _write(tmp_path, "laser", num_train_steps="20")
    meta = (path / "meta_data.json").read_bytes()
    (path / "meta_data.json").write_bytes(b"\xef\xbb\xbf" + meta)
    lines = [EVALUATED.format(10, 1.0, 0.5, 2.0, 0.6, 0).replace(",0.5,2.0,", ",0.5,nan,")]
    _write(tmp_path, "standard", [LINES[0], *lines, *LINES[2:]])
    study = studies.read_study(tmp_path)
    by_name = {run.variant: run for run in study.runs}
    assert by_name["laser"].steps is None
    assert any("num_train_steps is '20'" in problem for problem in study.problems)
    assert np.isnan(by_name["standard"].evals["accumulated_submission_time"]).all()


def test_the_incomplete_the_diverged_and_the_short_are_named(tmp_path):
    _write(tmp_path, "standard")
    _write(tmp_path, "laser", LINES[:2], status="incomplete")
    _write(tmp_path, "diff", LINES[:2], status="diverged")
    _write(tmp_path, "sigmoid", LINES[:2])
    _write(tmp_path, "gated", None)
    study = studies.read_study(tmp_path)
    states = {run.variant: run.state for run in study.runs}
    assert states["laser"] == "running"
    assert states["diff"] == "diverged"
    text = "\n".join(study.problems)
    assert "unfinished: laser/1: meta_data.json says incomplete" in text
    assert "last evaluated at 10 of 20 steps" in text
    assert "diverged: diff/1: meta_data.json says so" in text
    assert "truncated: sigmoid/1: done, but last evaluated at 10 of 20" in text
    assert "missing: gated/1: done, no evaluation" in text
    assert not any("standard" in problem for problem in study.problems)


def test_points_are_what_differs_and_seeds_are_the_recorded_ones(tmp_path):
    for worker, (seed, batch) in enumerate([(0, 8), (1, 8), (0, 16)], 1):
        _write(tmp_path, "laser", seed=seed, batch=batch, worker=worker)
    runs = studies.read_study(tmp_path).runs
    assert [(run.point, run.seed) for run in runs] == [(0, 0), (0, 1), (1, 0)]
    assert [run.hyperparameters for run in runs] == [
        {"batch_size": 8},
        {"batch_size": 8},
        {"batch_size": 16},
    ]


def test_seeds_that_were_drawn_are_no_pairs(tmp_path):
    for name in ("standard", "laser"):
        _write(tmp_path, name, seed=-1, worker=4)
    study = studies.read_study(tmp_path)
    assert not study.shares_seeds
    assert [run.seed for run in study.runs] == [4, 4]


def test_temperatures_are_told_apart_and_its_own_attention_is_no_variant(tmp_path):
    for worker, tau in enumerate((0.5, 2.0), 1):
        _write(tmp_path, "laser+temp", worker=worker, attention_tau=tau, dataset="fake")
    path = _write(tmp_path, "own", worker=3)
    meta = json.loads((path / "meta_data.json").read_text())
    del meta["attention"]
    (path / "meta_data.json").write_text(json.dumps(meta))
    study = studies.read_study(tmp_path)
    names = [run.variant for run in study.runs]
    assert names == ["laser+temp (tau = 0.5)", "laser+temp (tau = 2.0)", "its own"]
    assert any("own/3: meta_data.json records no attention" in note for note in study.notes)
    assert {run.workload for run in study.runs} == {
        "init2winit:fake_vit",
        "init2winit:mnist_vit",
    }


def test_a_truncated_line_and_a_wrong_number_are_named(tmp_path):
    path = _write(tmp_path, "laser", (*LINES[:2], EVALUATED.format(20, 1.0, "nan", 2.0, 0.6, 0)))
    with (path / "measurements.csv").open("a") as file:
        file.write("25,0.1")
    problems = studies.read_study(tmp_path).problems
    assert any("truncated" in problem and "laser/1" in problem for problem in problems)
    assert any("non-finite: laser/1: validation/accuracy" in problem for problem in problems)


@pytest.mark.parametrize("content", ["{", "[]", '{"attention": "laser"}'])
def test_other_directories_are_left_alone(tmp_path, content):
    path = tmp_path / "1"
    path.mkdir()
    (path / "meta_data.json").write_text(content)
    assert init2winit.read_logs(tmp_path) is None
    assert init2winit.read_logs(tmp_path / "nowhere") is None
