"""`sweeps evaluate` with real workers and lm-eval: killed at any point."""

import os
import shutil
import signal
import subprocess
import sys

import pytest

from sweeps.records import layout, lease, measurements
from workloads.downstream import embedded
from workloads.text.corpora import pydoc_text

pytest.importorskip("lm_eval", reason="needs .[downstream]")
# One worker: the study that they start from takes a minute.
pytestmark = [pytest.mark.xdist_group("evaluate_processes"), pytest.mark.slow]

TRIAL = "grid/standard/pydoc_lm_jax/trial_1"


def _prepare(folder):
    pydoc_text.prepare(folder)
    embedded.prepare(folder)


@pytest.fixture(scope="module")
def sweeps(environment, cache_dir, tmp_path_factory):
    """Returns a function that starts `sweeps` with arguments."""
    variables = environment(JAX_COMPILATION_CACHE_DIR=str(cache_dir))

    def start(*arguments):
        command = [sys.executable, "-m", "sweeps", *map(str, arguments)]
        where = tmp_path_factory.getbasetemp()
        return subprocess.Popen(
            command, env=variables, cwd=where, stdout=subprocess.PIPE, text=True
        )

    return start


def _finish(process):
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    return output


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory, made_once, sweeps):
    """A study of one trial, evaluated as it was trained, and again from the checkpoint before."""
    data_dir = made_once("pydoc_questions", _prepare)
    settings = {
        **{"experiment_dir": tmp_path_factory.mktemp("experiments"), "data_dir": data_dir},
        **{"variants": "standard", "seeds": 1, "steps": 20, "eval_every": 10, "name": "twin"},
        **{"keep_checkpoints": 2, "downstream": "pydoc", "local.workers": 2},
    }
    overrides = [f"--config.{key}={value}" for key, value in settings.items()]
    _finish(sweeps("run", "--config=pydoc_lm_quick", *overrides))
    directory = settings["experiment_dir"] / "twin"
    assert (directory / TRIAL / "downstream/20/pydoc" / layout.RESULTS).exists()
    output = _finish(sweeps("evaluate", directory, "--suite=pydoc", "--checkpoints=2"))
    assert "2 of 2 checkpoints evaluated" in output
    assert f"{TRIAL} step 20: mean 0." in output
    return directory


def test_a_killed_evaluation_repeats_no_finished_task(evaluated, tmp_path, sweeps, wait_until):
    """And says bit for bit what one in peace says."""
    study = shutil.copytree(evaluated, tmp_path / "twin")
    folder = study / TRIAL / "downstream/20/pydoc"
    samples = (folder / layout.SAMPLES).read_bytes()
    shutil.rmtree(folder)
    driver = sweeps("evaluate", study, "--suite=pydoc")
    wait_until(lambda: list((folder / layout.DOWNSTREAM_TASKS).glob("*.jsonl.gz")))
    driver.kill()
    worker = layout.read_json(folder / layout.ATTEMPTS / "1" / lease.LEASE)["pid"]
    os.kill(worker, signal.SIGKILL)
    driver.communicate()
    wait_until(lambda: lease.process_start(worker) is None)
    tasks = len(list((folder / layout.DOWNSTREAM_TASKS).glob("*.jsonl.gz")))
    _finish(sweeps("evaluate", study, "--suite=pydoc"))
    resumed = folder / layout.ATTEMPTS / "2" / measurements.RESUMED
    assert layout.read_json(resumed) == {"global_step": tasks}
    assert (folder / layout.SAMPLES).read_bytes() == samples
    assert {path.name for path in folder.iterdir()} == {
        *(layout.RESULTS, layout.SAMPLES, layout.ATTEMPTS)
    }
