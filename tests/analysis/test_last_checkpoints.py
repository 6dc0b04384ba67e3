"""The last evaluations of each trial: means and spreads worked out by hand."""

import math

import pytest

from analysis.compare import build
from analysis.compare.error_table import ErrorTable
from analysis.load.studies import read_study
from analysis.views.table import last_checkpoints


@pytest.fixture
def study(hand_made):
    """Returns two seeds whose last 3 validation errors are 0.1 0.2 0.3 and 0.5 0.3 0.7."""
    made = hand_made(("standard",))
    for seed, errors in enumerate(([0.9, 0.1, 0.2, 0.3], [0.05, 0.5, 0.3, 0.7])):
        rows = [made.evaluation(100 * (k + 1), error) for k, error in enumerate(errors)]
        made.trial("compare", "standard", 0, seed, rows)
    made.select({"standard": 0, "laser": 0})
    return made


def table_of(made, last: int = 3) -> ErrorTable:
    return build.error_table(read_study(made.finish()), last=last)


def of(table, split="validation", row=0):
    return last_checkpoints.of_split(table.rows[row].splits[split], table.last)


def test_by_hand(study) -> None:
    """Seeds' means 0.2 and 0.5, their own sds 0.1 and 0.2; test is 0.01 above."""
    found = of(table_of(study))
    assert (found.n, found.left_out) == (2, 0)
    assert found.mean == pytest.approx(0.35)
    assert found.over_checkpoints == pytest.approx(0.15)
    assert found.over_seeds == pytest.approx(0.3 / math.sqrt(2))
    assert of(table_of(study), "test").mean == pytest.approx(0.36)


def test_of_a_single_evaluation_or_seed_there_is_no_spread(study) -> None:
    found = of(table_of(study, last=1))
    assert found.mean == pytest.approx(0.5)
    assert math.isnan(found.over_checkpoints)
    study.planned["compare"].pop()
    assert math.isnan(of(table_of(study)).over_seeds)


def test_only_trials_that_are_done_count(study) -> None:
    rows = [study.evaluation(100 * k, 0.9) for k in range(1, 5)]
    study.trial("compare", "standard", 0, 2, rows, state="running")
    study.trial("compare", "standard", 0, 3, rows, state="diverged", reason="loss is nan")
    assert of(table_of(study)).n == 2


def test_trials_with_fewer_evaluations_are_left_out_and_said(study) -> None:
    rows = [study.evaluation(300, 0.9), study.evaluation(400, 0.8)]
    study.trial("compare", "standard", 0, 2, rows)
    nan = [study.evaluation(100 * k, 0.9 if k < 4 else math.nan) for k in range(1, 5)]
    study.trial("compare", "standard", 0, 3, nan)
    found = of(table_of(study))
    assert (found.n, found.left_out) == (2, 2)
    assert found.mean == pytest.approx(0.35)
    document = last_checkpoints.page(table_of(study))
    assert any("2 of Standard" in note for note in document.notes)
    assert [cell.text for cell in document.tables[0].sections[0][1]] == [
        "Standard", "validation", "2", "0.3500", "0.1500", "0.2121",
    ]  # fmt: skip


def test_where_no_trial_has_that_many_there_is_no_grid(study) -> None:
    document = last_checkpoints.page(table_of(study, last=5))
    assert document.tables == ()
    assert "2 of Standard" in document.notes[0]


def test_a_split_that_no_trial_evaluated_has_none(study) -> None:
    root = study.finish()
    for file in root.glob("compare/*/*/*/eval_measurements.csv"):
        file.write_text(file.read_text().replace("train/", "later/"))
    table = build.error_table(read_study(root), last=3)
    assert of(table, "train") is None
    assert of(table).n == 2
