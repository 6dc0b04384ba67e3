"""A study that a person cancels: its mark, and who obeys it."""

import errno
import time

import pytest

from sweeps import commands
from sweeps.__main__ import main
from sweeps.records import layout, status, submissions
from sweeps.scheduling import cancel, driver
from sweeps.scheduling.scheduler import Interrupted
from sweeps.study import study_directory
from tests.sweeps.conftest import (
    answer_data,
    begin_stage,
    finish_stage,
)


@pytest.mark.parametrize(
    ("name", "content", "code"),
    [
        *((layout.STUDY, content, 2) for content in ("", "[]", '{"name": ')),
        (f"tune/{layout.TRIALS}", "{}", 0),
    ],
)
def test_cancel_marks_a_study_whatever_is_damaged(make_study, capsys, name, content, code):
    """Who cancels wants to spend no more. A folder that is no study stays as it is."""
    made = make_study()
    begin_stage(made)
    (made.directory / name).write_text(content)
    assert main(["cancel", str(made.directory)]) == code
    assert (str(made.directory / name) in capsys.readouterr().err) == (code == 2)
    assert submissions.is_cancelled(made.directory)
    assert main(["cancel", str(made.directory.parent)]) == 2
    assert not submissions.is_cancelled(made.directory.parent)


@pytest.mark.parametrize(("state", "code"), [("done", 0), ("failed", 0), ("pending", 3)])
def test_status_says_that_an_unfinished_study_is_cancelled(make_study, capsys, state, code):
    made = make_study(protocol="grid", points=1, variants="standard")
    for trial in begin_stage(made, "grid"):
        status.write(made.directory / trial.path, state, global_step=trial.steps)
    cancel.cancel(made.directory)
    assert main(["status", str(made.directory)]) == code
    assert ("cancelled" in capsys.readouterr().out) == (code == 3)


@pytest.mark.parametrize(
    ("before", "changes"),
    [
        ("", {}),
        ("cancelled", {}),
        ("finished", {"seeds": 4}),
        ("finished", {"points": 2}),
        ("finished", {"variants": "standard,laser"}),
    ],
    ids=str,
)
def test_a_cancel_while_data_are_prepared_is_obeyed(make_study, monkeypatch, before, changes):
    settings = {"protocol": "grid", "points": 1, "variants": "standard"}
    made = make_study(**settings)
    if before == "cancelled":
        begin_stage(made, "grid")
        cancel.cancel(made.directory)  # of before: this run takes it away
        time.sleep(0.01)
    if before == "finished":
        finish_stage(made, "grid")
    monkeypatch.setattr(driver.measurements, "restore", lambda *_: None)
    answer_data(monkeypatch, "", lambda: cancel.cancel(made.directory))
    with pytest.raises(Interrupted):
        commands._drive(make_study(**settings | changes))
    assert submissions.is_cancelled(made.directory)
    assert not (made.directory / submissions.JOBS).exists()


def test_a_cancel_that_cannot_be_written_names_the_folder(make_study, monkeypatch, capsys):
    made = make_study()
    study_directory.prepare(made)

    def refuse(path, record):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(layout, "write_json", refuse)
    assert main(["cancel", str(made.directory)]) == 2
    assert "Permission denied. No job was told to stop" in capsys.readouterr().err


def test_the_next_run_takes_the_mark_away(make_study, monkeypatch):
    made = make_study(protocol="grid", points=1, variants="standard")
    finish_stage(made, "grid")
    layout.write_json(made.directory / submissions.CANCELLED, {"cancelled_at": 1.0})
    monkeypatch.setattr(driver.measurements, "restore", lambda *_: None)
    answer_data(monkeypatch, "")
    assert commands._drive(made) == 0
    assert not submissions.is_cancelled(made.directory)
