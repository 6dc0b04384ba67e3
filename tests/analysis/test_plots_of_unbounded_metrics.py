"""Plots of WER, loss and perplexity: labels, and axes that step 0 does not fill."""

import dataclasses
import itertools
import math

import numpy as np
import pytest

from analysis.compare import build
from analysis.load.studies import read_study
from analysis.views import curves, hyperparameters, intervals

POINTS = ({"learning_rate": 1e-3}, {"learning_rate": 1e-2})
LOSSES = {1: 7.0, 100: 4.8, 200: 4.4, 300: 4.2, 400: 4.0}
RATES = {1: 8.0, 100: 1.0, 200: 0.5, 300: 0.2, 400: 0.1}


@pytest.fixture
def table(hand_made):
    """Returns a function: workload, metric, {step: value} to a table of two variants."""

    def make(workload, metric, values, show=None):
        made = hand_made(points=POINTS, workload=workload, metric=metric)
        rows = [made.measured(step, metric, value, 0.0) for step, value in values.items()]
        for point in (0, 1):
            made.trial("tune", "standard", point, 0, rows)
        for variant in ("diff", "diff_laser"):
            made.trial("compare", variant, 0, 0, rows)
        made.select({"standard": 0, "diff": 0, "diff_laser": 0})
        made.reference([{"name": "unigram", f"validation/{metric}": 5.5}], "stand-in")
        return build.error_table(read_study(made.finish()), metric=show)

    return make


def test_a_loss_axis_holds_all_but_the_first_tenth_of_the_steps(table) -> None:
    """4.0 to 4.8 and a twentieth of 0.8 at both ends; step 1 lies outside, linear."""
    figure = curves.draw(table("pydoc_lm", "loss", LOSSES))
    axes = figure.axes[0]
    assert axes.get_ylim() == pytest.approx((3.96, 4.84))
    assert axes.get_yscale() == "linear"
    assert axes.lines[0].get_ydata().tolist() == list(LOSSES.values())
    assert figure.get_supylabel() == "validation loss (nats per token)"
    assert sorted(text.get_text() for text in axes.texts) == ["Diff", "Diff + LASER"]
    assert not figure.legends  # the unigram's 5.5 lies outside


def test_the_labels_of_lines_do_not_lie_on_each_other(hand_made) -> None:
    """Five mixers that end within a thousandth of each other."""
    names = ("standard", "laser", "diff", "diff_laser", "sigmoid")
    made = hand_made(names, workload="pydoc_lm", metric="loss")
    for number, name in enumerate(names):
        values = {1: 6.0, 200: 4.5, 400: 4.0 + 1e-4 * number}
        rows = [made.measured(step, "loss", value) for step, value in values.items()]
        made.trial("compare", name, 0, 0, rows)
    made.select(dict.fromkeys(names, 0))
    figure = curves.draw(build.error_table(read_study(made.finish())))
    figure.draw_without_rendering()
    boxes = [text.get_window_extent() for text in figure.axes[0].texts]
    assert len(boxes) == 5
    ordered = sorted(boxes, key=lambda box: box.y0)
    assert all(
        above.y0 > below.y0 + 0.7 * below.height for below, above in itertools.pairwise(ordered)
    )


def test_a_wer_axis_is_logarithmic_where_training_spans_decades(table) -> None:
    """0.1 to 1, a twentieth of the decade at both ends."""
    figure = curves.draw(table("spoken_digits_conformer", "wer", RATES))
    assert figure.axes[0].get_ylim() == pytest.approx((0.1 / 10**0.05, 10**0.05))
    assert figure.axes[0].get_yscale() == "log"
    assert figure.get_supylabel() == "validation WER"


def test_with_one_evaluation_after_the_start_all_are_shown(table) -> None:
    figure = curves.draw(table("pydoc_lm", "loss", {1: 7.0, 400: 4.0}))
    assert figure.axes[0].get_ylim() == pytest.approx((3.85, 7.15))


def test_an_infinite_perplexity_is_left_out_of_every_axis(table) -> None:
    shown = table("pydoc_lm", "loss", LOSSES | {200: 1000.0}, "perplexity")
    assert curves.draw(shown).axes[0].get_ylim()[1] < math.exp(4.9)
    diverging = table_of_one_infinite_point(shown)
    assert hyperparameters.draw(diverging).axes[0].get_ylim()[1] < math.exp(4.9)


def table_of_one_infinite_point(shown):
    """The second tuned point's loss is finite, its perplexity is not."""
    run = next(run for run in shown.study.runs if (run.stage, run.point) == ("tune", 1))
    evals = {**run.evals, "validation/loss": np.full(len(run.evals["validation/loss"]), 1000.0)}
    worse = dataclasses.replace(run, evals=evals)
    runs = tuple(worse if each is run else each for each in shown.study.runs)
    return dataclasses.replace(shown, study=dataclasses.replace(shown.study, runs=runs))


def test_the_other_plots_say_the_unit_too(table) -> None:
    text = table("wikipedia_bert", "loss", LOSSES)
    label = "loss (nats per masked position)"
    assert hyperparameters.draw(text).get_supylabel() == f"validation {label}"
    assert intervals.draw(text).axes[0].get_xlabel() == f"test {label}"


@pytest.mark.parametrize(("near", "listed"), [(4.1, True), (90.0, False)])
def test_a_legend_lists_the_lines_that_are_drawn(hand_made, near, listed) -> None:
    made = hand_made(workload="pydoc_lm", metric="loss")
    for variant, losses in {"standard": (4.0, 4.2), "laser": (3.9, 4.1)}.items():
        for seed, loss in enumerate(losses):
            made.trial("compare", variant, 0, seed, [made.measured(400, "loss", loss)])
    made.select({"standard": 0, "laser": 0})
    made.reference([{"name": "unigram", "test/loss": near}], "stand-in")
    figure = intervals.draw(build.error_table(read_study(made.finish())))
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert any("unigram" in label for label in labels) == listed


@pytest.mark.parametrize(("metric", "worst"), [("accuracy", 0.9), ("wer", 1.5)])
def test_no_interval_goes_below_0_nor_a_share_above_1(hand_made, metric, worst) -> None:
    """The t interval of 0.01 and the worst is thousands of percent wide."""
    made = hand_made(metric=metric)
    for variant in ("standard", "laser"):
        for seed, value in enumerate((0.01, worst)):
            row = made.evaluation(400, value) if metric == "accuracy" else made.measured(
                400, metric, value, 0.0
            )  # fmt: skip
            made.trial("compare", variant, 0, seed, [row])
    made.select({"standard": 0, "laser": 0})
    table = build.error_table(read_study(made.finish()))
    summary = table.rows[0].splits["test"].summary
    assert summary.low < 0 < 1 < summary.high
    figure = intervals.draw(table)
    low, high = figure.axes[0].lines[1].get_xdata()
    assert (low, high) == (0.0, 1.0 if metric == "accuracy" else summary.high)
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert legend[1].endswith("cut at 0 or 1" if metric == "accuracy" else "cut at 0")
