"""`python -m workloads`: what it says of paths, before any work."""

import pytest

from workloads import __main__ as command


def _refusal(capsys, line):
    try:
        code = command.main(line.split())
    except SystemExit as end:  # argparse's
        code = end.code
    assert code == 2
    return capsys.readouterr().err


@pytest.mark.parametrize(
    "line",
    [
        "prepare c4_lm --data_dir=/proc/x",
        "prepare c4_lm --data_dir=/dev/null/x",
        "prepare imagenet_vit --data_dir=/proc/x --from=/",
        "prepare librispeech_conformer --data_dir=/proc/x --from=/",
        "prepare wikipedia_bert --data_dir=/proc/x --from=/",
        "prepare downstream --data_dir=/proc/x --from=/",
    ],
)
def test_a_place_that_cannot_be_written_is_refused_before_any_work(capsys, line):
    message = _refusal(capsys, line)
    assert "give a" in message
    assert "/proc" in message or "/dev/null" in message


@pytest.mark.parametrize("typed", ["gs://bucket/x", "$NOWHERE/x", "~nobody-of-that-name/x"])
@pytest.mark.parametrize(
    "line",
    [
        "prepare c4_lm --data_dir={}",
        "check digits_vit --data_dir={}",
        "bench digits_vit --data_dir={}",
        "prepare c4_lm --from={}",
        "algoperf --attention=laser --algoperf_dir={}",
    ],
)
def test_a_path_that_nobody_means_is_refused(capsys, line, typed):
    assert typed in _refusal(capsys, line.format(typed))


def test_tilde_is_the_users_home(capsys, tmp_path, monkeypatch):
    """No shell expands it after `--data_dir=`."""
    monkeypatch.setenv("HOME", str(tmp_path))
    assert f"{tmp_path}/digits" in _refusal(capsys, "check digits_vit --data_dir=~/digits")
