"""Runs that failed to train: which they are, and how rates compare."""

import math

import pytest

from analysis.compare import failed_runs
from analysis.compare.error_table import build
from analysis.views import sentences
from analysis.views import table as view

EMPTY = {"name": "empty transcript", "constant": True, "validation/wer": 1.0, "test/wer": 1.0}
ALWAYS = {"name": "always 'one'", "constant": True, "validation/wer": 0.90, "test/wer": 0.92}
NEIGHBOUR = {"name": "nearest neighbour", "validation/wer": 0.05, "test/wer": 0.05}


@pytest.fixture
def speech(hand_made):
    """Standard trains eight times of eight, LASER thrice, of five one at the very limit."""
    seeds = {
        "standard": (0.10, 0.12, 0.11, 0.13) * 2,
        "laser": (0.09, 0.11, 0.81, 0.88, 0.90, 0.95, 0.86, 1.00),
    }
    return hand_made(workload="spoken_digits_conformer", metric="wer", seeds=seeds)


def table_of(made, *references):
    made.reference(list(references), "a stand-in")
    return made.table()


def test_the_limit_is_nine_tenths_of_the_best_constant_answer(speech) -> None:
    """0.9 of 0.90 is 0.81: at 0.81 exactly a tenth of the answer's errors is gone."""
    found = failed_runs.of_table(table_of(speech, EMPTY, NEIGHBOUR, ALWAYS))
    assert (found.answer, found.constant) == ("always 'one'", 0.90)
    assert found.limit == pytest.approx(0.81)
    assert found.by_variant["laser"].seeds == (3, 4, 5, 6, 7)
    assert math.isnan(found.by_variant["standard"].rate.p)


@pytest.mark.parametrize("waiting", ["standard", "laser"])
def test_rates_of_an_unfinished_study_have_no_verdict(speech, waiting) -> None:
    """Neither before its other seeds have ended nor if later calls of `run` plan fewer."""
    speech.trial("compare", waiting, 0, 8, None, state="pending")
    table = table_of(speech, ALWAYS)
    assert failed_runs.of_table(table).by_variant["laser"].rate.verdict == "cannot tell"
    assert "more often" not in sentences.headline(table)
    early = build(table.study, preliminary=True)
    assert failed_runs.of_table(early).by_variant["laser"].rate.verdict == "more often so far"
    assert "LASER 5 of 8 (more often so far, p = 0.026)" in sentences.headline(early)


def test_rates_over_two_data_sets_have_no_verdict(speech) -> None:
    for seed in range(8):
        speech.change("standard", seed, data_digest="a" * 64)
        speech.change("laser", seed, data_digest="b" * 64)
    table = table_of(speech, ALWAYS)
    assert failed_runs.of_table(table).by_variant["laser"].rate.verdict == "cannot tell"
    assert "cannot tell (different data): LASER" in sentences.headline(table)


def test_rates_are_corrected_for_variants_that_have_no_runs_yet(speech) -> None:
    speech.record["runs"] = [{"seeds": 8, "variants": ["standard", "laser", "diff"]}]
    speech.record["runs"].append({"seeds": 8, "variants": ["standard", "laser"]})
    laser = failed_runs.of_table(table_of(speech, ALWAYS)).by_variant["laser"]
    assert laser.rate.p_holm == pytest.approx(2 * laser.rate.p)


def test_the_table_of_rates(speech) -> None:
    table = table_of(speech, ALWAYS)
    page = view.page(table, details=True)
    verdicts, _, _, rates, *_ = page.tables
    assert verdicts.frame["Failed\nto train"].tolist()[:2] == ["0 of 8", "5 of 8"]
    assert rates.texts().iloc[1].tolist() == [
        *("LASER", "8", "5", "0.62", "[0.31, 0.86]", "0.026", "0.026", "more often")
    ]
    assert "LASER 5 of 8 (more often, p = 0.026)" in sentences.headline(table)
    line = page.data().set_index(["variant", "split"]).loc["laser", "train"]
    assert tuple(line[["failed", "failed_of", "failed_verdict"]]) == (5, 8, "more often")
    assert line["failed_p"] == pytest.approx(2 * 56 / 4368)


def test_diverged_runs_count_and_crashed_ones_do_not(speech) -> None:
    speech.trial("compare", "laser", 0, 8, [], state="diverged")
    speech.trial("compare", "laser", 0, 9, [], state="failed")
    speech.trial("compare", "laser", 0, 10, [], state="running")
    rate = failed_runs.of_table(table_of(speech, ALWAYS)).by_variant["laser"].rate
    assert (rate.count, rate.n) == (6, 9)


@pytest.mark.parametrize("rows", [[], [{"name": "unigram", "validation/loss": 5.0}]])
def test_without_a_constant_answer_nothing_is_guessed(hand_made, rows) -> None:
    study = hand_made(workload="c4_lm", metric="loss", seeds={"standard": (4.0, 7.0)})
    failures = failed_runs.of_table(table_of(study, *rows))
    assert failures.limit is None
    assert not failures.any


def test_what_is_so_by_definition_needs_no_record(speech, hand_made) -> None:
    """Silence has a WER of 1, and one class of ImageNet's an error of 0.999."""
    found = failed_runs.of_table(table_of(speech, NEIGHBOUR))
    assert (found.answer, found.limit) == ("empty transcript", pytest.approx(0.9))
    assert found.by_variant["laser"].seeds == (5, 7)
    images = hand_made(name="images", workload="imagenet_vit", seeds={"standard": (0.25, 0.95)})
    failed = failed_runs.of_table(table_of(images))
    assert failed.limit == pytest.approx(0.9 * 0.999)
    assert failed.by_variant["standard"].seeds == (1,)


@pytest.mark.parametrize(("last", "seeds"), [(0.4, ()), (0.82, (1,))])
def test_an_accuracy_is_judged_as_an_error(hand_made, last, seeds) -> None:
    """Where all trained the table has no column of failures."""
    study = hand_made(seeds={"standard": (0.3, last), "laser": (0.2, 0.3)})
    table = table_of(study, {"name": "always 3", "constant": True, "validation/error": 0.9})
    assert failed_runs.of_table(table).by_variant["standard"].seeds == seeds
    assert ("Failed\nto train" in view.page(table).tables[0].frame) == bool(seeds)
