"""Several studies at once: statistics over runs and tasks, and the page that sums studies up."""

import math

import numpy as np
import pytest
from scipy import stats

from analysis import cli
from analysis.compare import build, summary
from analysis.load.studies import read_each
from analysis.statistics import across
from analysis.views import summary as view

NAN = math.nan


def test_iqm_is_scipys_trimmed_mean() -> None:
    scores = np.array([[1.0, 9.0], [2.0, 8.0], [3.0, 100.0], [4.0, NAN]])
    known = scores[~np.isnan(scores)]
    assert across.iqm(scores) == pytest.approx(stats.trim_mean(known, 0.25))
    assert across.iqm(scores) == pytest.approx((2 + 3 + 4 + 8 + 9) / 5)
    assert math.isnan(across.iqm(np.full((2, 2), NAN)))


def test_probability_of_improvement_is_mann_whitney_s_by_task() -> None:
    one = np.array([[1.0, 5.0], [3.0, NAN]])
    other = np.array([[1.0, 1.0], [2.0, 9.0]])
    first = stats.mannwhitneyu([1.0, 3.0], [1.0, 2.0]).statistic / 4
    assert first == 0.625
    assert across.probability_of_improvement(one, other) == pytest.approx((first + 0.5) / 2)
    assert across.probability_of_improvement(one, one) == pytest.approx(0.5)


def test_the_bootstrap_draws_within_tasks() -> None:
    """Two tasks without spread, far apart: every resample has the same mean."""
    scores = np.array([[1.0, 101.0]] * 4)
    found = across.bootstrapped(lambda each: float(np.nanmean(each)), scores)
    assert (found.value, found.low, found.high) == (51, 51, 51)
    single = across.bootstrapped(across.iqm, np.array([[1.0, 2.0], [3.0, NAN]]))
    assert single.value == pytest.approx(2)
    assert math.isnan(single.low)


def test_the_bootstrap_s_interval_holds_the_mean_of_many_runs() -> None:
    scores = np.random.default_rng(1).normal(0, 1, (400, 2))
    found = across.bootstrapped(lambda each: float(np.nanmean(each)), scores)
    half = 1.96 / math.sqrt(800)
    assert (found.high - found.low) / 2 == pytest.approx(half, rel=0.1)


def test_the_mean_effect_by_hand() -> None:
    """Differences 1 2 3 4 5: d = 3 / 1.5811, J(4) = 0.7979; no pair of sds in the other task."""
    baseline = np.zeros((5, 2))
    scores = np.array([[1.0, NAN], [2.0, NAN], [3.0, NAN], [4.0, NAN], [5.0, NAN]])
    found = across.mean_effect(scores, baseline, [True, True])
    scale = math.sqrt(2 / math.pi)
    g = scale * 3 / math.sqrt(2.5)
    assert found.value == pytest.approx(g)
    variance = scale**2 * 4 / 2 * (1 / 5 + g**2) - g**2
    assert found.high - g == pytest.approx(1.959964 * math.sqrt(variance))
    halved = across.mean_effect(np.tile(scores[:, :1], 2), baseline, [True, True])
    assert halved.value == pytest.approx(g)
    assert halved.high - g == pytest.approx((found.high - g) / math.sqrt(2))


def test_the_mean_effect_of_groups_that_share_no_seed() -> None:
    one, other = np.array([[2.0], [4.0], [6.0]]), np.array([[1.0], [2.0], [3.0]])
    found = across.mean_effect(one, other, [False])
    pooled = math.sqrt((8 + 2) / 4)
    j = math.exp(math.lgamma(2) - math.lgamma(1.5)) / math.sqrt(2)
    assert found.value == pytest.approx(j * 2 / pooled)
    few = across.mean_effect(one[:3], other[:3], [True])
    assert math.isnan(few.low)
    assert not math.isnan(few.value)


@pytest.mark.parametrize(("seeds", "least", "most"), [(5, 0.97, 1.0), (12, 0.945, 0.975)])
def test_the_interval_of_the_mean_effect_holds_it(seeds, least, most) -> None:
    generator = np.random.default_rng(3)
    held = 0
    for _ in range(1_000):
        scores = generator.normal((0.0, 0.5, 1.0), 1.0, (seeds, 3))
        found = across.mean_effect(scores, np.zeros((seeds, 3)), [True] * 3)
        held += found.low <= 0.5 <= found.high
    assert least <= held / 1_000 <= most


