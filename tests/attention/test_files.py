"""Outputs are checked before anything that takes long, by trying: root may write everywhere."""

import ast
import pathlib
import re
import subprocess

import pytest

from attention.common import files
from tests import floor_plan


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
