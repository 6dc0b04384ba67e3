"""How a command begins: one checkout, and text that every terminal can show."""

import importlib.machinery
import os
import pathlib
import re
import subprocess
import sys

import pytest

from attention.common import checkout

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
LISTS = {"sweeps": "keys", "analysis": "--help"}  # a command of each that prints at once


def _run(command, folder, *flags, **variables):
    return subprocess.run(
        [sys.executable, *flags, "-m", command, LISTS.get(command, "list")],
        cwd=folder,
        capture_output=True,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), **variables},
    )


@pytest.mark.parametrize(
    ("command", "foreign"),
    [
        ("workloads", "attention.py"),
        ("attention", "analysis/__init__.py"),
        ("analysis", "attention.py, which ends"),
    ],
)
def test_another_package_of_our_name_is_refused_with_both_paths(tmp_path, command, foreign):
    """What lies where the user stands comes first on the path of `python -m`."""
    file, _, ends = foreign.partition(", ")
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text("raise SystemExit(0)" if ends else "")
    done = _run(command, tmp_path)
    assert done.returncode == 2
    told = done.stderr.decode()
    assert "Traceback" not in told
    assert str(tmp_path / file) in told
    assert str(REPOSITORY) in told
    assert "PYTHONSAFEPATH=1" in told


@pytest.mark.parametrize("place", ["mine/attention.py", "mine/attention"])
def test_a_folder_of_the_checkout_and_one_without_init_are_no_exceptions(monkeypatch, place):
    path = str(REPOSITORY / place)
    spec = importlib.machinery.ModuleSpec("attention", None)
    spec.origin = path if place.endswith(".py") else None
    spec.submodule_search_locations = None if spec.origin else [path]
    monkeypatch.setattr(checkout.importlib.util, "find_spec", lambda package: spec)
    with pytest.raises(ValueError, match=re.escape(path)):
        checkout.check()


def test_the_remedy_of_a_refusal_works(tmp_path):
    (tmp_path / "attention.py").write_text("raise SystemExit(0)")
    done = _run("sweeps", tmp_path, PYTHONSAFEPATH="1")
    assert done.returncode == 0
    assert done.stdout


@pytest.mark.parametrize(
    ("command", "encoding"),
    [("attention", "ascii"), ("sweeps", "latin-1"), ("analysis", "euc_jp:strict")],
)
def test_a_terminal_that_is_not_utf8_gets_every_line(tmp_path, command, encoding):
    """From any folder."""
    done = _run(command, tmp_path, PYTHONIOENCODING=encoding)
    assert done.returncode == 0, done.stderr
    printed = done.stdout.decode(encoding.partition(":")[0])
    plain = _run(command, tmp_path, PYTHONIOENCODING="utf-8").stdout.decode()
    assert len(printed.splitlines()) == len(plain.splitlines())
    assert not done.stderr


@pytest.mark.parametrize("letter", "−–±≥≤×▲▼○")
def test_a_letter_that_carries_meaning_has_a_stand_in_of_its_own(letter):
    error = UnicodeEncodeError("ascii", f"a{letter}☃", 1, 3, "")
    stand_in, end = checkout._replaced(error)
    assert (stand_in[-1], end) == ("?", 3)
    assert stand_in[:-1].isascii()
    assert stand_in[:-1] != "?"
