"""`python -m workloads algoperf`: the runner runs unmodified, and what cannot run is refused."""

import csv
import itertools
import json
import os
import pathlib
import subprocess
import sys

import pytest

from analysis.load import studies
from sweeps import __main__ as sweeps_command
from sweeps.algoperf import export
from sweeps.records import layout, provenance
from sweeps.study import study_directory
from tests.sweeps.conftest import begin_stage, resolve
from workloads import __main__ as command
from workloads.algoperf import preflight, runner

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
STAND_IN = REPOSITORY / "tests/algoperf/stand_in"
DATA = (
    "imagenet2012/5.1.0",
    "imagenet_v2/matched-frequency/3.0.0",
    "wmt17_translate/de-en/1.0.0",
    "wmt14_translate/de-en/1.0.0",
    "wmt_sentencepiece_model",
    *(f"{part}.csv" for part in ("train-clean-100", "train-clean-360", "train-other-500")),
    *(f"{part}.csv" for part in ("dev-clean", "dev-other", "test-clean")),
    "train",
    "val",
)


@pytest.fixture
def folder(tmp_path):
    """A directory with data by name only (the stand-in reads none), and a search space."""
    for name in DATA:
        (tmp_path / "data" / name).mkdir(parents=True)
    (tmp_path / "space.json").write_text(json.dumps([{"learning_rate": 0.1}]))
    (tmp_path / "spm_model.vocab").touch()
    return tmp_path


def _flags(folder, **changes):
    values = {
        "workload": "imagenet_vit",
        "framework": "jax",
        "submission_path": "algorithms/sgd.py",
        "tuning_search_space": str(folder / "space.json"),
        "data_dir": str(folder / "data"),
        "experiment_dir": str(folder / "experiments"),
        "experiment_name": "try",
    } | changes
    return [f"--{name}={value}" for name, value in values.items() if value is not None]


def _refusal(capsys, folder, *ours, attention="laser", **changes):
    """What the command says on its way out; nothing of AlgoPerf is loaded by then."""
    arguments = [f"--attention={attention}", f"--algoperf_dir={STAND_IN}", *ours, "--"]
    before = "algoperf" in sys.modules
    assert command.main(["algoperf", *arguments, *_flags(folder, **changes)]) == 2
    assert ("algoperf" in sys.modules) == before
    return capsys.readouterr().err


FAILING = """
from algorithms.sgd import *  # noqa: F403

def prepare_for_eval(workload, current_param_container, global_step):
    def fail(*_):
        raise RuntimeError("RESOURCE_EXHAUSTED: Out of memory\\nmore lines")

    if global_step == 2:
        workload._eval_model_on_split = fail
    return current_param_container
"""


def test_it_trains_with_the_variant_and_says_what_failed(folder):
    """In a process of its own, from another folder: AlgoPerf logs an evaluation that failed, and
    ends as if nothing had been."""
    (folder / "failing.py").write_text(FAILING)
    command_line = [
        sys.executable,
        *("-m", "tests.algoperf.small_models", "workloads", "algoperf"),
        *("--attention=laser+temp", "--tau=0.9", f"--algoperf_dir={STAND_IN}", "--"),
        *_flags(folder, submission_path="failing.py", max_global_steps=2, rng_seed=3),
        "--hparam_end_index=1",
    ]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        command_line, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, done.stderr
    assert "evaluations that failed: 1;" in done.stderr
    assert done.stderr.rstrip().endswith("RuntimeError: RESOURCE_EXHAUSTED: Out of memory")
    assert "note: AlgoPerf in " in done.stderr
    trial = folder / "experiments/try/imagenet_vit_jax/trial_1"
    flags, meta = (
        json.loads((trial / name).read_text()) for name in ("flags_0.json", "meta_data_0.json")
    )
    assert (flags["attention"], flags["attention_tau"]) == ("laser+temp", 0.9)
    assert {name.removeprefix("workload."): value for name, value in meta.items()}.items() >= {
        "attention": "laser+temp",
        "attention_tau": 0.9,
        "attention_layers": 2,
        "submission_file": str(folder / "failing.py"),
        "algoperf_dir": str(STAND_IN),
        "algoperf_commit": "unknown",
        "attnperf_commit": provenance.git_commit(),
    }.items()
    (row,) = csv.DictReader((trial / "eval_measurements.csv").read_text().splitlines())
    assert row["global_step"] == "1"
    assert "validation/accuracy" in row


