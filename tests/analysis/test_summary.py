"""Several studies at once: statistics over runs and tasks, and the page that sums studies up."""

import csv
import dataclasses
import io
import math

import numpy as np
import pytest
from scipy import stats

from analysis import cli
from analysis.compare import build, summary
from analysis.load.studies import read_each
from analysis.load.targets import TIME
from analysis.statistics import across, comparisons
from analysis.views import summary as view
from analysis.views import verdicts
from analysis.views.table import notes as table_notes

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


def _mean_difference(one, other):
    return np.nanmean(one, axis=(-2, -1)) - np.nanmean(other, axis=(-2, -1))


def test_the_bootstrap_draws_within_tasks_and_pairs_together() -> None:
    """Runs differ by much, pairs by 1 ± 0.1: only the latter is in the interval of pairs."""
    generator = np.random.default_rng(0)
    base = generator.normal(0, 5, (40, 2)) + np.array([0, 1_000])
    scores = base + generator.normal(1, 0.1, (40, 2))
    paired = across.bootstrapped(_mean_difference, scores, base, [True, True])
    assert paired.value == pytest.approx(1, abs=0.05)
    assert (paired.high - paired.low) / 2 == pytest.approx(1.96 * 0.1 / math.sqrt(80), rel=0.15)
    apart = across.bootstrapped(_mean_difference, scores, base, [False, False])
    assert (apart.high - apart.low) / 2 == pytest.approx(1.96 * 5 / math.sqrt(40), rel=0.15)


def test_no_bootstrap_interval_of_few_runs_or_of_agreement() -> None:
    many, few = np.arange(20.0)[:, None], np.arange(9.0)[:, None]
    of = across.probability_of_improvement
    assert math.isnan(across.bootstrapped(of, few, few + 1, [True]).low)
    certain = across.bootstrapped(of, many + 100, many, [True])
    assert certain.value == 1
    assert math.isnan(certain.low)
    assert across.bootstrapped(of, many, many + 1, [False]).low < 0.45


def test_statistics_take_many_resamples_at_once() -> None:
    scores = np.random.default_rng(2).normal(size=(5, 12, 3))
    scores[:, 8:, 1] = NAN
    base = scores[::-1] + 0.1
    for statistic in (across.iqm_difference, across.probability_of_improvement):
        each = [statistic(one, other) for one, other in zip(scores, base, strict=True)]
        np.testing.assert_allclose(statistic(scores, base), each)


def test_the_mean_effect_by_hand() -> None:
    """Two tasks of 5 pairs, g = 1.5 and 0.5: J(4)² = 2/π · ... = 0.6366, v / (v - 2) = 2."""
    found = across.mean_effect([1.5, 0.5], [5, 5], [4, 4])
    assert found.value == 1
    scale = 2 * 2 / math.pi
    variance = sum(scale * (1 / 5 + g * g) - g * g for g in (1.5, 0.5))
    assert found.high - 1 == pytest.approx(1.959964 * math.sqrt(variance) / 2)
    assert math.isnan(across.mean_effect([1.0], [3], [2]).low)
    assert math.isnan(across.mean_effect([1.0, NAN], [5, 5], [4, 4]).value)
    assert math.isnan(across.mean_effect([], [], []).value)


@pytest.mark.parametrize(("seeds", "least", "most"), [(5, 0.97, 1.0), (12, 0.945, 0.975)])
def test_the_interval_of_the_mean_effect_holds_it(seeds, least, most) -> None:
    generator = np.random.default_rng(3)
    held = 0
    for _ in range(1_000):
        scores = generator.normal((0.0, 0.5, 1.0), 1.0, (seeds, 3))
        effects = [
            comparisons.standardised(float(one.mean()), float(one.std(ddof=1)), seeds - 1)
            for one in scores.T
        ]
        found = across.mean_effect(effects, [seeds] * 3, [seeds - 1] * 3)
        held += found.low <= 0.5 <= found.high
    assert least <= held / 1_000 <= most


