"""Several studies at once: statistics over runs and tasks, and the page that sums studies up."""

import io
import itertools
import math
import pathlib
import warnings

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from analysis import cli
from analysis.compare import error_table
from analysis.load.records import TIME
from analysis.load.studies import read_each
from analysis.render import charts
from analysis.statistics import across
from analysis.statistics.comparisons import Comparison, compare
from analysis.views import ledger, summary

NAN = math.nan


def test_iqm_is_scipys_trimmed_mean() -> None:
    scores = np.array([[1.0, 9.0], [2.0, 8.0], [3.0, 100.0], [4.0, NAN]])
    known = scores[~np.isnan(scores)]
    assert across.iqm(scores) == pytest.approx(stats.trim_mean(known, 0.25))
    assert across.iqm(scores) == pytest.approx((2 + 3 + 4 + 8 + 9) / 5)
    assert math.isnan(across.iqm(np.full((2, 2), NAN)))


@given(st.integers(0, 1_000), st.integers(1, 6), st.integers(1, 6), st.integers(1, 3))
@settings(max_examples=50, deadline=None)
def test_probability_of_improvement_counts_every_pair(seed, n, m, tasks) -> None:
    """Numbers with ties, and runs that a task lacks."""
    random = np.random.default_rng(seed)
    one, other = (random.integers(0, 4, (size, tasks)).astype(float) for size in (n, m))
    one[random.random(one.shape) < 0.2] = NAN
    other[random.random(other.shape) < 0.2] = NAN
    with np.errstate(invalid="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        shares = [
            np.nanmean([
                NAN if math.isnan(a) or math.isnan(b) else (a > b) + 0.5 * (a == b)
                for a, b in itertools.product(one[:, task], other[:, task])
            ])
            for task in range(tasks)
        ]  # fmt: skip
    assert across.probability_of_improvement(one, other) == pytest.approx(
        np.mean(shares), nan_ok=True
    )


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
    five = Comparison(pairs=5)
    found = across.mean_effect([1.5, 0.5], [five, five])
    assert found.value == 1
    scale = 2 * 2 / math.pi
    variance = sum(scale * (1 / 5 + g * g) - g * g for g in (1.5, 0.5))
    assert found.high - 1 == pytest.approx(1.959964 * math.sqrt(variance) / 2)
    apart = across.mean_effect([1.5], [Comparison(n=5, n_baseline=5)])  # 2.5 pairs, v = 8
    square = 0.9027033**2 * 8 / 6
    assert apart.high == pytest.approx(
        1.5 + 1.959964 * math.sqrt(square * (1 / 2.5 + 1.5**2) - 1.5**2), rel=1e-5
    )
    assert math.isnan(across.mean_effect([1.0], [Comparison(pairs=3)]).low)
    assert math.isnan(across.mean_effect([1.0, NAN], [five, five]).value)
    assert math.isnan(across.mean_effect([], []).value)


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


def test_studies_with_other_seeds_are_one_sample_of_pairs() -> None:
    """-2 of sd 1 and -3 of sd √2: the variance within is (2·1 + 1·2)/3."""
    pairs = [{0: -1.0, 1: -2.0, 2: -3.0}, {3: -2.0, 4: -4.0}]
    zeros = dict.fromkeys(range(5), 0.0)
    one, apart = across.pooled([compare(differences, zeros, True) for differences in pairs])
    error = math.sqrt(4 / 3 / 5)
    assert (one.pairs, one.difference) == (5, pytest.approx(-2.4))
    assert one.p == pytest.approx(2 * stats.t.sf(2.4 / error, 3))
    assert (one.low, one.high) == pytest.approx(stats.t.interval(0.95, 3, -2.4, error))
    groups = [[*differences.values()] for differences in pairs]
    assert apart == pytest.approx(stats.ttest_ind(*groups).pvalue)


def test_the_pooled_interval_holds_the_difference() -> None:
    rng = np.random.default_rng(7)
    studies = rng.normal(0, 1, (4_000, 2, 8))
    zeros, held, apart = dict.fromkeys(range(8), 0.0), [], []
    for values in studies:
        compared = [
            compare(dict(enumerate(own)), zeros, True) for own in (values[0], values[1, :5])
        ]
        one, p = across.pooled(compared)
        held.append(one.low <= 0 <= one.high)
        apart.append(p < 0.05)
    assert 0.94 <= np.mean(held) <= 0.96
    assert 0.04 <= np.mean(apart) <= 0.06


