"""The driver starts fast and loads no large library; which folder of sweeps/ imports which."""

import errno
import json
import pathlib
import subprocess
import sys

import pytest

from sweeps.monitoring import jax_calls
from tests import floor_plan

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
        output = _run(environment, command)
        assert float(output.split("CPU seconds:")[1]) < 1.0


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


ROOT = floor_plan.ROOT / "sweeps"
# A folder imports folders above it, of those only the ones named: the order rules out circles.
IMPORTS: dict[str, tuple[str, ...]] = {
    "records": (),
    "launchers": ("records",),
    "study": ("records", "launchers"),
    "studies": ("study",),
    "distributed": ("launchers",),
    "training": ("records", "study", "distributed"),
    "algoperf": ("records", "study", "training"),
    "monitoring": ("records", "launchers", "study", "training"),
    "scheduling": ("records", "launchers", "study", "monitoring"),
    "job": (*("records", "launchers", "study", "distributed", "training", "scheduling"),),
}
# What a driver never loads; of these folders every module is imported without it.
HEAVY = {"jax", "jaxlib", "flax", "optax", "orbax"}
WITHOUT_JAX = ("records", "launchers", "study", "scheduling", "distributed")
FILES = floor_plan.files("sweeps")


def _files(folder: str) -> list[pathlib.Path]:
    return [path for path in FILES if path.relative_to(ROOT).parts[0] == folder]


def test_the_list_names_every_folder_and_only_folders_above():
    assert {path.parent.name for path in ROOT.glob("*/__init__.py")} == set(IMPORTS)
    known: set[str] = set()
    for folder, imports in IMPORTS.items():
        assert set(imports) <= known, folder
        known.add(folder)


@pytest.mark.parametrize("folder", IMPORTS)
def test_a_folder_imports_what_the_list_names(folder):
    allowed = {*IMPORTS[folder], folder}
    for path in _files(folder):
        for name in floor_plan.imported(path):
            room, _, rest = name.partition(".")
            assert room != "analysis", path
            if room == "sweeps" and rest.split(".")[0] not in allowed:
                pytest.fail(f"{path.relative_to(ROOT)} imports {name}")


@pytest.mark.parametrize("folder", WITHOUT_JAX)
def test_what_a_driver_imports_is_without_jax(folder):
    for path in _files(folder):
        heavy = {name.split(".")[0] for name in floor_plan.imported(path, within=False)} & HEAVY
        assert not heavy, path


def test_the_one_selection_rule_needs_the_standard_library_alone():
    """`analysis` imports it, too."""
    allowed = {*sys.stdlib_module_names, "sweeps", "attention"}
    pending, seen = [ROOT / "study" / "selection.py"], set()
    while pending:
        path = pending.pop()
        seen.add(path)
        assert {name.split(".")[0] for name in floor_plan.imported(path)} <= allowed, path
        pending += floor_plan.needs(path) - seen
