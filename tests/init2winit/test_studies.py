"""Studies of init2winit's models: a trial in its words, its measurements in ours, its process."""

import dataclasses
import json
import math
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

from sweeps.init2winit import process
from sweeps.launchers.protocol import WRONG_NODE
from sweeps.records import layout, lease, measurements, status, submissions
from sweeps.study import config, study
from tests import floor_plan
from tests.sweeps import waiting
from tests.sweeps.conftest import begin_stage
from workloads import catalog, registry
from workloads.init2winit import installation, preflight

POINT = {
    "learning_rate": 0.002, "one_minus_beta1": 0.1, "beta2": 0.99, "epsilon": 1e-8,
    "weight_decay": 0.05, "warmup_factor": 0.07, "label_smoothing": 0.1, "dropout_rate": 0.2,
}  # fmt: skip


def _study(tmp_path, **changes):
    settings = {"experiment_dir": tmp_path, "init2winit_dir": tmp_path, "seeds": 2, **changes}
    arguments = [f"--config.{key}={value}" for key, value in settings.items()]
    return study.resolve(config.parse("init2winit_vit_demo", arguments))


def _trial(tmp_path, point=POINT, **changes):
    [first, *_] = _study(tmp_path, **changes).trials("tune")
    return dataclasses.replace(first, hyperparameters=point)


def test_a_point_becomes_init2winits_own_hyperparameters(tmp_path):
    first = _trial(tmp_path, optimizer="adamw")
    record = process.hparam_overrides(first)
    assert record["lr_hparams"] == {
        "schedule": "cosine_warmup", "base_lr": 0.002, "warmup_steps": 7,
    }  # fmt: skip
    assert record["opt_hparams"] == {
        "0": {"element": "scale_by_adam", "hps": {"b1": 0.9, "b2": 0.99, "eps": 1e-8}},
        "1": {"element": "add_decayed_weights", "hps": {"weight_decay": 0.05}},
    }
    settings = {"optimizer": "kitchen_sink", "batch_size": 50, "rng_seed": 0, "width": 48}
    settings |= {"label_smoothing": 0.1, "dropout_rate": 0.2}
    assert settings.items() <= record.items()
    clipped = process.hparam_overrides(_trial(tmp_path, {**POINT, "grad_clip": 5.0}))
    assert clipped["opt_hparams"]["grad_clip"] == 5.0
    assert clipped["opt_hparams"]["join"]["0"]["element"] == "scale_by_nadam"
    arguments = process.main_arguments(first, "/e")
    assert arguments[:2] == ("--config.dataset=mnist", "--config.model=vit")
    assert "--config.num_train_steps=100" in arguments
    assert {"--config.eval_frequency=20", "--config.log_frequency=5"} <= set(arguments)
    assert json.loads(arguments[-2].partition("=")[2]) == record
    assert arguments[-1] == "--experiment_dir=/e"


def test_every_rate_of_dropout_gets_the_points(tmp_path):
    speech = _trial(tmp_path, workload="init2winit:conformer")
    record = process.hparam_overrides(speech)
    assert (record["residual_dropout_rate"], record["input_dropout_rate"]) == (0.2, 0.2)


def test_its_rows_become_ours(tmp_path):
    first, file = _trial(tmp_path), tmp_path / "measurements.csv"
    reader = process.Reader(file, first)
    assert reader.take() == []
    head = (
        "global_step,train_cost,grad_norm,train_steps_per_sec,valid/error_rate,valid/ce_loss,"
        "run_time_no_eval,eval_time,run_time\n"
    )
    file.write_text(head + "5,2.5,0.5,4.0,,,,,\n")
    [row] = reader.take()
    assert row == {
        "kind": "train", "global_step": 4, "loss": 2.5, "grad_norm": 0.5, "step_seconds": 0.25,
        "images_per_second": 200.0,
    }  # fmt: skip
    file.write_text(head + "5,2.5,0.5,4.0,,,,,\n20,2.0,0.4,4.0,0.25,1.")  # being written
    assert reader.take() == []
    file.write_text("")
    assert reader.take() == []
    file.write_text(head + "5,2.5,0.5,4.0,,,,,\n20,2.0,0.4,4.0,0.25,1.5,3.0,1.0,4.5\n")
    train, evaluation = reader.take()
    assert (train["global_step"], train["loss"]) == (19, 2.0)
    assert evaluation == {
        "kind": "eval", "global_step": 20, "validation/accuracy": 0.75, "validation/loss": 1.5,
        "score": 3.0, "accumulated_submission_time": 3.0, "accumulated_eval_time": 1.0,
        "accumulated_logging_time": 0.0, "total_duration": 4.5,
    }  # fmt: skip
    # Its mean after a restart counts costs from before it, until the next evaluation is over.
    again = process.Reader(file, first, evaluation, resumed=True)
    first, second, later = again.take()
    assert "loss" not in first
    assert "loss" not in second
    assert (later["accumulated_submission_time"], later["total_duration"]) == (6.0, 9.0)


