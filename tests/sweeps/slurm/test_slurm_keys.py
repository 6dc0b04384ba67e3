"""What the keys of config.slurm may say, and the golden scripts that come of them."""

import os
import pathlib
import re
import shlex
import subprocess

import pytest

from sweeps.launchers.slurm import keys as slurm_keys
from sweeps.launchers.slurm import launcher
from sweeps.records.submissions import Batch
from tests.sweeps import defaults

GOLDEN = pathlib.Path(__file__).parent / "golden"
EVERYTHING = {
    "partition": "gpu,spare",
    "account": "lab",
    "qos": "normal",
    "time": "1-00:00:00",
    "nodes": 2,
    "gpus": 4,
    "gpu_type": "a100",
    "cpus": 32,
    "memory": "200G",
    "at_once": 8,
    "save_seconds": 300,
    "setup": "module load cuda\nsource '/opt/a b/env.sh'",
    "python": "/opt/env/bin/python",
    "container": "docker://ghcr.io#jax/jax",
    "mounts": "/data:/data:ro,/home",
    "flags": "--constraint='ib&a100' --mail-type=END",
}


def _rendered(keys, part, avoid=(), root="/shared/lab's study 100%"):
    keys = {**defaults.of(launcher.Slurm), **keys}
    slurm_keys.check({"slurm": keys})
    file = pathlib.Path(root) / "jobs" / "s-digits-0123abcd.json"
    environment = {"PYTHONPATH": f"{root}/code/0123", "PYTHONSAFEPATH": "1"}
    batch = Batch(file, ((),) * part.size, environment, avoid)
    options = launcher.options_of(keys, batch, part, avoid)
    command = shlex.join(["sbatch", "--parsable", *options])
    return command.replace(" --", " \\\n    --") + "\n\n" + launcher.script_of(keys, batch, part)


@pytest.mark.parametrize(
    ("name", "keys", "part", "avoid"),
    [
        ("plain", {"python": "/env/bin/python"}, launcher.ArrayPart(0, 3, 12), ()),
        ("everything", EVERYTHING, launcher.ArrayPart(2, 3, 500), ("n7", "n9")),
    ],
)
def test_golden_scripts(name, keys, part, avoid):
    """tests/sweeps/slurm/golden/*.sh: the command line, then the script."""
    assert _rendered(keys, part, avoid) == (GOLDEN / f"slurm_{name}.sh").read_text()


@pytest.mark.parametrize(
    "name",
    [
        "it's $HOME",
        "a\nb",
        "`id` $(id)",
        "#x %j",
        "a\tb;c&d",
        "!x \\ y",
        "caf\udce9",
        "-x {a,b}[1]*",
    ],
)
def test_paths_reach_a_job_as_they_are(tmp_path, name):
    """The script is bash's; srun is a stand-in that runs its command."""
    root = f"/shared/{name}"
    srun = tmp_path / "srun"
    srun.write_text('#!/bin/sh\nprintf "%s|" "$PYTHONPATH" "$@"\n')
    srun.chmod(0o755)
    batch = Batch(pathlib.Path(root) / "jobs" / "s-a.json", ((),) * 3, {"PYTHONPATH": root})
    text = launcher.script_of(defaults.of(launcher.Slurm), batch, launcher.ArrayPart(0, 3, 3))
    done = subprocess.run(
        ["bash"],
        input=text,
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_ARRAY_TASK_ID": "2"},
        capture_output=True,
        check=True,
        encoding="utf-8",
        errors="surrogateescape",
    )
    path, *_, file, index, end = done.stdout.split("|")
    assert (path, file, index, end) == (root, f"{root}/jobs/s-a.json", "--index=2", "")


def test_parts_begin_where_a_logs_name_can_say_the_index():
    for largest, size, expected in (
        (1001, 1, [1]),
        (1001, 1000, [1000]),
        (1001, 1001, [1000, 1]),
        (4000, 2500, [1000, 1000, 500]),
        (11, 25, [10, 10, 5]),
        (2, 2, [1, 1]),
    ):
        parts = launcher.parts_of(size, largest)
        assert [part.size for part in parts] == expected
        assert all(part.size < largest for part in parts)
        assert parts[-1].offset + parts[-1].size == size


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"time": "24h"}, "slurm.time is '24h'; it must be D-HH:MM:SS"),
        ({"time": "90:00"}, "slurm.time is '90:00'; it must be D-HH:MM:SS"),
        ({"time": "00:03:00"}, "leaves no time to train.*at least 120 s more"),
        ({"partition": "main\n#SBATCH --uid=0"}, "must be a partition's name"),
        ({"account": "lab --uid=0"}, "must be an account's name"),
        ({"qos": "a b"}, "must be the name of a quality of service"),
        ({"memory": "16 GB"}, "a whole number with K, M, G or T"),
        ({"nodes": 0}, "slurm.nodes is 0; it must be 1 to"),
        ({"gpus": -1}, "slurm.gpus is -1; it must be 0 to"),
        ({"at_once": -2}, "slurm.at_once is -2"),
        ({"max_jobs": 0}, "slurm.max_jobs is 0"),
        ({"trials_per_job": 0}, "slurm.trials_per_job is 0"),
        ({"save_seconds": 70_000}, "10 to 65,535"),
        ({"poll_seconds": 0}, "slurm.poll_seconds is 0"),
        ({"gpu_type": "a100"}, "needs slurm.gpus"),
        ({"mounts": "/data:/data"}, "needs slurm.container"),
        ({"nodes": 2, "workers": 2}, "one process on each"),
        ({"gpus": 1, "workers": 2}, "a number of workers that divides it"),
        ({"python": "python -i"}, "without spaces"),
        ({"setup": "a\0b"}, "zero byte"),
        ({"flags": "--time=1:00:00"}, "--time is set by the launcher; use slurm.time"),
        ({"flags": "--exclusive --arr=0-3"}, "--array is set by the launcher; use slurm.at_once"),
        ({"flags": "--wrap=x"}, "--wrap is set by the launcher; it cannot be changed"),
        ({"flags": "-p main"}, "'-p' is not understood"),
        ({"flags": "--constraint a100"}, "'a100' is not understood"),
        ({"flags": "--comment='x"}, "No closing quotation"),
    ],
)
def test_what_could_not_run_is_refused_by_name(keys, message):
    with pytest.raises(ValueError, match=re.compile(message, re.DOTALL)):
        launcher.Slurm.check({"slurm": {**defaults.of(launcher.Slurm), **keys}})


def test_devices_and_platform():
    for keys, platform, devices in (
        ({}, "cpu", 1),
        ({"nodes": 2}, "cpu", 2),
        ({"gpus": 8}, "gpu", 8),
        ({"gpus": 8, "workers": 4}, "gpu", 2),
        ({"gpus": 8, "nodes": 2}, "gpu", 16),
    ):
        settings = {"slurm": {**defaults.of(launcher.Slurm), **keys}}
        assert launcher.Slurm.hardware(settings).kind == platform
        assert launcher.Slurm.hardware(settings).of_a_trial() == devices


def test_hosts_that_cannot_submit_say_so(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ValueError, match="no sbatch on this host; run on a login node"):
        launcher.Slurm({"slurm": defaults.of(launcher.Slurm)}, tmp_path)