def made(hand_made, errors: dict, name="tiny", diverged=(), **more) -> pathlib.Path:
    """Writes a study: `errors` maps a variant to what its seeds reach."""
    study = hand_made(list(errors), name=name, **more)
    for variant, values in errors.items():
        shift = 0.0 if study.metric == "accuracy" else -0.01
        study.add_seeds(variant, [value + shift for value in values])
    for variant in diverged:
        study.trial("compare", variant, 0, 20, [], state="diverged")
    return study.finish()


@pytest.fixture
def studies(hand_made) -> pathlib.Path:
    """Images: LASER better by 0.10 0.11 0.12 0.13 of 0.5; text: worse by 0.1 of 4 nats."""
    made(hand_made, {"standard": [0.5] * 4, "laser": (0.40, 0.39, 0.38, 0.37)}, "images")
    text = {"standard": (3.9, 4.0, 4.1), "laser": (4.0, 4.11, 4.22)}
    return made(hand_made, text, "text", workload="pydoc_lm", metric="loss").parent


def _summary(root) -> summary.Overview:
    return summary.of_tables([error_table.build(study) for study in read_each(root)])


def _over(found, variant, quantity) -> pd.Series:
    """Returns a variant's row of a quantity over all workloads."""
    rows = found.over[found.over["variant"].eq(variant) & found.over["quantity"].eq(quantity)]
    assert len(rows) == 1
    return rows.iloc[0]


def _reasons(found) -> list[str]:
    return found.cells["left_out"].tolist()


def test_improvements_are_in_percent_of_the_baseline_s_mean(studies) -> None:
    found = _summary(studies)
    assert (found.baseline, found.headings) == ("standard", ("imagenet_vit", "pydoc_lm"))
    assert found.variants == ("standard", "laser")
    images, text = (cell for _, cell in found.cells.iterrows())
    # Hand-made studies lay test 0.01 above validation.
    assert images["value"] == pytest.approx(100 * 0.115 / 0.51)
    assert (images["verdict"], images["n"]) == ("better", 4)
    assert text["value"] == pytest.approx(-100 * 0.11 / 4.0)
    assert text["low"] < text["value"] < text["high"]
    effect = _over(found, "laser", "effect")
    assert (effect["workload"], effect["unit"]) == ("1, 2", "d_z")
    effects = [table.comparisons["laser"].effect for table in found.tables]
    assert effect["value"] == pytest.approx(-sum(effects) / 2)
    assert math.isnan(effect["low"])  # text has 3 seeds
    # 4.0 beats 4.1 and ties 4.0
    assert _over(found, "laser", "improvement")["value"] == pytest.approx((1 + 1.5 / 9) / 2)


@pytest.mark.parametrize("shared", [2, 3, 11])
def test_point_and_interval_are_of_the_runs_that_are_compared(hand_made, shared) -> None:
    """Where 11 of 12 seeds are shared, the twelfth of either side would move both numbers."""
    standard, laser = np.random.default_rng(shared).normal(0.3, 0.02, (2, 12)).tolist()
    if shared == 11:
        standard[0], laser[11] = 0.99, 0.98
    study = hand_made(seeds={"standard": standard})
    study.add_seeds("laser", laser, first=12 - shared)
    result = _summary(study.finish())
    comparison = result.tables[0].comparisons["laser"]
    assert comparison.pairs == (11 if shared == 11 else 0)
    for quantity in ("iqm", "improvement"):
        each = _over(result, "laser", quantity)
        assert each["low"] <= each["value"] <= each["high"]
    scores = summary.scores(result.tables, "laser")[0]
    assert scores.count().tolist() == [comparison.pairs or 12] * 2
    cell = result.cells.iloc[0]
    assert scores["variant"].mean() == pytest.approx(cell["value"])
    assert scores["baseline"].mean() == pytest.approx(0)
    assert (cell["n"], cell["trained"]) == (comparison.pairs or 12, 12)
    notes = " ".join(summary.page(result).notes)
    assert ("LASER 11 of 12" in notes) == comparison.is_partial == (shared == 11)