def test_a_column_that_is_not_there_is_no_number(tmp_path):
    file = tmp_path / "measurements.csv"
    file.write_text("global_step\n5\n")
    [row] = process.Reader(file, _trial(tmp_path)).take()
    assert math.isnan(row["loss"])
    assert "step_seconds" not in row


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"init2winit_config": "{"}, "is no JSON"),
        ({"init2winit_config": "[]"}, "an object of fields"),
        ({"init2winit_config": '{"hparam_overrides": 1}'}, "an object of fields"),
        ({"init2winit_config": '{"modle": "vit"}'}, "unknown field of init2winit_config 'modle'"),
        ({"init2winit_config": '{"early_stopping_mode": "above"}'}, "unknown field"),
        ({"init2winit_config": '{"hparam_overrides": {"lr_hparams.base_lr": 1}}'}, "take it out"),
        ({"matmul_precision": "float32"}, "knows no matmul_precision"),
        ({"microbatches": 2}, "knows no microbatches"),
        ({"mesh.fsdp": 2}, "no mesh"),
        ({"keep_checkpoints": 2}, "knows no keep_checkpoints"),
        ({"diff_head_norm": False}, "knows no diff_head_norm"),
        ({"step_hint": 200}, "knows no step_hint: it is 200 and must be 100"),
        ({"checkpoint_every": 40}, "knows no checkpoint_every: it is 40 and must be 20"),
        ({"optimizer": "lamb"}, "makes no optimizer 'lamb'"),
        ({"steps": 0}, "no number of steps of its own"),
        ({"launcher": "slurm", "slurm.nodes": 2}, "one process of init2winit's"),
        ({"workload": "init2winit:conformer", "variants": "standard,laser+per_dim_temp"}, "scales"),
        ({"workload": "init2winit:nanodo"}, "nanodo has no dropout"),
        ({"workload": "init2winit:resnet"}, "unknown workload 'init2winit:resnet'"),
        ({"workload": "digits_vit"}, "init2winit_config is for init2winit's own workloads"),
    ],
)
def test_what_its_trainer_cannot_do_is_refused(tmp_path, changes, words):
    if changes.get("workload") == "digits_vit":
        changes = {**changes, "init2winit_dir": ""}
    with pytest.raises(ValueError, match=words):
        _study(tmp_path, **changes)


def test_it_is_no_workload_of_our_loop():
    with pytest.raises(ValueError, match="by init2winit's own trainer"):
        registry.make("init2winit:vit")


def test_ids_depend_on_its_config_not_on_where_it_lies(tmp_path):
    """Nor on how it is spelt; and no different trial's id knows of it."""
    spelt = [
        '{"dataset": "mnist", "hparam_overrides": {"depth": 2, "width": 48}}',
        '{"hparam_overrides": {"width": 48, "depth": 2}, "dataset": "mnist"}',
        '{"dataset": "mnist", "hparam_overrides": {"depth": 3, "width": 48}}',
    ]
    first, same, different = (_trial(tmp_path, init2winit_config=text) for text in spelt)
    assert first.id == same.id != different.id
    elsewhere = _trial(tmp_path, init2winit_config=spelt[0], init2winit_dir="/elsewhere")
    assert elsewhere.id == first.id


