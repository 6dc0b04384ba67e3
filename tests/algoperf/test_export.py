"""A study as AlgoPerf's logs: what is written, what is left out, what is refused."""

import csv
import itertools
import json
import os
import pathlib
import subprocess
import sys

import pytest

from analysis.load import studies
from sweeps import __main__ as command
from sweeps.algoperf import export
from sweeps.records import layout
from sweeps.study import config, study, study_directory
from tests.sweeps import defaults

EVALS = """\
global_step,train/accuracy,train/loss,validation/accuracy,validation/loss,test/accuracy,test/loss,\
validation/bleu,test/bleu,accumulated_submission_time,score,preemption_count
5,0.1,2.0,0.1,2.0,0.1,2.0,1.0,1.0,1.0,1.0,0
10,0.4,1.5,0.3,1.6,0.25,1.7,31.0,31.0,2.0,2.0,0
"""


def _finish(directory, state="done"):
    for name in (layout.EVAL_MEASUREMENTS, layout.MEASUREMENTS):
        (directory / name).write_text(EVALS)
    layout.write_json(directory / "meta_data_0.json", {"workload.target_metric_name": "accuracy"})
    layout.write_json(directory / layout.STATUS, {"state": state})


@pytest.fixture
def finished(tmp_path):
    """A grid of 2 variants x 2 points x 2 seeds, one trial of it still pending."""
    return _grid(tmp_path, "small", "algoperf:imagenet_vit")


def _study(tmp_path, name, workload, *more):
    changes = ("steps=10", "eval_every=5", f"name={name}", f"workload={workload}",
               f"experiment_dir={tmp_path}", *more)  # fmt: skip
    settings = {**defaults.SMALL, **dict(change.split("=", 1) for change in changes)}
    overrides = [f"--config.{key}={value}" for key, value in settings.items()]
    made = study.resolve(config.parse("digits_vit_quick", overrides))
    study_directory.prepare(made)
    return made


def _grid(tmp_path, name, workload):
    made = _study(tmp_path, name, workload, "protocol=grid", "seeds=2")
    for trial in study_directory.materialise(made, "grid", made.trials("grid"))[:-1]:
        _finish(made.directory / trial.path)
    return made.directory


def test_the_tree_is_the_one_that_scoring_reads(finished, capsys):
    assert command.main(["export", "--format=algoperf", str(finished)]) == 0
    shown = capsys.readouterr().out
    assert "left out: grid/laser/imagenet_vit_jax/trial_1002: it is pending" in shown
    assert "export/algoperf_grid: 7 trials of stage grid" in shown
    root = finished / "export/algoperf_grid"
    trials = sorted(path.relative_to(root).as_posix() for path in root.glob("*/*/*/trial_*"))
    assert trials == sorted(
        f"{variant}/study_{seed}/imagenet_vit_jax/trial_{point}"
        for variant in ("standard", "laser")
        for seed in (1, 2)
        for point in (1, 2)
        if (variant, seed, point) != ("laser", 2, 2)
    )
    # Scoring lists these levels and takes everything there for a directory.
    assert all(path.is_dir() for path in [*root.iterdir(), *root.glob("*/*"), *root.glob("*/*/*")])
    trial = root / "laser/study_1/imagenet_vit_jax/trial_2"
    source = finished / "grid/laser/imagenet_vit_jax/trial_1001"
    for name in (layout.EVAL_MEASUREMENTS, layout.MEASUREMENTS, "meta_data_0.json"):
        assert (trial / name).read_text() == (source / name).read_text()
    flags = json.loads((trial / "flags_0.json").read_text())
    assert (flags["workload"], flags["attention"], flags["rng_seed"]) == (
        "imagenet_vit",
        "laser",
        0,
    )
    assert json.loads((trial / "hparams.json").read_text())["learning_rate"] > 0


def test_analysis_reads_study_and_export_alike(finished):
    ours, exported = (
        studies.read_study(finished),
        studies.read_study(export.export([finished]).directory),
    )
    assert {run.workload for run in ours.runs} == {"algoperf:imagenet_vit"}
    assert {run.workload for run in exported.runs} == {"imagenet_vit"}
    assert exported.published
    copies = {(run.variant, run.point, run.seed): run for run in exported.runs}
    for run in ours.runs:
        if run.state == "done":
            copy = copies[run.variant, run.point + 1, run.seed + 1]
            assert copy.evals["validation/accuracy"].tolist() == [0.1, 0.3]
            assert (copy.steps, copy.hyperparameters) == (run.steps, run.hyperparameters)


