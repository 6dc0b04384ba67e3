"""A study as AlgoPerf's logs: what is written, what is left out, what is never overwritten."""

import csv
import json
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

from analysis.load import studies
from attention import files
from sweeps import __main__ as command
from sweeps.algoperf import export
from sweeps.records import layout
from sweeps.study import config, study, study_directory

EVALS = {
    "global_step": (5, 10),
    "train/accuracy": (0.1, 0.4),
    "train/loss": (2.0, 1.5),
    "validation/accuracy": (0.1, 0.3),
    "validation/loss": (2.0, 1.6),
    "test/accuracy": (0.1, 0.25),
    "test/loss": (2.0, 1.7),
    "validation/bleu": (1.0, 31.0),
    "test/bleu": (1.0, 31.0),
    "accumulated_submission_time": (1.0, 2.0),
    "score": (1.0, 2.0),
    "preemption_count": (0, 0),
}


def _write_csv(path, columns):
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))


def _finish(directory, state="done"):
    _write_csv(directory / layout.EVAL_MEASUREMENTS, EVALS)
    _write_csv(directory / layout.MEASUREMENTS, EVALS)
    layout.write_json(directory / "meta_data_0.json", {"workload.target_metric_name": "accuracy"})
    layout.write_json(directory / layout.STATUS, {"state": state})


@pytest.fixture
def finished(tmp_path):
    """A grid of 2 variants x 2 points x 2 seeds, one trial of it still pending."""
    return _grid(tmp_path, "small", "imagenet_vit")


def _grid(tmp_path, name, workload, *more):
    changes = ("protocol=grid", "seeds=2", "steps=10", "eval_every=5", f"name={name}",
               f"workload=algoperf:{workload}", f"experiment_dir={tmp_path}", *more)  # fmt: skip
    made = study.resolve(
        config.parse("digits_vit_quick", [f"--config.{change}" for change in changes])
    )
    study_directory.prepare(made)
    trials = made.trials("grid")
    study_directory.materialise(made, "grid", trials)
    for trial in trials[:-1]:
        _finish(made.directory / trial.path)
    return made.directory


def test_the_tree_is_the_one_that_scoring_reads(finished):
    written = export.export(finished)
    assert written.trials == 7
    assert written.left_out == ("grid/laser/imagenet_vit_jax/trial_1002: it is pending",)
    root = written.directory
    found = sorted(path.relative_to(root).as_posix() for path in root.glob("*/*/*/trial_*"))
    assert found == sorted(
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
        studies.read_study(export.export(finished).directory),
    )
    assert {run.workload for run in ours.runs} == {"algoperf:imagenet_vit"}
    assert {run.workload for run in exported.runs} == {"imagenet_vit"}
    assert exported.published
    there = {(run.variant, run.point, run.seed): run for run in exported.runs}
    for run in ours.runs:
        if run.state == "done":
            twin = there[run.variant, run.point + 1, run.seed + 1]
            assert twin.evals["validation/accuracy"].tolist() == [0.1, 0.3]
            assert (twin.steps, twin.hyperparameters) == (run.steps, run.hyperparameters)


