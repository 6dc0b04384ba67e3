"""A study of every domain through the real commands: killed once, resumed, equal, tabulated."""

import os
import signal
import subprocess
import sys

import pytest

from analysis import cli
from sweeps.records import layout, lease
from tests.sweeps.chaos import equality
from workloads.images import digits
from workloads.speech.corpora import spoken
from workloads.text.corpora import pydoc_text

DATA = {
    "digits_vit": digits.prepare,
    "spoken_digits_conformer": spoken.DIGITS.prepare,
    "pydoc_lm": pydoc_text.prepare,
}
SETTINGS = {
    "protocol": "grid",
    "variants": "laser",
    "baseline": "laser",
    "points": 1,
    "batch_size": 8,
    "steps": 12,
    "eval_every": 4,
    "log_every": 1,
    "local.workers": 1,
}


@pytest.mark.parametrize(
    "workload",
    [
        "digits_vit",  # the default suite's kill and resume with real training
        pytest.param("spoken_digits_conformer", marks=pytest.mark.nightly),
        pytest.param("pydoc_lm", marks=pytest.mark.nightly),
    ],
)
def test_killed_once_and_resumed(
    workload, made_once, tmp_path, environment, cache_dir, wait_until, capsys
):
    variables = environment(JAX_COMPILATION_CACHE_DIR=str(cache_dir))
    data_dir = made_once(workload, DATA[workload])

    def start(place, *command):
        settings = {**SETTINGS, "experiment_dir": tmp_path / place, "data_dir": data_dir}
        overrides = [f"--config.{key}={value}" for key, value in settings.items()]
        with (tmp_path / f"{place}.log").open("ab") as log:
            return subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "sweeps",
                    *(command or ("run", f"--config={study}", *overrides)),
                ],
                stdout=log,
                stderr=log,
                env=variables,
                cwd=tmp_path,
            )

    study = f"{workload}_quick"
    assert start("whole").wait(300) == 0, (tmp_path / "whole.log").read_text()
    driver = start("killed")
    trial = tmp_path / "killed" / study / f"grid/laser/{workload}_jax/trial_1"
    wait_until((trial / layout.EVAL_MEASUREMENTS).exists)
    worker = layout.read_json(trial / layout.ATTEMPTS / "1" / lease.LEASE)["pid"]
    for process in (driver.pid, worker):
        os.kill(process, signal.SIGKILL)
    driver.wait()
    resumed = start("killed", "resume", str(tmp_path / "killed" / study))
    assert resumed.wait(300) == 0, (tmp_path / "killed.log").read_text()
    assert lease.latest(trial) == 2
    assert equality.problems(tmp_path / "killed" / study, tmp_path / "whole" / study) == []
    assert cli.main(["table", str(tmp_path / "killed")]) == 0
    printed = capsys.readouterr().out
    assert "LASER" in printed
