"""How a command begins, and files that it writes."""

import ast
import importlib.machinery
import os
import pathlib
import re
import subprocess
import sys

import pytest

from attention.common import checkout, files
from tests import floor_plan

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
    stand_in, end = checkout._replaced(UnicodeEncodeError("ascii", f"a{letter}☃", 1, 3, ""))
    assert (stand_in[-1], end) == ("?", 3)
    assert stand_in[:-1].isascii()
    assert stand_in[:-1] != "?"


@pytest.mark.parametrize("name", ["/proc/x", "no/such/x", "x" * 300, "."])
def test_an_output_that_cannot_be_written_is_refused_by_its_option(tmp_path, name):
    path = pathlib.Path(name) if name.startswith("/") else tmp_path / name
    with pytest.raises(ValueError, match="--plot="):
        files.check_output(path, "--plot")


@pytest.mark.parametrize("name", ["/proc/x/y", "file", "file/x", "x" * 300])
def test_a_directory_that_cannot_be_made_is_refused_by_its_option(tmp_path, name):
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="--out="):
        files.check_output_directory(tmp_path / name, "--out")


def test_a_directory_that_can_be_made_is_not_made_by_the_check(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in (tmp_path / "a/b/c", tmp_path, pathlib.Path("a/b")):
        files.check_output_directory(name, "--out")
    assert not list(tmp_path.iterdir())


def test_a_check_leaves_nothing_behind_and_keeps_an_existing_file(tmp_path):
    path = tmp_path / "report.html"
    path.write_text("before")
    files.check_output(path)
    files.check_output(tmp_path / "new.html")
    assert [each.name for each in tmp_path.iterdir()] == ["report.html"]
    assert path.read_text() == "before"


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("~/x", "{home}/x"),
        ("~", "{home}"),
        ("./~/x", "~/x"),
        ("e 1/a'b", "e 1/a'b"),
        ("a$b/$there/x", "a$b/$there/x"),
        ("gs/x", "gs/x"),
        ("données/é", "données/é"),
        ("/x/", "/x"),
    ],
)
def test_a_path_is_taken_as_it_is_meant(typed, meant, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a$b" / "$there").mkdir(parents=True)  # literally so called: it is there
    assert files.typed_path(typed) == pathlib.Path(meant.format(home=tmp_path))


@pytest.mark.parametrize(
    ("typed", "word"),
    [
        ("", "empty"),
        ("  ", "blank"),
        ("/data ", "blank"),
        (" /data", "blank"),
        ("/data\n", "line break"),
        ("'/data'", "quotation"),
        ('"~/data"', "quotation"),
        ("~nobody-of-that-name/x", "home"),
        ("$SCRATCH/x", "variable"),
        ("${SCRATCH}/x", "variable"),
        ("/data/$USER", "variable"),
        ("/data/run_$USER/x", "variable"),
        ("gs://bucket/x", "address"),
        ("gs:/bucket/x", "address"),
        ("s3://bucket/x", "address"),
        ("hdfs://host:1/x", "address"),
        ("file:///data", "address"),
        ("host:/data", "address"),
    ],
)
def test_a_path_that_nobody_means_is_refused(typed, word, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=word):
        files.typed_path(typed)


@pytest.mark.parametrize("name", ["a", "e 1/a'b", "é", "$x;y", "-x/y", "~/x", 'a"b', "a\nb"])
def test_a_path_in_a_command_is_that_path_when_pasted(name, tmp_path):
    """By a shell, then by the command: no option, nobody's home."""
    pasted = f"printf %s {files.quoted(pathlib.Path(name))}"
    said = subprocess.run(["bash", "-c", pasted], cwd=tmp_path, capture_output=True, text=True)
    assert not said.stdout.startswith(("-", "~"))
    assert pathlib.Path(said.stdout) == pathlib.Path(name)


# What a path follows in a command that is printed.
_COMMAND = re.compile(
    r"python -m .*(resume|table|report|hardware|evaluate|--[a-z_.]*dir[a-z]*[= ]|--out[= ])[ ]?$",
    re.DOTALL,
)


@pytest.mark.parametrize("package", floor_plan.PACKAGES)
def test_paths_in_printed_commands_are_quoted(package):
    for path in floor_plan.files(package):
        for text in ast.walk(ast.parse(path.read_text("utf-8"))):
            before = ""
            for part in text.values if isinstance(text, ast.JoinedStr) else ():
                if isinstance(part, ast.Constant):
                    before += part.value
                    continue
                source = ast.unparse(part)
                if _COMMAND.search(before):
                    assert "quote" in source, f"{path}:{text.lineno}: {source}"
                before += "…"


def test_without_a_home_directory_only_tilde_is_refused(monkeypatch):
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr("pwd.getpwuid", lambda uid: {}[uid])
    assert files.typed_path("/data") == pathlib.Path("/data")
    with pytest.raises(files.PathError, match="home"):
        files.typed_path("~/data")
