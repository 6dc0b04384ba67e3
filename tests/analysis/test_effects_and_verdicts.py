"""Differences from the baseline: as a figure and in sentences, with values worked out by hand."""

import dataclasses
import re

import numpy as np
import pytest

from analysis.compare import build
from analysis.load.studies import read_study
from analysis.render import style
from analysis.views import effects, verdicts


@pytest.fixture
def table(hand_made):
    """Four seeds: LASER is 0.05 better, sd 0.001; +temp is not told apart; QK is worse."""
    made = hand_made(variants=("standard", "laser", "laser+temp", "laser+qk_norm"))
    base = {0: 0.30, 1: 0.32, 2: 0.28, 3: 0.31}
    shifts = {
        "standard": (0, 0, 0, 0),
        "laser": (-0.051, -0.049, -0.050, -0.050),
        "laser+temp": (-0.02, 0.03, -0.01, 0.02),
        "laser+qk_norm": (0.10, 0.11, 0.12, 0.11),
    }
    for variant, shift in shifts.items():
        for seed, error in base.items():
            made.trial("compare", variant, 0, seed, [made.evaluation(400, error + shift[seed])])
    made.select(dict.fromkeys(shifts, 0))
    return build.error_table(read_study(made.finish()))


def test_verdicts_of_every_variant(table) -> None:
    found = {verdict.label: verdict for verdict in verdicts.of_table(table)}
    assert {label: each.word for label, each in found.items()} == {
        "Standard": "baseline",
        "LASER": "better",
        "LASER + temp": "cannot tell",
        "LASER + QK-normalization": "worse",
    }
    # Test errors are 0.01 above validation: the baseline has median 0.315 and mean 0.3125; LASER
    # has 0.259, 0.281, 0.24, 0.27.
    assert (
        found["Standard"].sentence == "test error 0.3125 on average over 4 seeds (median 0.3150)."
    )
    laser = found["LASER"].sentence
    assert laser.startswith("test error 0.2625 on average over 4 seeds (median 0.2645); mean diff")
    assert "(-16.0%)" in laser
    assert "after Holm" in laser
    # Marks, so that colour alone says nothing.
    assert len({each.mark for each in found.values()}) == 4


def test_headline_names_who_differs(table) -> None:
    """With the difference and p of each, as its own sentence has them."""
    said = verdicts.headline(table)
    numbers = r"\([+-]0\.\d{4}, p (= \d\.\d{3}|<0\.001)\)"
    assert re.fullmatch(
        rf"Test error: LASER {numbers} better than Standard; LASER \+ QK-normalization {numbers} "
        rf"worse than Standard; cannot tell LASER \+ temp {numbers} from Standard\.",
        said,
    )
    assert "LASER (-0.0500, p " in said


def test_one_seed_has_no_verdict(hand_made) -> None:
    made = hand_made()
    for variant, error in (("standard", 0.3), ("laser", 0.2)):
        made.trial("compare", variant, 0, 0, [made.evaluation(400, error)])
    made.select({"standard": 0, "laser": 0})
    table = build.error_table(read_study(made.finish()))
    (_, laser) = verdicts.of_table(table)
    assert laser.word == "cannot tell"
    assert "mean difference -0.1000" in laser.sentence
    assert laser.sentence.endswith("too few seeds for a test.")


def test_without_baseline_no_verdict_and_no_figure(table) -> None:
    other = dataclasses.replace(
        table,
        baseline="diff",
        rows=tuple(
            dataclasses.replace(
                row,
                splits={
                    name: dataclasses.replace(split, comparison=None)
                    for name, split in row.splits.items()
                },
            )
            for row in table.rows
        ),
    )
    assert verdicts.headline(other).startswith("No verdict: no variant called Diff")
    assert effects.draw(other) is None


@pytest.mark.parametrize("narrow", [False, True])
def test_figure_holds_differences_and_intervals(table, narrow: bool) -> None:
    if narrow:
        with style.narrowed():
            figure = effects.draw(table)
        assert figure.get_figwidth() == style.NARROW_INCHES
    else:
        figure = effects.draw(table)
    (axes,) = figure.axes
    labels = [text.get_text().replace("\n", " ") for text in axes.get_yticklabels()]
    assert labels == ["LASER", "LASER + temp", "LASER + QK-normalization"]
    dots = [line for line in axes.lines if line.get_marker() == "^" and len(line.get_xdata()) == 1]
    assert np.allclose([line.get_xdata()[0] for line in dots], [-0.05, 0.005, 0.11])
    bars = [line for line in axes.lines if len(line.get_xdata()) == 2 and line.get_linewidth() > 2]
    comparison = table.rows[1].splits["test"].comparison
    assert tuple(bars[0].get_xdata()) == (comparison.low, comparison.high)
    low, high = axes.get_xlim()
    assert low < 0 < high
    assert "better to the left" in axes.get_xlabel().replace("\n", " ")
    assert [text.get_text() for text in axes.texts] == ["better", "", "worse"]


def test_a_card_says_which_seeds_were_lost(hand_made) -> None:
    """Three of five seeds of LASER are far better; two diverged and have no number."""
    made = hand_made()
    for seed in range(5):
        made.trial("compare", "standard", 0, seed, [made.evaluation(400, 0.3 + seed / 1000)])
        good = seed < 3
        rows = [made.evaluation(400, 0.2 + 3 * seed / 1000)] if good else None
        made.trial("compare", "laser", 0, seed, rows, state="done" if good else "diverged")
    made.select({"standard": 0, "laser": 0})
    table = build.error_table(read_study(made.finish()))
    (_, laser) = verdicts.of_table(table)
    assert laser.word == "cannot tell"
    assert "on average over 3 of 5 (2 diverged) seeds (median 0.2130)" in laser.sentence
    assert laser.sentence.endswith("no verdict, since seeds were lost that may have been worse.")
    assert verdicts.headline(table).startswith("Test error: cannot tell LASER (")
