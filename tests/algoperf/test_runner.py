"""`python -m workloads algoperf`: the runner runs unmodified, and what cannot run is refused."""

import csv
import json
import os
import pathlib
import subprocess
import sys

import pytest

from sweeps.records import provenance
from tests.algoperf import tiny_data, tiny_run
from workloads import __main__ as command
from workloads.algoperf import preflight

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
STAND_IN = REPOSITORY / "tests/algoperf/stand_in"
SPACE = [{"learning_rate": 0.1}]
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
    (tmp_path / "space.json").write_text(json.dumps(SPACE))
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


def _run(module, folder, *more, **changes):
    """The command of a module in a process of its own, from another folder."""
    command_line = [
        sys.executable,
        *("-m", "tests.algoperf.small_models", module, "algoperf"),
        *("--attention=laser+temp", "--tau=0.9"),
        *(f"--algoperf_dir={STAND_IN}", "--", *_flags(folder, **changes)),
        *("--max_global_steps=2", "--rng_seed=3", *more),
    ]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "JAX_PLATFORMS": "cpu"}
    environment["XLA_FLAGS"] = "--xla_force_host_platform_device_count=1"
    return subprocess.run(
        command_line, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("module", ["workloads", "tests.algoperf.tiny_run"])
def test_trains_with_the_variant_and_writes_it_down(folder, module):
    """With a relative submission of AlgoPerf's, and with the sizes of fabricated data."""
    done = _run(module, folder, "--hparam_end_index=1")
    assert done.returncode == 0, done.stderr
    for note in ("AlgoPerf in ", "submission_runner.py replaces XLA_FLAGS",
                 "AlgoPerf shuffles its search points anew"):  # fmt: skip
        assert f"note: {note}" in done.stderr
    assert "'laser+temp' runs in 2 of 2 attention layers" in done.stderr
    trial = folder / "experiments/try/imagenet_vit_jax/trial_1"
    flags, meta, point = (
        json.loads((trial / name).read_text())
        for name in ("flags_0.json", "meta_data_0.json", "hparams.json")
    )
    assert point == SPACE[0]
    assert (
        flags.items()
        >= {
            "attention": "laser+temp",
            "attention_tau": 0.9,
            "submission_path": "algorithms/sgd.py",
        }.items()
    )
    assert {name.removeprefix("workload."): value for name, value in meta.items()}.items() >= {
        "attention": "laser+temp",
        "attention_tau": 0.9,
        "attention_layers": 2,
        "submission_file": str(STAND_IN / "algorithms/sgd.py"),
        "algoperf_dir": str(STAND_IN),
        "algoperf_commit": "unknown",
        "attnperf_commit": provenance.git_commit(),
    }.items()
    assert ("workload.attnperf_tiny" in meta) == (module != "workloads")
    rows = list(csv.DictReader((trial / "eval_measurements.csv").read_text().splitlines()))
    assert [row["global_step"] for row in rows] == ["1", "2"]
    assert "validation/accuracy" in rows[0]


FAILING = """
from algorithms.sgd import *  # noqa: F403

def prepare_for_eval(workload, current_param_container, global_step):
    def fail(*_):
        raise RuntimeError("RESOURCE_EXHAUSTED: Out of memory\\nmore lines")

    if global_step == 2:
        workload._eval_model_on_split = fail
    return current_param_container
"""


def test_an_evaluation_that_failed_is_told(folder):
    """AlgoPerf logs it and ends as if nothing had been."""
    (folder / "failing.py").write_text(FAILING)
    done = _run("workloads", folder, submission_path="failing.py")
    assert done.returncode == 1, done.stderr
    assert "evaluations that failed: 1; AlgoPerf logged them" in done.stderr
    assert done.stderr.rstrip().endswith("RuntimeError: RESOURCE_EXHAUSTED: Out of memory")
    trial = folder / "experiments/try/imagenet_vit_jax/trial_1"
    assert len((trial / "eval_measurements.csv").read_text().splitlines()) == 2


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


def test_an_experiment_that_exists_is_refused(capsys, folder, stand_in):
    """AlgoPerf would ask whether to mix it with the new one, and end with status 0 without."""
    (folder / "experiments/try/imagenet_vit_jax").mkdir(parents=True)
    assert "imagenet_vit_jax exists. Give another" in _refusal(capsys, folder)
    for answer in ("overwrite", "append_timestamp"):
        assert _checked(folder, stand_in, **{answer: "true"}).workload == "imagenet_vit"


def test_a_variant_without_a_temperature_takes_none(capsys, folder):
    assert "tau" in _refusal(capsys, folder, "--tau=0.9")


def test_a_directory_holds_fabricated_data_of_several_workloads(tmp_path):
    for workload in ("imagenet_vit", "librispeech_conformer", "imagenet_vit"):
        tiny_data.prepare(tmp_path, workload)
    assert (tmp_path / "imagenet2012/5.1.0").is_dir()
    assert (tmp_path / "spm_model.vocab").is_file()


@pytest.mark.parametrize("tau", ["nan", "inf", "0", "-1", "1e40", "hot"])
def test_a_temperature_that_cannot_be_is_refused_at_the_door(capsys, tau):
    with pytest.raises(SystemExit):
        command.main(["algoperf", "--attention=laser+temp", f"--tau={tau}"])
    assert f"argument --tau: {tau!r}; give a number from 1e-30 to 1e+30" in capsys.readouterr().err


def test_missing_dashes_are_named(capsys, folder):
    with pytest.raises(SystemExit):
        command.main(["algoperf", "--attention=laser", *_flags(folder), "--", "--rng_seed=1"])
    assert "follow after `--`: ... -- --workload=imagenet_vit" in capsys.readouterr().err


def _checked(folder, stand_in, **changes):
    request = preflight.Request("laser", None, tuple(_flags(folder, **changes)))
    return preflight.check(request, stand_in)


def test_seed_0_is_told(folder, stand_in):
    assert "takes --rng_seed=0 for none" in _checked(folder, stand_in, rng_seed="0").notes[-1]


@pytest.mark.parametrize(("devices", "size"), [(1, 4), (2, 4), (3, 6), (8, 8)])
def test_tiny_evaluation_batches_divide_among_the_devices(monkeypatch, devices, size):
    """AlgoPerf's runner refuses batches that do not."""
    monkeypatch.setattr("jax.local_device_count", lambda: devices)
    workload = tiny_run.with_sizes(type("Workload", (), {})(), tiny_data.SIZES)
    assert workload.eval_batch_size == workload.num_eval_train_examples == size
    assert workload.num_validation_examples == workload.num_test_examples == 4


def test_submission_is_looked_for_here_then_at_algoperf_then_at_ours(folder, stand_in, monkeypatch):
    monkeypatch.chdir(folder)

    def root(path):
        return _checked(folder, stand_in, submission_path=path).import_root

    assert root("algorithms/sgd.py") == stand_in.directory
    assert root("sweeps/algoperf/submission.py") == REPOSITORY
    (folder / "algorithms").mkdir()
    (folder / "algorithms/sgd.py").touch()
    assert root("algorithms/sgd.py") == folder