def test_a_time_that_is_not_finite_is_in_no_ratio(hand_made) -> None:
    study = hand_made()
    for variant, error in {"standard": 0.5, "laser": 0.4}.items():
        for seed in range(3):
            time = "inf" if (variant, seed) == ("laser", 0) else 40.0 + seed
            row = study.evaluation(400, error + seed**2 * error / 100 - seed / 90)
            study.trial("compare", variant, 0, seed, [row | {TIME: time}])
    assert _over(_summary(study.finish()), "laser", "step_time")["value"] == pytest.approx(1.0)


def test_effects_in_different_units_have_no_mean(hand_made) -> None:
    """Pairs of the images' seeds, none of the text's: d_z and g."""
    for name, workload, first in (("images", "imagenet_vit", 0), ("text", "c4_lm", 5)):
        study = hand_made(name=name, workload=workload, seeds={"standard": (0.5, 0.52, 0.51, 0.55)})
        study.add_seeds("laser", (0.4, 0.42, 0.45, 0.41), first=first)
        root = study.finish()
    found = _summary(root.parent)
    effect = _over(found, "laser", "effect")
    assert (effect["workload"], effect["unit"]) == ("1, 2", "d_z and g")
    assert math.isnan(effect["value"])
    assert _over(found, "laser", "iqm")["value"] > 0


def test_the_page_has_variants_by_workloads(studies) -> None:
    page = summary.page(_summary(studies))
    cells, over, power = (table.texts() for table in page.tables)
    assert cells.columns.tolist() == ["Variant", "imagenet_vit\ntest error", "pydoc_lm\ntest loss"]
    assert cells.iloc[0].tolist() == ["Standard", "baseline", "baseline"]
    assert cells.iloc[1, 1].startswith("+22.5 [")
    assert cells.iloc[1, 1].endswith("▲")
    assert over["Columns"].tolist() == ["–", "1, 2"]
    assert power["Seeds"].tolist() == ["4", "3"]
    assert len(page.notes) <= 5


def test_columns_of_one_workload_name_their_studies(hand_made) -> None:
    for name in ("first", "second"):
        root = made(hand_made, {"standard": (0.5, 0.6, 0.7), "laser": (0.4, 0.45, 0.41)}, name)
    found = _summary(root.parent)
    assert found.headings == ("first: imagenet_vit", "second: imagenet_vit")
    assert any("several times: imagenet_vit" in note for note in summary.page(found).notes)


def test_only_studies_that_differ_in_seeds_are_pooled(hand_made) -> None:
    """The question of `first` with other seeds; with its seeds; at another batch size."""
    errors = {"standard": (0.5, 0.6, 0.7), "laser": (0.4, 0.45, 0.41)}
    for name, first, size in (("first", 0, 8), ("second", 3, 8), ("third", 0, 7), ("fourth", 2, 7)):
        study = hand_made(name=name, config={"batch_size": size})
        for variant, values in errors.items():
            study.add_seeds(variant, values, first=first)
        root = study.finish()
    (page,) = ledger.other_seeds([error_table.build(x) for x in read_each(root.parent)])
    assert page.tables[0].texts()["Not pooled"].tolist() == ["–", "seeds in common"]
    assert page.data()["n"].tolist() == [6]
    assert [note for note in page.notes if "differ in batch_size: first" in note]


def test_another_baseline_keeps_its_column_and_leaves_the_lines(studies, hand_made) -> None:
    errors = {"diff": (0.5, 0.6), "diff_laser": (0.4, 0.45)}
    made(hand_made, errors, "diff", workload="c4_lm", config={"baseline": "diff"})
    found = _summary(studies)
    assert found.variants == ("standard", "laser", "diff_laser")
    assert "diff_laser" not in set(found.over["variant"])
    assert found.cells["variant"].tolist().count("diff_laser") == 1
    cells, over, _ = (table.frame for table in summary.page(found).tables)
    assert any("against Diff" in heading for heading in cells.columns)
    assert "Diff + LASER" not in set(over["Variant"])