@pytest.fixture
def studies(hand_made, tmp_path):
    """Images: LASER better by 0.10 0.11 0.12 0.13 of 0.5; text: worse by 0.1 of 4 nats."""
    images = hand_made(name="images")
    images.add_seeds("standard", (0.5, 0.5, 0.5, 0.5))
    images.add_seeds("laser", (0.40, 0.39, 0.38, 0.37))
    images.finish()
    text = hand_made(name="text", workload="pydoc_lm", metric="loss")
    for variant, values in {"standard": (3.9, 4.0, 4.1), "laser": (4.0, 4.11, 4.22)}.items():
        for seed, value in enumerate(values):
            text.trial("compare", variant, 0, seed, [text.measured(400, "loss", value - 0.01)])
    text.select({"standard": 0, "laser": 0})
    text.finish()
    return images.root.parent


def _summary(root):
    return summary.of_tables([build.error_table(study) for study in read_each(root)])


def test_improvements_are_in_percent_of_the_baseline_s_mean(studies) -> None:
    found = _summary(studies)
    assert (found.baseline, found.headings) == ("standard", ["imagenet_vit", "pydoc_lm"])
    standard, laser = found.lines
    assert standard.variant == "standard"
    images, text = laser.cells
    test_error = 0.5 + 0.01  # hand-made studies lay test 0.01 above validation
    assert images.percent.value == pytest.approx(100 * 0.115 / test_error)
    assert images.comparison.verdict == "better"
    assert text.percent.value == pytest.approx(-100 * 0.11 / 4.0)
    assert text.percent.low < text.percent.value < text.percent.high
    assert laser.columns == 2
    expected = across.mean_effect(
        *(summary.scores(found.tables, name) for name in ("laser", "standard")), [True, True]
    )
    assert laser.effect.value == pytest.approx(expected.value)
    assert laser.improvement.value == pytest.approx((1 + 1.5 / 9) / 2)  # 4.0 beats 4.1 and ties 4.0
    assert math.isnan(laser.step_time) or laser.step_time > 0


def test_the_command_prints_variants_by_workloads(studies, capsys) -> None:
    assert cli.main(["summary", str(studies), "--format=markdown"]) == 0
    text = capsys.readouterr().out
    assert "| Variant | imagenet\\_vit test error |" in text.replace(
        "imagenet_vit", "imagenet\\_vit"
    )
    laser = next(line for line in text.splitlines() if line.startswith("| LASER |"))
    assert "+22.5" in laser
    assert "▲" in laser
    assert "▼" in laser or "≈" in laser
    assert "Over all workloads" in text


def test_two_studies_of_one_workload_are_named_and_said_to_count_twice(hand_made) -> None:
    for name in ("first", "second"):
        made = hand_made(name=name)
        made.add_seeds("standard", (0.5, 0.6))
        made.add_seeds("laser", (0.4, 0.45))
        made.finish()
    found = _summary(made.root.parent)
    assert found.headings == ["first", "second"]
    assert any("counted as often" in note for note in view.page(found).notes)


def test_another_baseline_keeps_its_column_and_leaves_the_lines(studies, hand_made) -> None:
    diff = hand_made(name="diff", workload="c4_lm")
    diff.config["baseline"] = "diff"
    diff.add_seeds("diff", (0.5, 0.6))
    diff.add_seeds("diff_laser", (0.4, 0.45))
    diff.finish()
    found = _summary(studies)
    line = next(line for line in found.lines if line.variant == "diff_laser")
    assert line.columns == 0
    assert sum(cell is not None for cell in line.cells) == 1
    page = view.page(found)
    assert any("against Diff" in column.heading for column in page.tables[0].columns)
    assert all(row[0].text != "Diff + LASER" for row in page.tables[1].sections[0])
    assert all(line.variant != "diff" for line in found.lines)


def test_another_study_s_baseline_is_a_variant_where_it_is_compared(hand_made) -> None:
    for name, baseline, other in (("one", "standard", "diff"), ("two", "diff", "standard")):
        made = hand_made(("standard", "diff"), name=name, config={"baseline": baseline})
        made.add_seeds(baseline, (0.5, 0.6))
        made.add_seeds(other, (0.4, 0.45))
        made.finish()
    found = _summary(made.root.parent)
    assert [line.variant for line in found.lines] == ["standard", "diff"]
    assert [cell is not None for cell in found.lines[1].cells] == [True, False]


def test_nothing_to_sum_up_is_said(hand_made, capsys) -> None:
    made = hand_made()
    made.add_seeds("standard", (0.5, 0.6))
    assert cli.main(["summary", str(made.finish())]) == 2
    assert "no study here has a variant beside its baseline" in capsys.readouterr().err