def test_the_mean_ratio_is_geometric_and_holds_t() -> None:
    logs = np.log([1.1, 1.2, 1.3, 1.25])
    found = across.mean_ratio([logs])
    expected = stats.ttest_1samp(logs, 0.0).confidence_interval()
    assert found.value == pytest.approx(stats.gmean([1.1, 1.2, 1.3, 1.25]))
    assert (found.low, found.high) == pytest.approx(
        (math.exp(expected.low), math.exp(expected.high))
    )
    assert across.mean_ratio([np.log([2.0, 2.0]), np.log([0.5, 0.5])]).value == pytest.approx(1)
    assert math.isnan(across.mean_ratio([logs, logs[:1]]).low)
    assert math.isnan(across.mean_ratio([logs, logs[:0]]).value)


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
    assert laser.over == (0, 1)
    effects = [table.comparisons["laser"].effect for table in found.tables]
    assert laser.effect.value == pytest.approx(-sum(effects) / 2)
    assert math.isnan(laser.effect.low)  # text has 3 seeds
    assert laser.improvement.value == pytest.approx((1 + 1.5 / 9) / 2)  # 4.0 beats 4.1 and ties 4.0


def _measured(made, variant, values: dict[int, float]) -> None:
    for seed, value in values.items():
        made.trial("compare", variant, 0, seed, [made.evaluation(400, value)])
    made.select({"standard": 0, "laser": 0})


@pytest.mark.parametrize("shared", [2, 3, 11])
def test_point_and_interval_are_of_the_runs_that_are_compared(hand_made, shared) -> None:
    """Where 11 of 12 seeds are shared, the twelfth of either side would move both numbers."""
    made = hand_made(name=f"shared_{shared}")
    noise = np.random.default_rng(shared).normal(0, 0.02, 24)
    standard = dict(enumerate(0.3 + noise[:12]))
    laser = {12 - shared + rank: 0.29 + x for rank, x in enumerate(noise[12:])}
    standard[0], laser[23 - shared] = (0.99, 0.98) if shared == 11 else (0.3, 0.29)
    _measured(made, "standard", standard)
    _measured(made, "laser", laser)
    made.finish()
    (table,) = (build.error_table(study) for study in read_each(made.root))
    comparison = table.comparisons["laser"]
    assert comparison.pairs == (11 if shared == 11 else 0)
    line = summary.of_tables([table]).lines[1]
    for each in (line.iqm, line.improvement):
        assert each.low <= each.value <= each.high
    mine, base = (summary.scores([table], "laser", side) for side in ("laser", "standard"))
    for scores in (mine, base):
        assert np.isfinite(scores).sum() == (comparison.pairs or 12)
    assert np.nanmean(mine) == pytest.approx(line.cells[0].percent.value)
    assert np.nanmean(base) == pytest.approx(0)
    (_, said) = verdicts.of_table(table)
    notes = " ".join(view.page(summary.of_tables([table])).notes)
    assert ("11 seeds that both have" in said.sentence) == comparison.is_partial == (shared == 11)
    assert ("LASER 11 (12 and 12 seeds)" in notes) == comparison.is_partial
    whole = dataclasses.replace(table.rows[1].splits["train"], comparison=None)
    row = dataclasses.replace(table.rows[1], splits={**table.rows[1].splits, "train": whole})
    elsewhere = dataclasses.replace(table, decisive="train", rows=(table.rows[0], row))
    notes = " ".join(table_notes.left_out(elsewhere, ("test",)))
    assert ("LASER 11 (12 and 12 seeds) on test" in notes) == comparison.is_partial


def test_a_time_that_is_not_finite_is_in_no_ratio(hand_made) -> None:
    made = hand_made()
    for variant, error in {"standard": 0.5, "laser": 0.4}.items():
        for seed in range(3):
            time = "inf" if (variant, seed) == ("laser", 0) else 40.0 + seed
            row = made.evaluation(400, error + seed**2 * error / 100 - seed / 90)
            made.trial("compare", variant, 0, seed, [row | {TIME: time}])
    made.select({"standard": 0, "laser": 0})
    made.finish()
    line = _summary(made.root).lines[1]
    assert line.step_time.value == pytest.approx(1.0)


def test_effects_in_different_units_have_no_mean(hand_made) -> None:
    """Pairs of the images' seeds, none of the text's: d_z and g."""
    for name, workload, first in (("images", "imagenet_vit", 0), ("text", "c4_lm", 5)):
        made = hand_made(name=name, workload=workload)
        _measured(made, "standard", dict(enumerate((0.5, 0.52, 0.51, 0.55))))
        _measured(made, "laser", dict(enumerate((0.4, 0.42, 0.45, 0.41), first)))
        made.finish()
    line = _summary(made.root.parent).lines[1]
    assert line.over == (0, 1)
    assert line.effect_kind == "d_z and g"
    assert math.isnan(line.effect.value)
    assert line.iqm.value > 0


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
        made.add_seeds("standard", (0.5, 0.6, 0.7))
        made.add_seeds("laser", (0.4, 0.45, 0.41))
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
    assert line.over == ()
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


