"""The driver starts fast and loads no large library."""

import errno
import json
import subprocess
import sys

import pytest

from sweeps.study import jax_calls

LIBRARIES = (
    "jax",
    "jaxlib",
    "tensorflow",
    "flax",
    "optax",
    "orbax",
    "grain",
    "sklearn",
    "tensorflow_datasets",
    "cv2",
    "scipy",
    "torch",
    "algoperf",
)
# Runs commands in one process as `python -m sweeps` does; what they have loaded is then looked at.
COMMANDS = """
import json, os, sys, time
from sweeps.__main__ import main
for arguments in json.loads(sys.argv[1]):
    code = main(arguments)
    # 3: `status` of a study that is not complete.
    assert code in ((0, 3) if arguments[0] == "status" else (0,)), (code, arguments)
loaded = {name.split(".")[0] for name in sys.modules} & set(json.loads(sys.argv[2]))
assert not loaded, loaded
print("CPU seconds:", sum(os.times()[:2]))
"""


def _run(environment, *commands, **extra):
    done = subprocess.run(
        [sys.executable, "-c", COMMANDS, json.dumps(commands), json.dumps(LIBRARIES)],
        capture_output=True,
        text=True,
        env=environment(**extra),
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_a_whole_run_loads_no_large_library_into_the_driver(
    tmp_path, data_dir, cache_dir, environment
):
    settings = {
        "experiment_dir": tmp_path,
        "data_dir": data_dir,
        "batch_size": 16,
        "steps": 2,
        "protocol": "grid",
        "seeds": 1,
        "variants": "standard",
        "local.workers": 1,
    }
    overrides = [f"--config.{key}={value}" for key, value in settings.items()]
    output = _run(
        environment,
        ["run", "--config=digits_vit_quick", *overrides],
        ["status", str(tmp_path / "digits_vit_quick")],
        ["plan", "--config=c4_lm_234m_paper"],
        JAX_COMPILATION_CACHE_DIR=str(cache_dir),
    )
    assert "1 done" in output
    assert "no step time known" in output


def test_status_and_plan_take_less_than_a_second(tmp_path, make_trial, environment):
    """Of this process's own CPU time, which other processes on the machine hardly change."""
    directory = make_trial().parents[3]
    for command in (
        ["status", str(directory)],
        ["plan", "--config=digits_vit_quick"],
        ["plan", "--config=algoperf_imagenet_vit_paper"],
    ):
        assert float(_run(environment, command).split("CPU seconds:")[1]) < 1.0


def test_an_answer():
    assert "parameters" in jax_calls.call(jax_calls.model, workload="digits_vit")


def _fails():
    raise NotADirectoryError(errno.ENOTDIR, "Not a directory", "/file/data")


def test_an_error_of_the_disk_comes_back_as_one():
    with pytest.raises(OSError, match="/file/data"):
        jax_calls.call(_fails)


def test_a_crash_shows_its_last_lines(tmp_path, monkeypatch):
    (tmp_path / "jax.py").write_text("raise RuntimeError('this JAX is broken')\n")
    monkeypatch.syspath_prepend(tmp_path)
    lines = r"(?s)'model' ended with code 1 .*this JAX is broken"
    with pytest.raises(ChildProcessError, match=lines):
        jax_calls.call(jax_calls.model, workload="digits_vit")