@pytest.fixture
def libraries(monkeypatch, tmp_path):
    """PYTHONPATH of processes: what stands in for TensorFlow, and empty packages for the rest."""
    tensorflow, empty = pathlib.Path(__file__).parent / "libraries", tmp_path / "empty"
    for name in preflight._LIBRARIES:
        if name != "tensorflow":
            (empty / name).mkdir(parents=True)
            (empty / name / "__init__.py").touch()
    monkeypatch.syspath_prepend(empty)
    monkeypatch.syspath_prepend(tensorflow)
    return os.pathsep.join(map(str, (tensorflow, empty)))


def test_what_is_missing_is_said_before_anything_starts(stand_in, libraries, tmp_path, monkeypatch):
    check = catalog.data_module("init2winit:vit").check
    where = {"init2winit_dir": str(stand_in.directory)}
    small = '{"dataset": "fake"}'
    [line, remark] = check(tmp_path, init2winit_config=small, **where)
    assert "vit on fake" in line
    assert "is at an unknown commit" in remark
    for name, words in (("mnst", "has no data set 'mnst'"), ("mnist", "init2winit_data DIR")):
        with pytest.raises(ValueError, match=words):
            check(tmp_path, init2winit_config=json.dumps({"dataset": name}), **where)
    monkeypatch.delenv(installation.DIRECTORY_VARIABLE, raising=False)
    with pytest.raises(ValueError, match="no checkout of init2winit is named.*checkout afd5"):
        check(tmp_path, init2winit_config=small)
    monkeypatch.setattr(preflight, "_LIBRARIES", ("tensorflow", "pandsa"))
    with pytest.raises(ValueError, match="needs pandsa, not installed"):
        check(tmp_path, init2winit_config=small, **where)
    with pytest.raises(ValueError, match="init2winit_data"):
        catalog.data_module("init2winit:vit").prepare("DIR")


