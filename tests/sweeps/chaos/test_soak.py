"""The soak, reduced: four trials, six signals, the same claims; and that it would notice."""

import shutil

import pytest

from sweeps.records import layout
from tests.sweeps.chaos import equality, soak


@pytest.mark.nightly
def test_soak(tmp_path, data_dir, capsys):
    """Killed, preempted and frozen: every trial done once, every number as undisturbed."""
    places = (f"--data_dir={data_dir}", f"--directory={tmp_path / 'soak'}")
    assert soak.main(["--kills=6", "--trials=4", "--seed=1", *places]) == 0
    assert "0 trials lost, 0 completed twice" in capsys.readouterr().out


def test_what_a_study_lost_is_noticed(tmp_path, stub_undisturbed):
    """The study is run by a real driver."""
    copy = tmp_path / "copy"
    shutil.copytree(stub_undisturbed, copy)
    assert equality.problems(copy, stub_undisturbed) == []
    trial = copy / "grid/standard/digits_vit_jax/trial_1001"
    path = trial / layout.EVAL_MEASUREMENTS
    *rows, last = path.read_text().splitlines(keepends=True)
    for changed, problem in (
        ([*rows], "2 rows, not 3"),
        ([*rows, last, last], "2 evaluations of step 12"),
        ([*rows, last.replace("0.5", "0.6")], "of step 12 is 0.6, not 0.5"),
    ):
        path.write_text("".join(changed))
        assert problem in equality.problems(copy, stub_undisturbed)[0]
    path.write_text("".join([*rows, last]))
    shutil.copytree(trial / layout.ATTEMPTS / "1", trial / layout.ATTEMPTS / "2")
    assert "completed by 2 attempts" in equality.problems(copy, stub_undisturbed)[0]
    shutil.rmtree(trial)
    assert "is pending, not done" in equality.problems(copy, stub_undisturbed)[0]