def test_lost_seeds_leave_the_lines_over_all_and_are_counted(studies, hand_made, capsys) -> None:
    """A workload on which LASER diverged says nothing good of it: named, and its runs counted."""
    bad = hand_made(name="bad", workload="spoken_digits_conformer", metric="wer")
    for seed in range(4):
        for variant, state in (("standard", "done"), ("laser", "diverged")):
            rows = [bad.measured(400, "wer", 0.1 + 0.01 * seed)] if state == "done" else []
            bad.trial("compare", variant, 0, seed, rows, state=state)
    bad.select({"standard": 0, "laser": 0})
    bad.finish()
    found = _summary(studies)
    laser = next(line for line in found.lines if line.variant == "laser")
    assert "bad" not in {found.tables[number].study.name for number in laser.over}
    assert (laser.failed.count, laser.failed.n) == (4, 8)  # of images and speech: text cannot tell
    assert cli.main(["summary", str(studies)]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert (
        "spoken_digits_conformer: seeds of LASER were lost, which count as worse than any" in text
    )


def test_a_withheld_verdict_is_no_cannot_tell(hand_made) -> None:
    made = hand_made()
    made.add_seeds("standard", (0.50, 0.51, 0.52, 0.53))
    made.add_seeds("laser", (0.30, 0.31, 0.32, 0.34))
    made.trial("compare", "laser", 0, 4, [], state="diverged")
    made.finish()
    page = view.page(_summary(made.root))
    assert page.tables[0].sections[0][1][1].text.endswith("○")
    assert any("no verdict, whatever p is: seeds were lost" in note for note in page.notes)


def test_rounding_is_no_spread(hand_made) -> None:
    """Differences of 0.1 to the last digit but one: t and g are undefined, and the line says so."""
    made = hand_made()
    made.add_seeds("standard", (0.5, 0.6, 0.7, 0.3))
    made.add_seeds("laser", (0.4, 0.5, 0.6, 0.2))
    made.finish()
    found = _summary(made.root)
    assert found.lines[1].over == ()
    assert "all differences are equal" in found.lines[1].left_out[0]


def test_what_has_no_column_is_named(studies, hand_made, capsys) -> None:
    made = hand_made(name="alone")
    made.add_seeds("standard", (0.5, 0.6))
    made.finish()
    assert cli.main(["summary", str(studies)]) == 0
    assert "alone: no variant beside Standard" in capsys.readouterr().out
    assert cli.main(["summary", str(studies), "--baseline=laser"]) == 0
    assert "alone: no variant laser to compare with" in capsys.readouterr().out


def test_a_study_given_twice_is_refused(studies, capsys) -> None:
    assert cli.main(["summary", str(studies), str(studies / "images")]) == 2
    assert "images is given twice: its runs would count twice" in capsys.readouterr().err


def test_csv_has_numbers(studies, capsys) -> None:
    assert cli.main(["summary", str(studies), "--format=csv"]) == 0
    lines = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    found = _summary(studies)
    cell = next(line for line in lines if (line["variant"], line["study"]) == ("laser", "images"))
    assert float(cell["value"]) == pytest.approx(found.lines[1].cells[0].percent.value)
    assert cell["verdict"] == "better"
    effect = next(line for line in lines if line["quantity"] == "effect_d_z")
    assert float(effect["value"]) == pytest.approx(found.lines[1].effect.value)
    assert effect["low"] == ""


def test_a_plot_is_written_where_it_is_asked_for(studies, tmp_path, capsys) -> None:
    assert cli.main(["summary", str(studies), f"--plot={tmp_path / 'all.png'}"]) == 0
    assert (tmp_path / "all.png").read_bytes().startswith(b"\x89PNG")
    for name in ("all.pdf", "no/all.png"):
        assert cli.main(["summary", str(studies), f"--plot={tmp_path / name}"]) == 2
        assert "--plot=" in capsys.readouterr().err
