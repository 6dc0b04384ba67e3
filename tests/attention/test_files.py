"""Outputs are checked before anything that takes long, by trying: root may write everywhere."""

import pathlib

import pytest

from attention import files


@pytest.mark.parametrize("name", ["/proc/x", "no/such/x", "x" * 300, "."])
def test_an_output_that_cannot_be_written_is_refused_by_its_option(tmp_path, name):
    path = pathlib.Path(name) if name.startswith("/") else tmp_path / name
    with pytest.raises(ValueError, match="--plot="):
        files.check_output(path, "--plot")


def test_a_check_leaves_nothing_behind_and_keeps_an_existing_file(tmp_path):
    path = tmp_path / "report.html"
    path.write_text("before")
    files.check_output(path)
    files.check_output(tmp_path / "new.html")
    assert [each.name for each in tmp_path.iterdir()] == ["report.html"]
    assert path.read_text() == "before"