def test_repeating_brings_it_up_to_date(finished):
    root = export.export(finished).directory
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    assert export.export(finished).left_out
    assert before == {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    last = finished / "grid/laser/imagenet_vit_jax/trial_1002"
    _finish(last, "diverged")
    assert export.export(finished).trials == 8
    assert (root / "laser/study_2/imagenet_vit_jax/trial_2/hparams.json").is_file()
    layout.write_json(last / layout.STATUS, {"state": "running"})
    export.export(finished)
    assert not (root / "laser/study_2/imagenet_vit_jax/trial_2").exists()


def test_files_of_others_are_never_replaced(finished, tmp_path):
    for name, content in (("notes.txt", None), ("nadamw/study_1/imagenet_vit_jax", "trial_1")):
        out = tmp_path / "logs"
        path = out / name
        if content is None:
            out.mkdir()
            path.write_text("mine")
        else:
            (path / content).mkdir(parents=True)
        with pytest.raises(ValueError, match="which no export wrote; give another --out"):
            export.export(finished, out)
        path.unlink() if content is None else None
    out = export.export(finished).directory
    mark = next(out.glob("*/*/*/" + export.MARK))
    layout.write_json(mark, {"study": "another"})
    with pytest.raises(ValueError, match="is an export of study 'another' in .*give another --out"):
        export.export(finished)


def _tree(out):
    return {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}


@pytest.mark.parametrize("function", ["mkdir", "replace"])
def test_an_export_that_is_killed_anywhere_is_repeated(finished, tmp_path, monkeypatch, function):
    """In what it makes for its first trial, and as it begins the next ones."""
    out, real, calls = tmp_path / "logs", getattr(os, function), []
    monkeypatch.setattr(files, "_sync", lambda path: None)
    export.export(finished, out)
    whole = _tree(out)

    def killed(*arguments, **named):
        calls.append(arguments)
        if len(calls) == at:
            raise KeyboardInterrupt
        return real(*arguments, **named)

    monkeypatch.setattr(os, function, killed)
    for at in range(1, 9):
        calls.clear()
        shutil.rmtree(out)
        with pytest.raises(KeyboardInterrupt):
            export.export(finished, out)
        assert export.export(finished, out).trials == 7
        assert _tree(out) == whole, at


def test_an_export_that_is_killed_as_it_removes_trials_is_repeated(finished, tmp_path):
    out = tmp_path / "logs"
    export.export(finished, out)
    last = finished / "grid/laser/imagenet_vit_jax/trial_1"
    layout.write_json(last / layout.STATUS, {"state": "running"})
    trial = out / "laser/study_1/imagenet_vit_jax/trial_1"
    (trial / layout.EVAL_MEASUREMENTS).unlink()
    export.export(finished, out)
    assert not trial.exists()


def test_files_that_systems_lay_beside_others_are_no_reason_to_refuse(finished, tmp_path):
    out = tmp_path / "logs"
    export.export(finished, out)
    folders = [out, *(path for path in out.rglob("*") if path.is_dir())]
    for folder in folders:
        for name in (".DS_Store", "._x", ".nfs0000000000000001", ".attnperf_export.json.0.tmp"):
            (folder / name).write_bytes(b"\0")
    assert export.export(finished, out).trials == 7


def test_a_study_of_the_same_name_elsewhere_is_another(finished, tmp_path):
    out = tmp_path / "logs"
    export.export(finished, out)
    shutil.copytree(finished, tmp_path / "elsewhere" / finished.name)
    with pytest.raises(ValueError, match="is an export of study .* in .*give another --out"):
        export.export(tmp_path / "elsewhere" / finished.name, out)
    assert len(list(out.glob("*/*/*/trial_*"))) == 7


@pytest.mark.parametrize(
    ("name", "content"),
    [(layout.STUDY, "[]"), (layout.STUDY, '{"name": "x"}'), (f"grid/{layout.TRIALS}", "{}")],
)
def test_damaged_records_are_named(finished, name, content):
    (finished / name).write_text(content)
    with pytest.raises(ValueError, match=f"{name} is damaged: "):
        export.export(finished)


@pytest.mark.parametrize("workload", ["digits_vit", "pydoc_lm"])
def test_a_workload_that_algoperf_lacks_is_refused(finished, tmp_path, workload, capsys):
    """Its scoring would stop at it: KeyError, and of every other export in the directory too."""
    small = _grid(tmp_path, "of_ours", "wmt")
    trials = json.loads((small / "grid" / layout.TRIALS).read_text())
    for trial in trials["trials"]:
        trial["path"] = trial["path"].replace("wmt_jax", f"{workload}_jax")
    layout.write_json(small / "grid" / layout.TRIALS, trials)
    out = tmp_path / "logs"
    assert command.main(["export", "--format=algoperf", f"--out={out}", str(small)]) == 2
    said = capsys.readouterr().err
    assert f"{small} is of {workload}, which AlgoPerf lacks" in said
    assert not out.exists()
    # An export that an earlier version wrote is in the way of the next.
    export.export(finished, out)
    old = out / "laser/study_1" / f"{workload}_jax"
    shutil.copytree(out / "laser/study_1/imagenet_vit_jax", old)
    with pytest.raises(ValueError, match=f"study_1/{workload}_jax, an earlier export of a workl"):
        export.export(finished, out)
    shutil.rmtree(old)
    assert export.export(finished, out).trials == 7


def test_every_workload_that_algoperf_has_is_exported(algoperf):
    assert set(export._SCORED) <= {*algoperf.workloads_module().WORKLOADS, "finewebedu_lm"}


def test_exports_of_several_studies_share_a_directory(finished, tmp_path):
    speech = _grid(tmp_path, "wmt", "wmt")
    out = tmp_path / "logs"
    first = export.export(finished, out)
    assert export.export(speech, out).trials == first.trials == 7
    assert {path.name for path in out.glob("*/*/*")} == {"imagenet_vit_jax", "wmt_jax"}
    assert len(list(out.glob("*/*/*/trial_*"))) == 14
    for path in speech.glob("grid/laser/*/*/" + layout.STATUS):
        path.unlink()
    assert export.export(speech, out).trials == 4
    assert {path.parts[-4] for path in out.glob("*/*/wmt_jax/trial_*")} == {"standard"}
    assert len(list(out.glob("*/*/imagenet_vit_jax/trial_*"))) == 7
    other = _grid(tmp_path, "other", "wmt")
    with pytest.raises(
        ValueError, match="is an export of study 'wmt' in .*, stage 'grid'; give another"
    ):
        export.export(other, out)


@pytest.fixture
def tuned(tmp_path):
    """A study of which one trial of both stages is done, with the same variant, point and seed."""
    changes = ("name=tuned", "workload=algoperf:imagenet_vit", f"experiment_dir={tmp_path}",
               "steps=10", "eval_every=5")  # fmt: skip
    made = study.resolve(
        config.parse("digits_vit_quick", [f"--config.{change}" for change in changes])
    )
    study_directory.prepare(made)
    for stage, selection in (("tune", None), ("compare", {"points": {"standard": 0, "laser": 0}})):
        trials = made.trials(stage, selection)
        study_directory.materialise(made, stage, trials)
        _finish(made.directory / trials[0].path)
    return made.directory


def test_stages_are_exported_apart(tuned, capsys):
    last = export.export(tuned)
    assert (last.stage, last.directory) == ("compare", tuned / "export/algoperf_compare")
    tune = export.export(tuned, stage="tune")
    assert (tune.stage, tune.directory) == ("tune", tuned / "export/algoperf_tune")
    assert [len(one.left_out) for one in (last, tune)] == [1, 1]
    assert all(name.startswith("tune/") for name in tune.left_out)
    # The same directory in both: one would take the other's place.
    with pytest.raises(
        ValueError, match="study 'tuned' in .*, stage 'compare'; give another --out"
    ):
        export.export(tuned, last.directory, "tune")
    with pytest.raises(ValueError, match="no stage 'grid' in tuned; it has tune, compare"):
        export.export(tuned, stage="grid")
    assert command.main(["export", "--format=algoperf", "--stage=tune", str(tuned)]) == 0
    assert "algoperf_tune: 1 trials of stage tune" in capsys.readouterr().out
    (tuned / "compare" / layout.TRIALS).unlink()
    with pytest.raises(ValueError, match="stage compare of .* has no trials yet; run it: python"):
        export.export(tuned, stage="compare")


def test_what_cannot_be_exported_says_why(finished, tmp_path, capsys):
    assert command.main(["export", "--format=algoperf", str(tmp_path / "none")]) == 2
    assert "is no study: it has no study.json" in capsys.readouterr().err
    for path in finished.rglob(layout.STATUS):
        path.unlink()
    assert command.main(["export", "--format=algoperf", str(finished)]) == 2
    assert "has no trial to export" in capsys.readouterr().err


def test_the_command_says_what_it_left_out(finished, tmp_path, capsys):
    out = tmp_path / "logs"
    assert command.main(["export", "--format=algoperf", f"--out={out}", str(finished)]) == 0
    text = capsys.readouterr().out
    assert "left out: grid/laser/imagenet_vit_jax/trial_1002: it is pending" in text
    assert f"{out}: 7 trials of stage grid" in text


@pytest.mark.filterwarnings("ignore")  # AlgoPerf's and its libraries' own
def test_algoperfs_scoring_reads_the_export(finished, algoperf, monkeypatch):
    pytest.importorskip("pandas", reason="AlgoPerf's scoring needs pandas")
    monkeypatch.syspath_prepend(str(algoperf.directory))
    from scoring import scoring_utils

    root = export.export(finished).directory
    metric, target = scoring_utils.get_workload_metrics_and_targets("imagenet_vit_jax")
    assert (metric, target) == ("validation/accuracy", pytest.approx(0.77309))
    for variant, count in (("standard", 4), ("laser", 3)):
        frame = scoring_utils.get_experiment_df(str(root / variant))
        assert len(frame) == count
        assert set(frame["workload"]) == {"imagenet_vit_jax"}
        assert set(frame["study"]) == {"study_1", "study_2"}
        for column in (metric, "score", "accumulated_submission_time"):
            assert all(values.tolist() == list(EVALS[column]) for values in frame[column])


# A checkout that was never installed lacks a module that its build writes: `activate` makes it.
SCORE = """
import runpy, sys
from workloads.algoperf import installation
found = installation.find(sys.argv[1])
found.activate()
sys.path.insert(0, str(found.directory / "scoring"))
sys.argv[1:2] = []
runpy.run_path(str(found.directory / "scoring/score_submissions.py"), run_name="__main__")
"""


def test_algoperfs_score_submissions_summarises_two_workloads(finished, algoperf, tmp_path):
    pytest.importorskip("pandas", reason="AlgoPerf's scoring needs pandas")
    out, results = tmp_path / "logs", tmp_path / "results"
    for one in (finished, _grid(tmp_path, "wmt", "wmt")):
        export.export(one, out)
    command_line = [
        sys.executable, "-W", "ignore", "-c", SCORE, algoperf.directory,
        f"--submission_directory={out}", f"--output_dir={results}",
    ]  # fmt: skip
    here = {**os.environ, "PYTHONPATH": str(pathlib.Path(__file__).resolve().parents[2])}
    subprocess.run(command_line, env=here, check=True, capture_output=True, text=True)
    for variant, reached in (("standard", 4), ("laser", 3)):
        with (results / f"{variant}_summary.csv").open() as file:
            rows = list(csv.DictReader(file))
        named = {row["workload"]: row["val target metric name"] for row in rows}
        assert named == {"imagenet_vit_jax": "validation/accuracy", "wmt_jax": "validation/bleu"}
        assert [row["val target reached"] for row in rows].count("True") == reached
    profiles = [*command_line, "--compute_performance_profiles"]
    ran = subprocess.run(profiles, env=here, check=False, capture_output=True, text=True)
    assert "KeyError" in ran.stderr
    assert "criteo1tb" in ran.stderr
