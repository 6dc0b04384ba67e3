"""The guard against a mixture of checkouts, and commands that work from a user's folder."""

import os
import pathlib
import subprocess
import sys

import pytest

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("command", ["attention", "workloads", "sweeps"])
@pytest.mark.parametrize("foreign", ["analysis", "workloads"])
def test_a_foreign_room_is_refused_with_both_paths(tmp_path, command, foreign):
    """A folder called analysis/ where the user stands comes first on the path of `python -m`."""
    if command == foreign:
        pytest.skip("then the other's command runs, and ours has no say")
    (tmp_path / foreign).mkdir()
    (tmp_path / foreign / "__init__.py").write_text("")
    done = subprocess.run(
        [sys.executable, "-m", command, {"sweeps": "studies"}.get(command, "list")],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )
    assert done.returncode == 2
    assert str(tmp_path / foreign) in done.stderr
    assert str(REPOSITORY) in done.stderr


def test_commands_run_from_any_folder(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "attention", "list"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )
    assert done.returncode == 0
    assert "laser+per_dim_temp  <- a row of the paper's table" in done.stdout
