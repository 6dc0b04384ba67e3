"""Study files and records that are damaged, edited or lost: named, or survived."""

import re

import pytest

from sweeps.__main__ import main
from sweeps.records import layout, lease, status
from sweeps.study import study_directory
from tests.sweeps.conftest import (
    change_lease,
)
from tests.sweeps.defaults import STUDY_FILE


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("x = 1\ndef get_config(:\n", "mine.py, line 2: SyntaxError"),
        ("\nimport no_such_module\n", "line 2: ModuleNotFoundError: No module named"),
        ("x = 1\0\n", "mine.py.*null bytes"),
        (b"# \xff\xe9\nx = '\xe9'\n", "mine.py.*SyntaxError"),
        ("\n\nraise RuntimeError('boom')\n", "line 3: RuntimeError: boom"),
        ("import sys\nsys.exit(3)\n", "line 2: SystemExit: 3"),
        ("def get_config():\n    return get_config()\n", "RecursionError"),
        ("def get_config(size):\n    return size\n", "TypeError.*positional argument"),
        ("", "a study defines get_config"),
        ("def get_config():\n    return None\n", "a study defines get_config"),
        (STUDY_FILE + "    config.seeds = 'three'\n    return config\n", "line 4: TypeError"),
        (STUDY_FILE + "    config.variants = ('a', 3)\n    return config\n", "variants is .'a', 3"),
        (STUDY_FILE + "    del config.seeds\n    return config\n", "lacks or adds seeds|line 4"),
        (STUDY_FILE + "    config.nmae = 'mine'\n    return config\n", "line 4: .*nmae"),
    ],
)  # fmt: skip
def test_a_study_file_that_fails_is_named_with_its_line(tmp_path, capsys, content, message):
    path = tmp_path / "mine.py"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert main(["plan", f"--config={path}"]) == 2
    error = capsys.readouterr().err
    assert re.search(message, error)
    assert "Traceback" not in error


@pytest.mark.parametrize(
    ("command", "content"),
    [
        ("status", "[]"),
        ("resume", '{"name": '),
        ("export --format=algoperf", '{"name": "x", "config": {}, "points": [], "stages": [3]}'),
    ],
)
def test_a_damaged_study_record_is_named(tmp_path, capsys, command, content):
    (tmp_path / layout.STUDY).write_text(content)
    assert main([*command.split(), str(tmp_path)]) == 2
    assert str(tmp_path / layout.STUDY) in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "changes", "named"),
    [
        ("status", {"config": {"seeds": "x"}}, "its config"),
        *(("status", {"config": {"queue_warn_hours": x}}, "queue_warn_hours") for x in ("x", -1)),
        ("resume", {"config": {"seeds": "x"}}, "seeds is 'x'"),
        ("resume", {"config": {"workload": "nowhere"}}, "'nowhere'"),
        ("resume", {"config": {"variants": 3}}, "variants is 3"),
        ("resume", {"config": {"variants": ["standard", "standard"]}}, "each variant once"),
        ("resume", {"config": {"variants": []}}, "each variant once"),
        ("resume", {"config": {"variants": ["standard", "lazer"]}}, "'lazer'"),
        ("resume", {"config": {"baseline": "diff"}}, "baseline 'diff'"),
        ("resume", {"config": {"points": 5}}, "config.points is 5"),
        ("resume", {"config": {"points": 1}}, "config.points is 1"),
        ("resume", {"config": {"first_seed": 999}}, "seed 1,0"),
        ("resume", {"config": {"checkpoint_every": 6}}, "eval_every"),
        ("resume", {"config": {"profile": "9:3"}}, "profile"),
        *(("resume", {key: [1]}, key) for key in ("runs", "starts", "stages")),
        *(("resume", {"runs": value}, "runs") for value in ([None], 5, "x", {"a": 1}, [[]])),
    ],
    ids=str,
)
def test_a_study_record_that_was_edited_is_named(make_study, capsys, command, changes, named):
    """`resume` checks all that `run` checks."""
    made = make_study()
    study_directory.prepare(made)
    path = made.directory / layout.STUDY
    record = layout.read_json(path)
    changes = {**changes, "config": {**record["config"], **changes.get("config", {})}}
    layout.write_json(path, {**record, **changes})
    assert main([command, str(made.directory)]) == 2
    printed = capsys.readouterr().err
    assert str(path) in printed
    assert named in printed


@pytest.mark.parametrize(
    ("name", "content", "outcome", "lives"),
    [
        (lease.LEASE, None, None, False),
        *((lease.LEASE, content, None, False) for content in ("", "{}", "[]", '{"pid": 1}')),
        (lease.LEASE, "", "preempted", False),
        (lease.HEARTBEAT, None, None, False),
        (lease.HEARTBEAT, "", None, True),
        (lease.HEARTBEAT, "", "preempted", False),
        (lease.OUTCOME, None, "preempted", True),
        (lease.OUTCOME, "", None, False),
    ],
)
def test_a_trial_that_lost_a_small_file_can_be_claimed(make_trial, name, content, outcome, lives):
    """Removed, or cut short; of another host's attempt, which nobody can ask."""
    directory = make_trial()
    attempt = lease.claim(directory)
    status.write(directory, "running")
    change_lease(attempt, boot_id="another")
    if outcome:
        attempt.end(outcome)
    path = attempt.directory / name
    path.write_text(content or "")
    if content is None:
        path.unlink()
    assert lease.is_alive(attempt.directory) == lives
    assert status.read(directory)["state"] == ("running" if lives else "pending")
    assert (lease.claim(directory) is None) == lives