class Driver:
    """A driver's process on a study of the stand-in."""

    def __init__(self, tree, libraries, directory, command="run", **changes):
        fields = {"dataset": "fake", "hparam_overrides": changes.pop("hparam_overrides", {})}
        settings = {
            "name": "s", "experiment_dir": directory, "init2winit_dir": tree.directory,
            "init2winit_config": json.dumps(fields), "protocol": "grid", "points": 1, "seeds": 1,
            "variants": "laser", "baseline": "laser", "local.workers": 1, "max_attempts": 2,
            "steps": 12, "eval_every": 4, "log_every": 2, **changes,
        }  # fmt: skip
        arguments = [str(directory / "s")]
        if command == "run":
            arguments = [f"--config.{key}={value}" for key, value in settings.items()]
            arguments.append("--config=init2winit_vit_demo")
        paths = os.pathsep.join((str(floor_plan.ROOT), libraries))
        self.trial = directory / "s/grid/laser/vit_jax/trial_1"
        self.process = subprocess.Popen(
            [sys.executable, "-m", "sweeps", command, *arguments],
            cwd=floor_plan.ROOT,
            env={**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": paths},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def said(self):
        return self.process.communicate(timeout=120)[0]

    def wait_for(self, path):
        def came():
            assert self.process.poll() is None, self.process.communicate()[0]
            return list(self.trial.glob(path))

        waiting.wait(came, path)


def _steps(directory):
    curve = measurements.curve(directory)
    return [row["global_step"] for row in curve if row["kind"] == "eval"]


@pytest.mark.slow
def test_a_trial_is_trained_by_its_trainer_and_killed_with_its_worker(
    stand_in, libraries, tmp_path
):
    """SIGKILL to the worker, Ctrl-C to the driver: each attempt goes on from its checkpoint."""
    slow = {"step_seconds": 0.3}
    driver = Driver(stand_in, libraries, tmp_path, hparam_overrides=slow, steps=24)
    driver.wait_for("attempts/1/init2winit/1/ttl=180d/8")
    time.sleep(0.1)  # it has written down its evaluation, which the worker need not have read
    worker = layout.read_json(driver.trial / "attempts/1/lease.json")["pid"]
    child = int(pathlib.Path(f"/proc/{worker}/task/{worker}/children").read_text())
    os.kill(worker, signal.SIGKILL)
    waiting.wait(lambda: lease.process_start(child) is None, "it outlived its worker", 5)
    driver.wait_for("attempts/2/init2winit/1/ttl=180d/16")
    driver.process.send_signal(signal.SIGINT)
    driver.said()
    assert driver.process.returncode == 130
    record = status.read(driver.trial)
    assert record["state"] == "pending"
    assert "last checkpoint is of step" in record["reason"]
    assert not list(driver.trial.glob("attempts/1/init2winit/1/ttl=180d"))  # it was moved
    driver = Driver(stand_in, libraries, tmp_path, command="resume")
    assert "1 done" in driver.said()
    assert _steps(driver.trial) == [4, 8, 12, 16, 20, 24]
    began = [
        layout.read_json(driver.trial / f"attempts/{k}/resumed.json")["global_step"]
        for k in (1, 2, 3)
    ]
    assert began == [0, 8, 16]
    assert measurements.are_whole(driver.trial, 24)
    meta = layout.read_json(driver.trial / "meta_data_2.json")
    assert (meta["rng_seed"], meta["init2winit_dir"]) == (0, str(stand_in.directory))


@pytest.mark.slow
def test_the_job_of_an_engine_trains_it_where_its_platform_is(stand_in, libraries, tmp_path):
    """What an engine would start on a node. Told of a GPU that is not there, JAX takes the CPU."""
    where = {"init2winit_dir": stand_in.directory, "data_dir": tmp_path}
    small = {"init2winit_config": '{"dataset": "fake"}', "steps": 4, "eval_every": 4}
    record = _study(tmp_path, launcher="slurm", points=1, **where, **small)
    (first,) = begin_stage(record)
    directory = record.directory / first.path

    def job(platform):
        jobs = [(first.path,)]
        batch = submissions.new(record.directory, "slurm", jobs, {}, platform=platform)
        paths = os.pathsep.join((str(floor_plan.ROOT), libraries))
        environment = {**os.environ, "PYTHONPATH": paths}
        return subprocess.run(
            batch.command(0), env=environment, capture_output=True, text=True, check=False
        )

    wrong = job("gpu")
    assert (wrong.returncode, status.read(directory)["state"]) == (WRONG_NODE, "pending")
    assert "a gpu was expected here" in wrong.stdout
    right = job("cpu")
    assert (right.returncode, status.read(directory)["state"]) == (0, "done"), right.stderr


@pytest.mark.slow
def test_how_its_process_ends_is_how_the_trial_ends(stand_in, libraries, tmp_path):
    driver = Driver(stand_in, libraries, tmp_path / "a", hparam_overrides={"diverges_at": 8})
    assert "1 diverged" in driver.said()
    record = status.read(driver.trial)
    assert (record["state"], record["global_step"]) == ("diverged", 4)
    driver = Driver(stand_in, libraries, tmp_path / "b", hparam_overrides={"crash_at": 6})
    assert "exit code 1: RuntimeError: the device is lost" in driver.said()
    assert driver.process.returncode == 1
    # Begun at 0 and again at 4, then once more from there: two attempts without progress.
    assert len(list((driver.trial / "attempts").iterdir())) == 3
    driver = Driver(stand_in, libraries, tmp_path / "c", hparam_overrides={"widht": 3})
    assert "init2winit refuses these hparam_overrides" in driver.said()
    assert len(list((driver.trial / "attempts").iterdir())) == 1  # it would be refused again


@pytest.mark.slow
def test_a_last_evaluation_that_was_saved_and_not_recorded_is_made_again(
    stand_in, libraries, tmp_path
):
    """init2winit would find the last step trained, and evaluate nothing any more."""
    driver = Driver(stand_in, libraries, tmp_path)
    assert "1 done" in driver.said()
    attempt = driver.trial / "attempts/1"
    for name, rows_of_it in (("measurements.jsonl", 2), ("init2winit/1/measurements.csv", 1)):
        lines = (attempt / name).read_text().splitlines(keepends=True)
        (attempt / name).write_text("".join(lines[:-rows_of_it]))
    (attempt / "outcome.json").unlink()
    status.write(driver.trial, "running", global_step=8)
    driver = Driver(stand_in, libraries, tmp_path, command="resume")
    assert "1 done" in driver.said()
    assert _steps(driver.trial) == [4, 8, 12]
    assert layout.read_json(driver.trial / "attempts/2/resumed.json") == {"global_step": 0}