def test_another_study_s_baseline_is_a_variant_where_it_is_compared(hand_made) -> None:
    for name, baseline, other in (("one", "standard", "diff"), ("two", "diff", "standard")):
        errors = {baseline: (0.5, 0.6), other: (0.4, 0.45)}
        root = made(hand_made, errors, name, config={"baseline": baseline})
    found = _summary(root.parent)
    assert found.variants == ("standard", "diff")
    assert found.cells[["variant", "column"]].values.tolist() == [["standard", 1], ["diff", 0]]
    assert _reasons(found)[0] == "another baseline"


def test_lost_seeds_leave_the_lines_over_all_and_are_counted(studies, hand_made) -> None:
    """A workload on which LASER diverged says nothing good of it: named, and its runs counted."""
    errors = {"standard": (0.11, 0.12, 0.13, 0.14), "laser": ()}
    speech = {"workload": "spoken_digits_conformer", "metric": "wer"}
    made(hand_made, errors, "bad", diverged=("laser",), **speech)
    found = _summary(studies)
    assert found.headings[0] == "spoken_digits_conformer"
    assert _reasons(found) == ["lost seeds", "", ""]
    assert _over(found, "laser", "iqm")["workload"] == "2, 3"
    failed = _over(found, "laser", "failed_to_train")
    assert (failed["count"], failed["n"]) == (1, 5)  # of images and speech: text cannot tell
    assert any("lost seeds" in note for note in summary.page(found).notes)


def test_a_withheld_verdict_is_no_cannot_tell(hand_made) -> None:
    errors = {"standard": (0.50, 0.51, 0.52, 0.53), "laser": (0.30, 0.31, 0.32, 0.34)}
    found = _summary(made(hand_made, errors, diverged=("laser",)))
    assert found.cells["withheld"].tolist() == ["lost seeds"]
    assert summary.page(found).tables[0].frame.iloc[1, 1].endswith("○")


def test_rounding_is_no_spread(hand_made) -> None:
    """Differences of 0.1 to the last digit but one: t and g are undefined."""
    errors = {"standard": (0.5, 0.6, 0.7, 0.3), "laser": (0.4, 0.5, 0.6, 0.2)}
    assert _reasons(_summary(made(hand_made, errors))) == ["differences without a spread"]


def test_studies_without_a_column_are_named(studies, hand_made, capsys) -> None:
    alone = made(hand_made, {"standard": (0.5, 0.6)}, "alone")
    (problem,) = _summary(studies).problems
    assert (problem.kind, problem.text.split(":")[0]) == ("left out", "alone")
    assert cli.main(["summary", str(alone)]) == 2
    assert "nothing to sum up" in capsys.readouterr().err
    tables = [error_table.build(study, baseline="diff") for study in read_each(alone)]
    with pytest.raises(ValueError, match="no variant diff"):
        summary.of_tables(tables)


def test_one_of_equally_frequent_baselines_is_asked_for(hand_made) -> None:
    for name, baseline in (("a", "standard+gate"), ("b", "laser")):
        errors = {"sigmoid": (0.5, 0.6), baseline: (0.4, 0.45)}
        root = made(hand_made, errors, name, config={"baseline": baseline})
    with pytest.raises(ValueError, match=r"laser as with standard\+gate.*--baseline"):
        _summary(root.parent)


def test_csv_has_numbers(studies, capsys) -> None:
    assert cli.main(["summary", str(studies), "--format=csv"]) == 0
    lines = pd.read_csv(io.StringIO(capsys.readouterr().out)).set_index("quantity")
    cell = lines.loc["improvement_percent"].iloc[0]
    assert cell[["variant", "study", "verdict"]].tolist() == ["laser", "images", "better"]
    assert cell["value"] == pytest.approx(100 * 0.115 / 0.51)
    assert math.isnan(lines.loc["effect", "low"])


def test_figures_of_the_page(studies, tmp_path) -> None:
    found = _summary(studies)
    for plot in summary.PLOTS:
        spec = charts.specification(plot.draw(found), found.variants)
        assert spec["concat"] if plot.file == "summary" else spec["encoding"]
        assert "LASER: " in plot.alt_text(found)
    assert cli.main(["summary", str(studies), f"--plot={tmp_path / 'all.svg'}"]) == 0
    assert (tmp_path / "all.svg").read_text("utf-8").startswith("<svg")
    with pytest.raises(SystemExit):
        cli.main(["summary", str(studies), f"--plot={tmp_path / 'all.gif'}"])
