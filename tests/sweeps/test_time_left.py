"""The time left of a study, by the measured times per step."""

from collections import Counter

import pytest

from sweeps.monitoring.survey import StageRow, Survey, TrialStatus
from sweeps.records import status


def _trial(number, state, step=0, variant="standard", **fields):
    record = {**status.NEW, "global_step": step, **fields}
    return TrialStatus(f"grid/{variant}/w/trial_{number}", "grid", variant, state, 100, record)


@pytest.mark.parametrize(
    ("at_once", "seconds"),
    # Work of 490 · 2 s, on five trials at most; the running one has 90 steps left.
    [(0, None), (1, 980), (3, 980 / 3), (64, 980 / 5)],
)
def test_the_time_left_by_hand(at_once, seconds):
    look = Survey(None, "by hand", ["grid"])
    for number in range(4):
        look.put(_trial(number, "pending"))
    look.put(_trial(0, "pending", variant="laser"))  # not measured: the median of all
    look.put(_trial(4, "done", 100, step_seconds=1.0))
    look.put(_trial(5, "diverged", 50, step_seconds=3.0))
    look.put(_trial(0, "running", 10))
    look.at_once = at_once
    look.stages.append("next")  # not begun: two trials, side by side where both can run
    look.rows["next", "standard"] = StageRow("next", "standard", Counter(pending=2), 200)
    after = 400 / min(max(at_once, 1), 2)
    left = {"grid": pytest.approx(seconds), "next": pytest.approx(after)}
    assert look.time_left() == ({} if seconds is None else left)


def test_a_stage_takes_no_less_than_its_longest_trial():
    look = Survey(None, "by hand", ["grid"])
    for number, step in enumerate((98, 90, 0)):
        look.put(_trial(number, "running", step, step_seconds=2.0))
    assert look.time_left() == {"grid": 200.0}
    # What ran side by side when the last one began holds at the end of a stage, too.
    for number in (0, 1):
        look.put(_trial(number, "done", 100))
    assert look.at_once == 3
    # A trial that stands still is measured once, one that moves again.
    for step in (0, 0, 10):
        look.put(_trial(2, "running", step, step_seconds=4.0))
    assert [*look.rows["grid", "standard"].step_seconds] == [2.0, 2.0, 2.0, 4.0]
