"""Trials of AlgoPerf's workloads, killed and resumed: the same bit for bit.

Real jobs; real pipelines on fabricated data, small models (skipped without AlgoPerf),
or the stand-in's.
"""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

from sweeps.records import layout, measurements, submissions
from sweeps.study import config, study, study_directory
from tests.sweeps.chaos import equality
from workloads.algoperf import installation, tiny_data

HERE = pathlib.Path(__file__).parent
STEPS = 6


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    """Returns a function that starts a job of a trial; all are killed at the end."""
    started = []
    cache = os.environ.get("JAX_COMPILATION_CACHE_DIR") or tmp_path_factory.mktemp("xla")

    def run(found, directory):
        root = layout.study_of(directory)
        path = str(directory.relative_to(root))
        batch = submissions.new(root, "local", [(path,)], {})
        arguments = batch.command(0)[3:]
        with (directory / "said.txt").open("a") as said:
            job = subprocess.Popen(
                [sys.executable, HERE / "small_worker.py", found.directory, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                env={**os.environ, "JAX_COMPILATION_CACHE_DIR": str(cache)},
            )
        started.append(job)
        return job

    yield run
    for job in started:
        job.kill()
        job.wait()


def _trial(tmp_path, name, algoperf, workload, variant, data):
    """Writes a study of one trial; returns the trial's directory."""
    settings = {
        "experiment_dir": tmp_path, "name": name, "workload": f"algoperf:{workload}",
        "algoperf_dir": algoperf.directory, "data_dir": data, "protocol": "grid", "points": 1,
        "seeds": 1, "variants": variant, "baseline": variant, "steps": STEPS, "eval_every": 2,
        "batch_size": 4, "log_every": 1, "diagnostics": 3, "diagnostics_examples": 2,
    }  # fmt: skip
    if "librispeech" in workload:
        settings["tokenizer_vocab_path"] = data / "spm_model.vocab"
    overrides = [f"--config.{key}={value}" for key, value in settings.items()]
    made = study.resolve(config.parse("digits_vit_quick", overrides))
    study_directory.prepare(made)
    (trial,) = made.trials("grid")
    study_directory.materialise(made, "grid", [trial])
    return made.directory / trial.path


def _kill_at(job, directory, step):
    """Kills a job as soon as the checkpoint of a step is whole."""
    checkpoint = directory / layout.CHECKPOINTS / str(step)
    deadline = time.monotonic() + 900
    while not checkpoint.is_dir():
        assert job.poll() is None, (directory / "said.txt").read_text()
        assert time.monotonic() < deadline
        time.sleep(0.002)
    os.kill(job.pid, signal.SIGKILL)
    job.wait()


def _diagnostics(directory):
    text = (directory / layout.DIAGNOSTICS).read_text()
    rows = [json.loads(line) for line in text.splitlines()]
    return [{k: v for k, v in row.items() if k != "preemption_count"} for row in rows]


@pytest.mark.parametrize(
    ("workload", "variant"),
    [
        ("imagenet_vit", "standard"),
        ("imagenet_vit", "laser+qk_norm"),
        ("librispeech_conformer", "laser"),
        ("wmt", "laser"),
    ],
)
def test_a_killed_trial_is_resumed_to_the_same_bits(algoperf, start, tmp_path, workload, variant):
    data = tiny_data.prepare(tmp_path / "data", workload)
    _compare(algoperf, start, tmp_path, workload, variant, data)


@pytest.mark.slow
def test_so_is_the_stand_ins(start, tmp_path):
    """The same processes, orders and records, where no AlgoPerf is."""
    found = installation.find(HERE / "stand_in")
    _compare(found, start, tmp_path, "imagenet_vit", "laser+qk_norm", tmp_path)


def _compare(algoperf, start, tmp_path, workload, variant, data):
    whole, killed = (
        _trial(tmp_path, name, algoperf, workload, variant, data) for name in ("whole", "killed")
    )
    undisturbed = start(algoperf, whole)
    assert undisturbed.wait(900) == 0, (whole / "said.txt").read_text()
    ended = layout.read_json(whole / layout.STATUS)
    assert ended["state"] == "done", ended["reason"]
    _kill_at(start(algoperf, killed), killed, 2)
    again = start(algoperf, killed)
    assert again.wait(900) == 0, (killed / "said.txt").read_text()
    begun = layout.read_json(killed / layout.ATTEMPTS / "2" / measurements.RESUMED)
    assert 2 <= begun["global_step"] < STEPS
    assert equality.trial_problems(killed, whole) == []
    assert _diagnostics(killed) == _diagnostics(whole)
    losses = [row["loss"] for row in equality.rows(whole, layout.MEASUREMENTS) if row["loss"]]
    assert len(set(losses)) == STEPS
