"""`python -m workloads algoperf`: the runner runs unmodified, and what cannot run is refused."""

import csv
import json
import os
import pathlib
import subprocess
import sys

import pytest

from sweeps.records import provenance
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
    status = command.main(["algoperf", *arguments, *_flags(folder, **changes)])
    assert status == 2
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