@pytest.mark.parametrize(
    ("end", "errors", "status"), [(None, [], None), (0, [], 0), (3, ["an error"], 3)]
)
def test_a_run_keeps_its_own_end(end, errors, status):
    try:
        with runner._reported(errors):
            if end is not None:
                sys.exit(end)
        ended = None
    except SystemExit as stop:
        ended = stop.code
    assert ended == status


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"attention": "lazer"}, "laser"),
        ({"attention": "laser+temp"}, "give --tau=0.9"),
        ({"framework": "pytorch"}, "give --framework=jax"),
        ({"workload": "imagenet_resnet"}, "unknown workload 'algoperf:imagenet_resnet'"),
        ({"workload": "imagenet_vit_post_ln"}, "raises at its first training step"),
        ({"workload": "imagenet_vitt"}, "Did you mean 'algoperf:imagenet_vit'"),
        (
            {"workload": "finewebedu_lm", "attention": "laser+qk_norm"},
            "cannot have 'laser+qk_norm'",
        ),
        (
            {"workload": "librispeech_conformer", "attention": "laser+per_dim_temp"},
            "cannot have 'laser+per_dim_temp'",
        ),
        ({"workload": None}, "Flag --workload must have a value"),
        ({"skip_evals": "perhaps"}, "submission_runner.py's flags"),
        ({"workload": "librispeech_conformer"}, "vocab_path=None: no such file"),
        ({"data_dir": "/nowhere"}, "lacks /nowhere/imagenet2012/5.1.0"),
        ({"imagenet_v2_data_dir": "/nowhere"}, "lacks /nowhere/imagenet_v2/matched"),
        ({"resume_last_run": "true"}, "cannot resume"),
        ({"workload": "wmt_post_ln"}, "has no workload 'wmt_post_ln'"),
        ({"experiment_dir": "experiments"}, "give --experiment_dir=/"),
        ({"submission_path": "nowhere.py"}, "submission_path=nowhere.py: AlgoPerf imports it"),
        ({"submission_path": "algorithms/sgd"}, "Give the path of a .py file relative to"),
        ({"submission_path": f"{STAND_IN}/algorithms/sgd.py"}, "relative to one of"),
    ],
)
def test_refused_before_anything_heavy(capsys, folder, changes, words):
    assert words in _refusal(capsys, folder, **changes)


def test_a_variant_without_a_temperature_takes_none(capsys, folder):
    assert "tau" in _refusal(capsys, folder, "--tau=0.9")


def _checked(folder, stand_in, **changes):
    return preflight.check("laser", None, _flags(folder, **changes), stand_in)


def test_an_experiment_that_exists_is_refused(capsys, folder, stand_in):
    """AlgoPerf would ask whether to mix it with the new one, and end with status 0 without."""
    (folder / "experiments/try/imagenet_vit_jax").mkdir(parents=True)
    assert "imagenet_vit_jax exists. Give another" in _refusal(capsys, folder)
    for answer in ("overwrite", "append_timestamp"):
        assert _checked(folder, stand_in, **{answer: "true"}) == stand_in.directory


@pytest.mark.parametrize("tau", ["nan", "0", "1e40", "hot"])
def test_a_temperature_that_cannot_be_is_refused_at_the_door(capsys, tau):
    with pytest.raises(SystemExit):
        command.main(["algoperf", "--attention=laser+temp", f"--tau={tau}"])
    assert f"argument --tau: {tau!r}; give a number from 1e-30 to 1e+30" in capsys.readouterr().err


def test_missing_dashes_are_named(capsys, folder):
    with pytest.raises(SystemExit):
        command.main(["algoperf", "--attention=laser", *_flags(folder), "--", "--rng_seed=1"])
    assert "follow after `--`: ... -- --workload=imagenet_vit" in capsys.readouterr().err


def test_submission_is_looked_for_here_then_at_algoperf_then_at_ours(folder, stand_in, monkeypatch):
    monkeypatch.chdir(folder)

    def root(path):
        return _checked(folder, stand_in, submission_path=path)

    assert root("algorithms/sgd.py") == stand_in.directory
    assert root("sweeps/algoperf/submission.py") == REPOSITORY
    (folder / "algorithms").mkdir()
    (folder / "algorithms/sgd.py").touch()
    assert root("algorithms/sgd.py") == folder


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


def _study(folder, **changes):
    settings = {"steps": 10, "eval_every": 5, "experiment_dir": folder, **changes}
    return resolve("digits_vit_quick", **settings)


def _grid(folder, name, workload):
    study = _study(folder, name=name, workload=workload, protocol="grid", seeds=2)
    for trial in begin_stage(study, "grid")[:-1]:
        _finish(study.directory / trial.path)
    return study.directory


def test_the_tree_is_the_one_that_scoring_reads(finished, capsys):
    assert sweeps_command.main(["export", "--format=algoperf", str(finished)]) == 0
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
    study = _study(tmp_path, name="tuned", workload="algoperf:imagenet_vit")
    study_directory.prepare(study)
    for stage, selection in (("tune", None), ("compare", {"points": {"standard": 0, "laser": 0}})):
        trials = study_directory.materialise(study, stage, study.trials(stage, selection))
        _finish(study.directory / trials[0].path)
    return study.directory


def test_stages_are_exported_apart(tuned, capsys):
    last = export.export([tuned])
    assert (last.stages, last.directory) == (("compare",), tuned / "export/algoperf_compare")
    arguments = ["export", "--format=algoperf", "--stage=tune", str(tuned)]
    assert sweeps_command.main(arguments) == 0
    assert "algoperf_tune: 1 trials" in capsys.readouterr().out
    with pytest.raises(ValueError, match="no stage 'grid'"):
        export.export([tuned], stage="grid")
    (tuned / "compare" / layout.TRIALS).unlink()
    with pytest.raises(ValueError, match="stage compare of .* has no trials yet"):
        export.export([tuned], stage="compare")


def test_what_cannot_be_exported_is_refused(finished, tmp_path, capsys):
    assert sweeps_command.main(["export", "--format=algoperf", str(tmp_path / "none")]) == 2
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
