"""Which variant the others are compared with, and how: paired by seed or not."""

import csv
import io
import pathlib

import pytest

from analysis import cli
from analysis.compare import build
from analysis.load.studies import read_study
from analysis.render.text import render as to_text
from analysis.views.table import error_table as table_view
from analysis.views.table import tidy_csv

WER = "global_step,train/wer,validation/wer,test/wer,preemption_count\n"


@pytest.fixture
def logs(tmp_path: pathlib.Path):
    """Returns a function that writes AlgoPerf's logs: a submission to its seeds' test WERs."""

    def write(submissions: dict[str, list[float]]) -> pathlib.Path:
        for name, values in submissions.items():
            for seed, value in enumerate(values):
                directory = tmp_path / name / f"study_{seed}" / "speech_jax" / "trial_1"
                directory.mkdir(parents=True)
                row = f"100,{value},{value},{value},0\n"
                (directory / "eval_measurements.csv").write_text(WER + row)
        return tmp_path

    return write


def test_a_baseline_that_was_asked_for(study) -> None:
    """LASER is the baseline: Standard's differences are 0.1 0.2 0.3."""
    table = build.error_table(read_study(study.finish()), baseline="laser")
    standard, laser = (row.splits["test"].comparison for row in table.rows)
    assert laser is None
    assert standard.difference == pytest.approx(0.2)
    assert (standard.pairs, standard.test) == (3, "t")


@pytest.mark.parametrize("command", ["table", "plots"])
def test_a_baseline_that_is_not_there_is_refused_with_the_list(study, capsys, command) -> None:
    assert cli.main([command, str(study.finish()), "--baseline=diff"]) == 2
    said = capsys.readouterr().err
    assert "no variant 'diff' to compare with; there are laser, standard: give one" in said


def test_without_a_baseline_there_is_no_comparison_and_the_notes_say_so(logs) -> None:
    root = logs({"adam": [0.1, 0.2], "shampoo": [0.3, 0.4]})
    document = table_view.page(build.error_table(read_study(root)))
    assert not any(grid.caption.startswith("Against") for grid in document.tables)
    assert any(
        "no variant here is called 'standard'; --baseline=NAME takes one of adam, shampoo" in note
        for note in document.notes
    )


def test_published_seeds_are_not_paired(logs) -> None:
    """Apart, 5 against 5 reach 2 / 252 = 0.0079: a verdict for one variant, not for ten."""
    low, high = [0.1, 0.11, 0.12, 0.13, 0.15], [0.3, 0.31, 0.32, 0.33, 0.35]
    root = logs({"adam": high, "shampoo": low})
    table = build.error_table(read_study(root), baseline="adam")
    comparison = table.rows[1].splits["test"].comparison
    assert (comparison.test, comparison.verdict) == ("permutation", "better")
    text = to_text(table_view.page(table))
    assert "Against adam, seeds not paired" in text
    assert "Smallest p: 2 / 252 = 0.0079 for 5 v 5." in text
    assert "no comparison can reach" not in text
    assert "| shampoo | 5 v 5 | 0.0192 |" in " ".join(text.split())


def test_too_few_seeds_for_any_verdict_are_said(logs) -> None:
    """7 * 2 / 252 = 0.056; 7 * 2 / 924 is below 0.05."""
    low, high = [0.1, 0.11, 0.12, 0.13, 0.15], [0.3, 0.31, 0.32, 0.33, 0.35]
    root = logs({"adam": high} | {f"other{k}": low for k in range(7)})
    table = build.error_table(read_study(root), baseline="adam")
    assert {row.splits["test"].comparison.verdict for row in table.rows[1:]} == {"cannot tell"}
    document = table_view.page(table)
    assert any(
        "first step over 7 makes the smallest p 0.056: no comparison can reach 0.05 there, "
        "whatever the numbers are; 6 seeds of each can" in note
        for note in document.notes
    )
    grid = next(each for each in document.tables if each.caption.startswith("What these"))
    assert grid.sections[0][0][3].text == "none"


def test_the_last_evaluations_and_the_effect_are_in_the_csv(study) -> None:
    table = build.error_table(read_study(study.finish()), last=1)
    lines = list(csv.DictReader(io.StringIO(tidy_csv.to_csv(table, effect=0.05))))
    standard = next(
        line for line in lines if (line["variant"], line["split"]) == ("standard", "test")
    )
    laser = next(line for line in lines if (line["variant"], line["split"]) == ("laser", "test"))
    assert standard["detectable"] == ""
    assert laser["interval_method"] == "t"
    assert (laser["bca_method"], laser["bca_low"]) == ("none", "")  # of 3 seeds
    assert float(laser["difference_sd"]) == pytest.approx(0.1)
    assert float(laser["effect_size"]) == pytest.approx(-1.128379, abs=1e-6)
    assert (laser["expected_effect"], laser["seeds_needed"]) == ("0.05", "34")
    assert float(laser["last_mean"]) == pytest.approx(0.31)
    assert (laser["last_n"], laser["last_sd_checkpoints"]) == ("3", "")


def test_options_of_the_command(study, capsys) -> None:
    root = str(study.finish())
    assert cli.main(["table", root, "--effect=0.05", "--last=1", "--baseline=laser"]) == 0
    said = capsys.readouterr().out
    assert "Against LASER, paired by seed" in said
    assert "Effect asked for: 0.05, as given." in said
    assert "Error over the last 1 evaluations" in said
    for wrong in ("--effect=0", "--effect=nan", "--last=0"):
        with pytest.raises(SystemExit, match="2"):
            cli.main(["table", root, wrong])
        assert f"argument {wrong.split('=')[0]}: " in capsys.readouterr().err