@pytest.mark.parametrize(("function", "call"), [("mkdir", 8), ("replace", 3), ("rename", 1)])
def test_an_interrupted_export_leaves_nothing(finished, tmp_path, monkeypatch, function, call):
    original, numbers = getattr(os, function), itertools.count(1)

    def interrupted(*arguments, **named):
        if next(numbers) == call:
            raise KeyboardInterrupt
        return original(*arguments, **named)

    out = tmp_path / "exports" / "logs"
    monkeypatch.setattr(os, function, interrupted)
    with pytest.raises(KeyboardInterrupt):
        export.export([finished], out)
    monkeypatch.setattr(os, function, original)
    assert not list((tmp_path / "exports").iterdir())
    assert export.export([finished], out).trials == 7
    with pytest.raises(ValueError, match="exists"):
        export.export([finished], out)


def test_a_workload_that_algoperf_lacks_is_refused(tmp_path):
    """AlgoPerf's scoring would end at it with KeyError."""
    out = tmp_path / "logs"
    with pytest.raises(ValueError, match="of_ours is of digits_vit"):
        export.export([_grid(tmp_path, "of_ours", "digits_vit")], out)
    assert not out.exists()


def test_several_studies_are_one_export(finished, tmp_path):
    wmt, out = _grid(tmp_path, "wmt", "algoperf:wmt"), tmp_path / "logs"
    assert export.export([finished, wmt], out).trials == 14
    assert {path.name for path in out.glob("*/*/*")} == {"imagenet_vit_jax", "wmt_jax"}
    assert len(list(out.glob("*/*/*/trial_*"))) == 14
    with pytest.raises(ValueError, match="both have .*/wmt_jax/trial_"):
        export.export([wmt, wmt], tmp_path / "both")


@pytest.fixture
def tuned(tmp_path):
    """A study of which one trial of both stages is done, with the same variant, point and seed."""
    made = _study(tmp_path, "tuned", "algoperf:imagenet_vit")
    for stage, selection in (("tune", None), ("compare", {"points": {"standard": 0, "laser": 0}})):
        trials = study_directory.materialise(made, stage, made.trials(stage, selection))
        _finish(made.directory / trials[0].path)
    return made.directory


def test_stages_are_exported_apart(tuned, capsys):
    last = export.export([tuned])
    assert (last.stages, last.directory) == (("compare",), tuned / "export/algoperf_compare")
    arguments = ["export", "--format=algoperf", "--stage=tune", str(tuned)]
    assert command.main(arguments) == 0
    assert "algoperf_tune: 1 trials" in capsys.readouterr().out
    with pytest.raises(ValueError, match="no stage 'grid'"):
        export.export([tuned], stage="grid")
    (tuned / "compare" / layout.TRIALS).unlink()
    with pytest.raises(ValueError, match="stage compare of .* has no trials yet"):
        export.export([tuned], stage="compare")


def test_what_cannot_be_exported_is_refused(finished, tmp_path, capsys):
    assert command.main(["export", "--format=algoperf", str(tmp_path / "none")]) == 2
    assert f"{tmp_path}/none" in capsys.readouterr().err
    for path in finished.rglob(layout.STATUS):
        path.unlink()
    with pytest.raises(ValueError, match="no trial to export"):
        export.export([finished])


# A checkout that was never installed lacks a module that its build writes: `activate` makes it.
SCORE = """
import runpy, sys
from workloads.algoperf import installation
trials = installation.find(sys.argv[1])
trials.activate()
sys.path.insert(0, str(trials.directory / "scoring"))
sys.argv[1:2] = []
runpy.run_path(str(trials.directory / "scoring/score_submissions.py"), run_name="__main__")
"""


def test_algoperfs_score_submissions_summarises_two_workloads(finished, algoperf, tmp_path):
    pytest.importorskip("pandas", reason="AlgoPerf's scoring needs pandas")
    out, results = tmp_path / "logs", tmp_path / "results"
    export.export([finished, _grid(tmp_path, "wmt", "algoperf:wmt")], out)
    command_line = [
        sys.executable, "-W", "ignore", "-c", SCORE, algoperf.directory,
        f"--submission_directory={out}", f"--output_dir={results}",
    ]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": str(pathlib.Path(__file__).resolve().parents[2])}
    subprocess.run(command_line, env=environment, check=True, capture_output=True, text=True)
    for variant, reached in (("standard", 4), ("laser", 3)):
        with (results / f"{variant}_summary.csv").open() as file:
            rows = list(csv.DictReader(file))
        named = {row["workload"]: row["val target metric name"] for row in rows}
        assert named == {"imagenet_vit_jax": "validation/accuracy", "wmt_jax": "validation/bleu"}
        assert [row["val target reached"] for row in rows].count("True") == reached
